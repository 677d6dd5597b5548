//! `fairmesh register`: keeps an unmodified program registered.
//!
//! Starts the program, or observes one that already runs, probes it periodically, and keeps it registered while it
//! responds. On SIGTERM or SIGINT it first waits for callers to leave, and then stops the program.

mod admin_pages;
mod arguments;
mod child_process;
mod front_listener;
mod health;
mod preflight;
mod probe;
#[cfg(test)]
mod tests;
mod tls_terminator;

use std::{ffi::OsString, future::pending, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use fairmesh_console::{failure::Failure, output, stop_signals};
use fairmesh_model::{EndpointState, HostType, InstanceId, Protocol, Region, ServiceName, spec};
use fairmesh_proxy::{AccessLogConfig, ObserverConfig, RequestObserver};
use fairmesh_server::{
    Cpu, Drained, Lease, RegistrationState, RegistryClient, ServerTransport, SignalReports,
    transport_of_agent,
};
use fairmesh_wire::transport::Address;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{
    daemon_args::AdminAddress,
    logging::Logging,
    proxy::{
        LogForm,
        trace_args::{self, TraceArgs},
    },
};
use admin_pages::RegisterPages;
use arguments::ValidArguments;
pub(crate) use arguments::protocol;
use child_process::Child;
use front_listener::Front;
use health::{Change, Health};
use probe::Probe;

/// Time after which a program that does not respond yet is first reported. Most programs respond within a moment.
const FIRST_REMINDER: Duration = Duration::from_secs(3);
/// Interval between further reports.
const REMINDER_INTERVAL: Duration = Duration::from_secs(10);

/// Timeout for exporting the last spans and lines of the access log.
const LAST_EXPORT: Duration = Duration::from_secs(1);

/// Interval between probes of a program that has not responded yet; grows from this value. Short, because most
/// programs respond within a moment and callers wait for them.
const FIRST_PROBE_INTERVAL: Duration = Duration::from_millis(50);

/// Arguments of `fairmesh register`.
#[derive(Debug, clap::Args)]
pub struct RegisterArgs {
    /// The service of the program: tenant/service.
    service: ServiceName,
    /// The address at which the program listens: an IP address and a port. In a mesh with a trust domain, this command listens in
    /// front of it with mutual TLS, and callers reach it there; in others, they reach the program.
    #[arg(long, value_name = "IP:PORT", value_parser = arguments::address)]
    address: SocketAddr,
    /// The address to listen at in front of the program, in a mesh without a trust domain too [default: a free port of the
    /// host of --address].
    #[arg(long, value_name = "IP:PORT", value_parser = arguments::address)]
    listen: Option<SocketAddr>,
    /// The address at which the program listens. --address is then the address of the listener in front of the program,
    /// like --listen.
    #[arg(long, value_name = "IP:PORT", value_parser = arguments::address, conflicts_with = "listen")]
    program: Option<SocketAddr>,
    /// Callers reach the program itself, in plaintext. In a mesh with a trust domain, the policy of the service has to say
    /// 'mtls: permissive'.
    #[arg(long, conflicts_with_all = ["listen", "program"])]
    plaintext: bool,
    /// The instance id within the service, stable across restarts [default: host name and port].
    #[arg(long, value_name = "ID")]
    instance: Option<InstanceId>,
    /// The protocol: http1, http2 or grpc. A service without declaration is declared with it.
    #[arg(long, value_parser = arguments::protocol, default_value = "http1")]
    protocol: Protocol,
    /// Its capacity in thousandths of an ordinary host.
    #[arg(long, default_value_t = fairmesh_model::FULL_WEIGHT)]
    weight: u32,
    /// A label, NAME=VALUE; may be repeated.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = arguments::label)]
    labels: Vec<(String, String)>,
    /// Its region [default: FAIRMESH_REGION, else that of the agent].
    #[arg(long)]
    region: Option<Region>,
    /// Its host type, from the 'kind: Hosts' record [default: that of the agent].
    #[arg(long, value_name = "NAME")]
    host_type: Option<HostType>,
    /// The probe: tcp (accepts connections) or http:/path (responds to GET with 2xx or 3xx).
    #[arg(long, default_value = "tcp")]
    probe: Probe,
    /// The probe interval; shorter until the first response.
    #[arg(long, value_parser = spec::read_duration, default_value = "2s")]
    interval: Duration,
    /// How long the endpoint stays registered without renewal, when this command dies.
    #[arg(long, value_parser = spec::read_duration, default_value = "10s")]
    lease: Duration,
    /// Time limit of a planned stop [default: FAIRMESH_DRAIN_DEADLINE, else 25s].
    #[arg(long, value_parser = spec::read_duration)]
    drain_deadline: Option<Duration>,
    /// Time for calls in flight to complete after callers have moved.
    #[arg(long, value_parser = spec::read_duration, default_value = "1s")]
    grace: Duration,
    /// The agent to register through [default: FAIRMESH_AGENT, else FAIRMESH_CONTROL, else the agent's default socket].
    #[arg(long, value_name = "ADDRESS")]
    agent: Option<Address>,
    /// A control plane to register at, where there is no agent: host:port or unix:/path; several are attempted in order.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', conflicts_with = "agent")]
    control: Vec<Address>,
    /// The program does not speak HTTP: forward the bytes of connections as they are. Without this option, this command forwards
    /// requests in front of the program, counts them, and says who calls.
    #[arg(long)]
    tcp: bool,
    /// Address of the admin pages (/metrics, /healthz, /readyz), or 'none'.
    #[arg(long, value_name = "ADDRESS", default_value = "none")]
    admin: AdminAddress,
    /// The access log of requests to the program, to standard output.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    access_log: LogForm,
    /// Log one of N requests; failed ones are all logged.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    access_log_one_in: u64,
    #[command(flatten)]
    traces: TraceArgs,
    #[command(flatten)]
    logging: Logging,
    /// The program to run, and its arguments; without one, a running program is observed, and not started or stopped.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Registers a program, keeps its lease, and ends with it.
pub async fn run(args: RegisterArgs) -> Result<ExitCode, Failure> {
    args.logging.start_decisions()?;
    let (observer, admin) = (observer_config(&args)?, args.admin.0);
    let mut plan = ValidArguments::new(args)?;
    // Installed before the program starts, so that a signal in between does not orphan it.
    let terminated = stop_signals::shutdown()?;
    preflight::refuse_address_in_use(&plan).await?;
    preflight::refuse_taken_instance(&plan).await?;
    let opened = transport_of_agent(&plan.addresses, &plan.registration).await;
    preflight::refuse_plaintext(&plan, &opened).await?;
    let transport = opened.transport.clone();
    let observer = RequestObserver::start(ObserverConfig { transport, ..observer });
    let pages = RegisterPages::new(Arc::clone(&observer));
    // Open the admin pages before the program starts. If their address is in use, no program is left running.
    let admin = pages.serve(admin).await?;
    let front = Front::open(&mut plan, opened, Arc::clone(&pages)).await?;
    let child = Child::start(&plan.command)?;
    let ended = Supervisor::new(plan, front, child).run(terminated).await;
    observer.stop(Instant::now() + LAST_EXPORT).await;
    if let Some(admin) = admin {
        admin.stop().await;
    }
    ended.map(ExitCode::from)
}

/// Determines how requests are observed. Spans name the service and the instance of the program.
fn observer_config(args: &RegisterArgs) -> Result<ObserverConfig, Failure> {
    let instance = arguments::instance(args)?.to_string();
    let mut traces = trace_args::config(&args.traces, Some(args.service.clone()), instance);
    let version = args.labels.iter().find(|(name, _)| name == "version");
    if let (Some(traces), Some((_, version))) = (&mut traces, version) {
        // Attributes of the environment come later in the list, and take precedence.
        traces.resource.insert(0, ("service.version".to_owned(), version.clone()));
    }
    let log = AccessLogConfig { form: args.access_log.into(), one_in: args.access_log_one_in };
    Ok(ObserverConfig { log, traces, ..ObserverConfig::default() })
}

/// Prints a status line for people.
fn print_status(what: impl std::fmt::Display) {
    output::say(format_args!("fairmesh register: {what}"));
}

/// The observed program and its registration.
struct Supervisor {
    plan: ValidArguments,
    front: Front,
    child: Option<Child>,
    health: Health,
    /// Set after the first response of the program.
    lease: Option<Lease>,
    standing: Option<watch::Receiver<RegistrationState>>,
    /// Whether a registration was confirmed.
    was_registered: bool,
    /// CPU usage of a program started by this command, because other processes are unknown; and counts of requests if
    /// this command forwards them.
    signals: Option<SignalReports>,
}

impl Supervisor {
    fn new(plan: ValidArguments, front: Front, child: Option<Child>) -> Self {
        Self {
            plan,
            front,
            child,
            health: Health::default(),
            lease: None,
            standing: None,
            was_registered: false,
            signals: None,
        }
    }

    async fn run(mut self, terminated: impl Future<Output = ()>) -> Result<u8, Failure> {
        let ended = self.supervise(terminated).await;
        self.front.close().await;
        ended
    }

    async fn supervise(&mut self, terminated: impl Future<Output = ()>) -> Result<u8, Failure> {
        tokio::pin!(terminated);
        print_status(format_args!("waiting for {} to respond", self.plan.program_address()));
        let mut remind_at = Instant::now() + FIRST_REMINDER;
        let mut look_at = Instant::now();
        let mut pause = FIRST_PROBE_INTERVAL.min(self.plan.interval);
        loop {
            tokio::select! {
                code = ended(&mut self.child) => return self.exit_after_child(code?).await,
                () = &mut terminated => return self.stop().await,
                () = sleep_until(look_at) => {
                    self.probe(&mut remind_at).await?;
                    if self.lease.is_some() {
                        pause = self.plan.interval;
                    }
                    look_at = Instant::now() + pause;
                    pause = next_interval(pause, self.plan.interval);
                }
                standing = changed(&mut self.standing) => {
                    self.was_registered |= matches!(standing, RegistrationState::Registered(_));
                    self.print_registration(&standing);
                }
            }
        }
    }

    /// Probes the program once, and acts on a change.
    async fn probe(&mut self, remind_at: &mut Instant) -> Result<(), Failure> {
        let answer = self.plan.probe.probe(self.plan.program_address()).await;
        let change = self.health.observe(answer.is_ok());
        let lost = answer.err().unwrap_or_default();
        match (change, &self.lease) {
            (Some(Change::Lost), Some(lease)) => {
                print_status(format_args!("the program does not respond ({lost}); callers avoid it"));
                lease.set(EndpointState::Lost);
            }
            (Some(Change::Responds), Some(lease)) => {
                print_status("the program responds again");
                lease.set(EndpointState::Serving);
            }
            (_, None) if self.health.responds() => {
                let is_decided = self.front.decide(&mut self.plan).await?;
                if is_decided {
                    // Said only now: a program that never responds declares nothing.
                    if let Some(note) = preflight::declaration_note(&self.plan).await {
                        print_status(note);
                    }
                    self.announce();
                }
            }
            (_, None) if Instant::now() >= *remind_at => {
                let address = self.plan.program_address();
                print_status(format_args!(
                    "still waiting for the program at {address} ({lost}); is that its address?"
                ));
                *remind_at = Instant::now() + REMINDER_INTERVAL;
            }
            _ => {}
        }
        Ok(())
    }

    fn announce(&mut self) {
        let registration = self.plan.registration.clone();
        let software = format!("register {} {}", registration.service, registration.instance);
        let ServerTransport { transport, undecided } = self.front.opened.clone();
        let link = RegistryClient::new(self.plan.addresses.clone(), software, transport);
        let link = Arc::new(link.undecided(undecided).after_policy_of(self.front.authorizer()));
        let cpu = self.child.as_ref().and_then(Child::pid).map(Cpu::of);
        if let Some(cpu) = &cpu {
            cpu.read();
            print_status(format_args!("its CPU is measured by {}", cpu.how()));
        }
        let front = self.front.authorizer();
        if cpu.is_some() || front.is_some() {
            let signals = SignalReports::of_program(Arc::clone(&link), registration.clone(), cpu, front);
            self.signals = Some(signals);
        }
        let lease = Lease::keep(link, registration, EndpointState::Serving);
        let mut standing = lease.registration_state();
        // Mark the state as changed: the first attempt may already have ended, and a repeated identical failure is no
        // change.
        standing.mark_changed();
        // The program is registered once.
        let _ = self.front.pages.standing.set(standing.clone());
        self.standing = Some(standing);
        self.lease = Some(lease);
    }

    fn print_registration(&self, standing: &RegistrationState) {
        let (service, instance) = (&self.plan.registration.service, &self.plan.registration.instance);
        match standing {
            RegistrationState::Registered(state) => {
                let address = self.plan.registration.address;
                print_status(format_args!(
                    "{service} {instance} at {address} is registered and {}",
                    state.as_str()
                ));
            }
            RegistrationState::Failing(problem) => {
                let why = match self.plan.by_environment {
                    true => {
                        "it registers at a control plane, and not through the agent of this machine, because FAIRMESH_CONTROL is \
                         set: --agent or FAIRMESH_AGENT selects the agent"
                    }
                    false => "--agent or FAIRMESH_AGENT names another agent",
                };
                print_status(format_args!(
                    "{service} {instance} could not be registered or renewed: {problem}; trying again ({why})"
                ));
            }
            // The first attempt is in flight.
            _ => {}
        }
    }

    /// Removes the endpoint of an ended program.
    async fn exit_after_child(&mut self, code: u8) -> Result<u8, Failure> {
        print_status(match self.was_registered() {
            true => format!("the program ended with exit code {code}; removing its endpoint"),
            false => format!("the program ended with exit code {code}"),
        });
        self.leave().await;
        Ok(code)
    }

    /// Waits for callers to leave, then stops the program, then removes the endpoint.
    async fn stop(&mut self) -> Result<u8, Failure> {
        let end = Instant::now() + self.plan.drain_deadline;
        let was_registered = self.was_registered();
        if let Some(lease) = &self.lease {
            print_status(match was_registered {
                true => "stopping; waiting for callers to leave",
                false => "stopping; the endpoint was not registered, so that no caller has to leave",
            });
            let drained = tokio::select! {
                drained = lease.drain(self.plan.drain_deadline * 6 / 10) => Some(drained),
                // The program has ended: there is nothing to drain.
                code = ended(&mut self.child) => return self.exit_after_child(code?).await,
            };
            match drained {
                _ if !was_registered => {}
                Some(Drained::Behind(behind)) => {
                    print_status(format_args!("these callers have not moved in time: {}", behind.join(", ")));
                }
                Some(Drained::Unreported(problem)) => {
                    print_status(format_args!(
                        "could not learn whether callers have moved ({problem}); they notice when connections close"
                    ));
                }
                _ => print_status("callers have moved"),
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

    /// Whether the registry has confirmed the endpoint, now or earlier.
    fn was_registered(&self) -> bool {
        let is_registered = self
            .standing
            .as_ref()
            .is_some_and(|standing| matches!(&*standing.borrow(), RegistrationState::Registered(_)));
        self.was_registered || is_registered
    }

    async fn leave(&mut self) {
        if let Some(signals) = &self.signals {
            signals.close().await;
        }
        let was_registered = self.was_registered();
        let Some(lease) = &self.lease else { return };
        match lease.leave().await {
            // A registration may still have been in flight, and is removed too.
            _ if !was_registered => {}
            Ok(()) => print_status("the endpoint is removed"),
            Err(error) => print_status(format_args!(
                "the endpoint could not be removed: {error}; its lease expires by itself"
            )),
        }
    }
}

/// Returns the next interval between probes while the program has not responded.
fn next_interval(pause: Duration, interval: Duration) -> Duration {
    (pause * 3 / 2).min(interval)
}

/// Waits for the program to end, and returns its exit code. Pending forever if no program was started.
async fn ended(child: &mut Option<Child>) -> Result<u8, Failure> {
    match child {
        Some(child) => child.wait().await,
        None => pending().await,
    }
}

/// Waits for the next registration state. Pending forever before the registration.
async fn changed(standing: &mut Option<watch::Receiver<RegistrationState>>) -> RegistrationState {
    if let Some(standing) = standing
        && standing.changed().await.is_ok()
    {
        return standing.borrow_and_update().clone();
    }
    pending().await
}
