//! `fairmesh proxy`.

use std::{path::PathBuf, process::ExitCode, thread, time::Duration};

use clap::{Args, ValueEnum};
use fairmesh_client::Mesh;
use fairmesh_model::{Location, Protocol, Region, spec};
use fairmesh_proxy::{AccessLog, Form, Inbound, InboundConfig, Limits, Listen, ProxyConfig, Spoken};
use fairmesh_wire::transport::Address;

use super::process::Metrics;
use crate::{failure::Failure, logging::Logging, register, signals};

/// Arguments of `fairmesh proxy`.
#[derive(Debug, Args)]
pub(crate) struct ProxyArgs {
    /// Where programs connect: ip:port, where the host of each request names its service (cart.shop for shop/cart), or
    /// ip:port=tenant/service, where all are for one; tcp:ip:port=tenant/service passes connections on that are no HTTP. Behind
    /// a balancer that says who connects, add +accept-proxy; to tell servers behind tcp:, +send-proxy or +send-proxy-v2. May be
    /// repeated.
    #[arg(
        long,
        value_name = "[tcp:]ADDRESS[=SERVICE]",
        default_value = "127.0.0.1:7410",
        value_delimiter = ','
    )]
    listen: Vec<Listen>,
    /// Where /metrics, /healthz, /readyz and /services are, or 'none'.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7411")]
    admin: Metrics,
    /// A Unix socket for hot upgrades: a proxy started with the same path takes the listeners over from the one that runs, which
    /// then drains and ends.
    #[arg(long, value_name = "PATH")]
    handover: Option<PathBuf>,
    /// A program on this machine that is an endpoint of a service, and the address at which callers reach it through this proxy.
    #[arg(long, value_name = "SERVICE@IP:PORT=PROGRAM", conflicts_with = "handover")]
    inbound: Option<Inbound>,
    /// What that program speaks: http1, http2 or grpc. A service that nobody has declared is declared to speak it.
    #[arg(long, value_parser = register::protocol, default_value = "http1", requires = "inbound")]
    inbound_protocol: Protocol,
    /// The program's identity within the service [default: the host's name and the port].
    #[arg(long, value_name = "ID", requires = "inbound")]
    inbound_instance: Option<String>,
    /// Requests that the program gets at one time; further ones are refused, and callers turn to others.
    #[arg(long, value_name = "N", default_value_t = 1024, requires = "inbound")]
    inbound_requests: usize,
    /// The agent to follow [default: FAIRMESH_AGENT, else the agent's usual socket].
    #[arg(long, value_name = "ADDRESS")]
    agent: Option<Address>,
    /// A control plane to follow, where there is no agent.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "agent")]
    control: Option<Address>,
    /// Where it runs [default: where the agent says, or FAIRMESH_REGION].
    #[arg(long)]
    region: Option<Region>,
    /// Who it is: its subset of endpoints hangs on it, so it should stay the same and differ between proxies
    /// [default: FAIRMESH_CLIENT_ID, else the host's and the program's name].
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// The access log, to standard output.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    access_log: LogForm,
    /// Log one of so many requests; those that failed are all logged.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    access_log_one_in: u64,
    /// How long requests under way may take once it is told to stop.
    #[arg(long, value_parser = spec::read_duration, default_value = "25s")]
    drain_deadline: Duration,
    /// How long a connection may be idle, and the head of a request take.
    #[arg(long, value_parser = spec::read_duration, default_value = "75s")]
    idle_timeout: Duration,
    /// How long nothing may come over a WebSocket, a CONNECT or a TCP connection.
    #[arg(long, value_parser = spec::read_duration, default_value = "1h")]
    tunnel_idle_timeout: Duration,
    /// Connections of programs at one time; further ones wait.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    max_connections: usize,
    /// Threads that serve connections [default: as many as there are processors to use].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    cores: Option<u16>,
    #[command(flatten)]
    logging: Logging,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum LogForm {
    /// No line.
    #[default]
    Off,
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl From<LogForm> for Form {
    fn from(form: LogForm) -> Self {
        match form {
            LogForm::Off => Self::Off,
            LogForm::Text => Self::Text,
            LogForm::Json => Self::Json,
        }
    }
}

/// Processors that this process may use.
fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The program to speak for.
fn inbound(args: &ProxyArgs) -> Option<InboundConfig> {
    args.inbound.clone().map(|inbound| InboundConfig {
        inbound,
        protocol: args.inbound_protocol,
        instance: args.inbound_instance.clone(),
        location: args.region.clone().map(Location::in_region),
        requests: args.inbound_requests,
        drain: args.drain_deadline,
        agent: args.agent.clone(),
        control: args.control.clone(),
    })
}

/// Runs until SIGTERM or SIGINT, then drains.
pub(crate) async fn run(args: ProxyArgs) -> Result<ExitCode, Failure> {
    args.logging.start()?;
    let shutdown = signals::shutdown()?;
    let spoken = match inbound(&args) {
        Some(config) => Some(Spoken::start(config).await.map_err(|error| Failure::stopped(&error))?),
        None => None,
    };
    // The program may call others through this proxy while it ends what is under way.
    let shutdown = async {
        shutdown.await;
        if let Some(spoken) = spoken {
            spoken.stop().await;
        }
    };
    let cores = args.cores.map_or_else(processors, usize::from);
    let config = ProxyConfig {
        cores,
        limits: Limits {
            connections: args.max_connections,
            head: args.idle_timeout,
            tunnel_idle: args.tunnel_idle_timeout,
            drain: args.drain_deadline,
            ..Limits::default()
        },
        access_log: AccessLog { form: args.access_log.into(), one_in: args.access_log_one_in },
        listen: args.listen,
        admin: args.admin.0,
        handover: args.handover,
    };
    let mut mesh = Mesh::builder().cores(cores);
    if let Some(agent) = args.agent {
        mesh = mesh.agent(agent);
    }
    if let Some(control) = args.control {
        mesh = mesh.control(control);
    }
    if let Some(region) = args.region {
        mesh = mesh.location(Location::in_region(region));
    }
    if let Some(id) = args.client_id {
        mesh = mesh.client_id(id);
    }
    let mesh = mesh.connect().await.map_err(|error| Failure::refused(error.problem, error.hint))?;
    fairmesh_proxy::run(config, mesh, shutdown).await.map_err(|error| Failure::stopped(&error))?;
    Ok(ExitCode::SUCCESS)
}
