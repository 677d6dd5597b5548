//! `fairmesh wait`: returns once processes and services are ready, for scripts that have just started them.

use std::{net::SocketAddr, process::ExitCode, str::FromStr, time::Duration};

use clap::Args;
use fairmesh_console::{
    arguments::{AgentTarget, TargetArgs},
    connect::{SOFTWARE, agent_hint, connect, transport},
    failure::Failure,
};
use fairmesh_model::{
    Invalid, ServiceName,
    spec::{read_duration, write_duration},
};
use fairmesh_processes::proxy;
use fairmesh_wire::handshake;
use tokio::time::{Instant, sleep, timeout_at};

use super::records::get;

/// Interval between attempts. The system cannot notify about the listener of another process.
const INTERVAL: Duration = Duration::from_millis(50);

/// Arguments of `fairmesh wait`.
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// What must be ready: control, agent, proxy, or a service, as tenant/service, which needs a serving endpoint.
    #[arg(required = true, value_name = "control|agent|proxy|SERVICE")]
    subjects: Vec<Subject>,
    /// How long to wait.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = read_duration)]
    timeout: Duration,
    /// The admin port of the proxy.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7411")]
    admin: SocketAddr,
    #[command(flatten)]
    agent: AgentTarget,
    #[command(flatten)]
    target: TargetArgs,
}

/// A subject to wait for.
#[derive(Clone, Debug)]
enum Subject {
    Control,
    Agent,
    Proxy,
    Service(ServiceName),
}

impl FromStr for Subject {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text {
            "control" => Ok(Self::Control),
            "agent" => Ok(Self::Agent),
            "proxy" => Ok(Self::Proxy),
            _ if !text.contains('/') => Err(Invalid::new(
                "subject",
                format!("'{text}' is neither a process nor a service"),
                "write control, agent, proxy, or a service as tenant/service",
            )),
            name => name.parse().map(Self::Service),
        }
    }
}

/// Waits for each subject in turn, all within one timeout.
pub async fn run(args: WaitArgs) -> Result<ExitCode, Failure> {
    let deadline = Instant::now() + args.timeout;
    for subject in &args.subjects {
        wait_for(subject, &args, deadline).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn wait_for(subject: &Subject, args: &WaitArgs, deadline: Instant) -> Result<(), Failure> {
    match subject {
        Subject::Control => attempt(deadline, || connect(&args.target)).await.map(drop),
        Subject::Agent => attempt(deadline, || reach_agent(&args.agent)).await,
        Subject::Proxy => attempt(deadline, || proxy::ready(args.admin)).await,
        Subject::Service(name) => {
            let connection = attempt(deadline, || connect(&args.target)).await?;
            if get::serving_endpoint(&connection, name, deadline).await? {
                return Ok(());
            }
            Err(Failure::failed_with(
                format!("no endpoint of {name} is serving after {}", write_duration(args.timeout)),
                "list its endpoints with 'fairmesh get endpoints'; 'fairmesh register' prints whether its program responds",
            ))
        }
    }
}

/// Succeeds if the agent responds.
pub(crate) async fn reach_agent(target: &AgentTarget) -> Result<(), Failure> {
    let address = target.address();
    match handshake::connect(&transport(), &address, SOFTWARE).await {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::failed_with(
            format!("the agent at {address} is not ready: {error}"),
            agent_hint(&address).await,
        )),
    }
}

/// Retries `once` until it succeeds or the deadline has passed; returns the first success or the last failure.
pub(crate) async fn attempt<T, F>(deadline: Instant, mut once: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut last = None;
    loop {
        match timeout_at(deadline, once()).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(failure)) => last = Some(failure),
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            return Err(
                last.unwrap_or_else(|| Failure::failed("no response in time; give a longer --timeout"))
            );
        }
        sleep(INTERVAL).await;
    }
}
