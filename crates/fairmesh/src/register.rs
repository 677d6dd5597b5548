//! `fairmesh register`: speaks for a program that knows nothing of Fairmesh.
//!
//! It starts the program, or stands beside one that runs already, asks it now and then whether it answers, and keeps it
//! registered while it does. On SIGTERM or SIGINT the callers leave first and the program is stopped after them.

mod child;
mod health;
mod plan;
mod probe;
mod start;
#[cfg(test)]
mod tests;

use std::{ffi::OsString, future::pending, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use fairmesh_client::server::{Cpu, Drained, Lease, Link, Standing, UsageReports};
use fairmesh_model::{EndpointState, HostType, InstanceId, Protocol, Region, ServiceName, spec};
use fairmesh_wire::transport::Address;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{failure::Failure, signals};
use child::Child;
use health::{Change, Health};
use plan::Plan;
pub(crate) use plan::protocol;
use probe::Probe;

/// How often a program that does not answer yet is spoken of.
const REMIND: Duration = Duration::from_secs(10);

/// The first pause between looks at a program that has not answered yet: most are there within a moment, and callers
/// wait for them.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Arguments of `fairmesh register`.
#[derive(Debug, clap::Args)]
pub(crate) struct RegisterArgs {
    /// The service that the program is an endpoint of: tenant/service.
    service: ServiceName,
    /// Where callers reach the program: an IP address and a port.
    #[arg(long, value_name = "IP:PORT", value_parser = plan::address)]
    address: SocketAddr,
    /// Its identity within the service, the same after a restart; unless given, this host's name and the port.
    #[arg(long, value_name = "ID")]
    instance: Option<InstanceId>,
    /// What it speaks: http1, http2 or grpc. A service that nobody has declared is declared to speak it.
    #[arg(long, value_parser = plan::protocol, default_value = "http1")]
    protocol: Protocol,
    /// Its compute power in thousandths of an ordinary host.
    #[arg(long, default_value_t = fairmesh_model::FULL_WEIGHT)]
    weight: u32,
    /// A label, NAME=VALUE; may be repeated.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = plan::label)]
    labels: Vec<(String, String)>,
    /// Where it runs; unless given, where the agent says. FAIRMESH_REGION does the same.
    #[arg(long)]
    region: Option<Region>,
    /// The hardware that it runs on, a type of the 'kind: Hosts' record; unless given, what the agent says.
    #[arg(long, value_name = "NAME")]
    host_type: Option<HostType>,
    /// How to see that it answers: tcp (it takes connections) or http:/path (it answers a GET with 2xx or 3xx).
    #[arg(long, default_value = "tcp")]
    probe: Probe,
    /// How often to look; more often until it answers for the first time.
    #[arg(long, value_parser = spec::read_duration, default_value = "2s")]
    interval: Duration,
    /// How long it is believed to be there when this command dies without a word.
    #[arg(long, value_parser = spec::read_duration, default_value = "10s")]
    lease: Duration,
    /// How long a planned stop may take; unless given, FAIRMESH_DRAIN_DEADLINE, else 25s.
    #[arg(long, value_parser = spec::read_duration)]
    drain_deadline: Option<Duration>,
    /// How long calls under way may take to finish after callers have moved.
    #[arg(long, value_parser = spec::read_duration, default_value = "1s")]
    grace: Duration,
    /// The agent to register through; unless given, FAIRMESH_AGENT, else FAIRMESH_CONTROL, else the agent's usual socket.
    #[arg(long, value_name = "ADDRESS")]
    agent: Option<Address>,
    /// A control plane to register at, where there is no agent.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "agent")]
    control: Option<Address>,
    /// The program to run, and its arguments; without one, the program runs already and is not started or stopped.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Registers a program, keeps its lease, and ends with it.
pub(crate) async fn run(args: RegisterArgs) -> Result<ExitCode, Failure> {
    let plan = Plan::new(args)?;
    // In place before the program starts, so that a signal in between does not leave it behind.
    let terminated = signals::shutdown()?;
    start::refuse_taken(&plan).await?;
    let child = Child::start(&plan.command)?;
    start::tell_of_declaration(&plan).await;
    Watch::new(plan, child).run(terminated).await.map(ExitCode::from)
}

/// Tells the person at the terminal.
fn say(what: impl std::fmt::Display) {
    eprintln!("fairmesh register: {what}");
}

/// A program and what is known of it.
struct Watch {
    plan: Plan,
    child: Option<Child>,
    health: Health,
    /// From the first time that the program answered.
    lease: Option<Lease>,
    standing: Option<watch::Receiver<Standing>>,
    /// Of a program that was started here; nothing is known of the processes of another.
    usage: Option<UsageReports>,
}

impl Watch {
    fn new(plan: Plan, child: Option<Child>) -> Self {
        Self { plan, child, health: Health::default(), lease: None, standing: None, usage: None }
    }

    async fn run(mut self, terminated: impl Future<Output = ()>) -> Result<u8, Failure> {
        tokio::pin!(terminated);
        say(format_args!("waiting for {} to answer", self.plan.registration.address));
        let mut remind_at = Instant::now() + REMIND;
        let mut look_at = Instant::now();
        let mut pause = FIRST_PAUSE.min(self.plan.interval);
        loop {
            tokio::select! {
                code = ended(&mut self.child) => return self.leave_after(code?).await,
                () = &mut terminated => return self.stop().await,
                () = sleep_until(look_at) => {
                    self.look(&mut remind_at).await;
                    if self.lease.is_some() {
                        pause = self.plan.interval;
                    }
                    look_at = Instant::now() + pause;
                    pause = longer(pause, self.plan.interval);
                }
                standing = changed(&mut self.standing) => self.tell(&standing),
            }
        }
    }

    /// Looks once whether the program answers, and acts on what that changes.
    async fn look(&mut self, remind_at: &mut Instant) {
        let answer = self.plan.probe.look(self.plan.registration.address).await;
        let change = self.health.observe(answer.is_ok());
        let lost = answer.err().unwrap_or_default();
        match (change, &self.lease) {
            (Some(Change::Lost), Some(lease)) => {
                say(format_args!("the program does not answer ({lost}); callers are told to avoid it"));
                lease.set(EndpointState::Lost);
            }
            (Some(Change::Answers), Some(lease)) => {
                say("the program answers again");
                lease.set(EndpointState::Serving);
            }
            (Some(Change::Answers), None) => self.announce(),
            (_, None) if Instant::now() >= *remind_at => {
                let address = self.plan.registration.address;
                say(format_args!(
                    "still waiting for the program at {address} ({lost}); is that its address?"
                ));
                *remind_at = Instant::now() + REMIND;
            }
            _ => {}
        }
    }

    fn announce(&mut self) {
        let registration = self.plan.registration.clone();
        let software = format!("register {} {}", registration.service, registration.instance);
        let link = Arc::new(Link::new(self.plan.addresses.clone(), software));
        if let Some(pid) = self.child.as_ref().and_then(Child::pid) {
            let cpu = Cpu::of(pid);
            cpu.read();
            say(format_args!("its CPU is measured by {}", cpu.how()));
            self.usage = Some(UsageReports::of_program(Arc::clone(&link), registration.clone(), cpu));
        }
        let lease = Lease::keep(link, registration, EndpointState::Serving);
        self.standing = Some(lease.standing());
        self.lease = Some(lease);
    }

    fn tell(&self, standing: &Standing) {
        let (service, instance) = (&self.plan.registration.service, &self.plan.registration.instance);
        match standing {
            Standing::Announcing => {}
            Standing::Registered(state) => {
                let address = self.plan.registration.address;
                say(format_args!("{service} {instance} at {address} is registered and {}", state.as_str()));
            }
            Standing::Failing(problem) => say(format_args!(
                "{service} {instance} could not be registered or renewed: {problem}; trying again (--agent or FAIRMESH_AGENT \
                 names another agent)"
            )),
        }
    }

    /// The program is gone: so is its endpoint.
    async fn leave_after(mut self, code: u8) -> Result<u8, Failure> {
        say(format_args!("the program ended with exit code {code}; taking it out"));
        self.leave().await;
        Ok(code)
    }

    /// Callers leave, then the program stops, then the endpoint goes.
    async fn stop(mut self) -> Result<u8, Failure> {
        let end = Instant::now() + self.plan.drain_deadline;
        if let Some(lease) = &self.lease {
            say("stopping; callers are told to leave");
            let drained = tokio::select! {
                drained = lease.drain(self.plan.drain_deadline * 6 / 10) => Some(drained),
                // Nobody is left to wait for.
                code = ended(&mut self.child) => return self.leave_after(code?).await,
            };
            match drained {
                Some(Drained::Behind(behind)) => {
                    say(format_args!("these callers have not moved in time: {}", behind.join(", ")));
                }
                Some(Drained::Untold(problem)) => {
                    say(format_args!(
                        "callers could not be told ({problem}); they notice when connections close"
                    ));
                }
                _ => say("callers have moved"),
            }
            tokio::time::sleep(self.plan.grace.min(end.saturating_duration_since(Instant::now()))).await;
        }
        let code = match &mut self.child {
            Some(child) => child.stop(end).await?,
            None => 0,
        };
        self.leave().await;
        Ok(code)
    }

    async fn leave(&mut self) {
        let Some(lease) = &self.lease else { return };
        match lease.leave().await {
            Ok(()) => say("the endpoint is taken out"),
            Err(error) => say(format_args!(
                "the endpoint could not be taken out: {error}; its lease runs out by itself"
            )),
        }
    }
}

/// The pause after this one, as long as the program has not answered.
fn longer(pause: Duration, interval: Duration) -> Duration {
    (pause * 3 / 2).min(interval)
}

/// The exit code of the program once it ends; never, where none was started.
async fn ended(child: &mut Option<Child>) -> Result<u8, Failure> {
    match child {
        Some(child) => child.wait().await,
        None => pending().await,
    }
}

/// How the endpoint stands once that changes; never, before it was announced.
async fn changed(standing: &mut Option<watch::Receiver<Standing>>) -> Standing {
    if let Some(standing) = standing
        && standing.changed().await.is_ok()
    {
        return standing.borrow_and_update().clone();
    }
    pending().await
}
