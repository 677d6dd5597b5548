//! `fairmesh proxy`.

pub mod admin_page;
mod capture;
mod endpoints;
mod key_server_args;
mod routes;
mod status;
pub(crate) mod trace_args;

use std::{
    collections::BTreeMap, path::PathBuf, process::ExitCode, str::FromStr, sync::Arc, thread, time::Duration,
};

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use fairmesh_calls::{
    Mesh,
    forwarding::{with_event_loops, with_identity_wait},
};
use fairmesh_console::{failure::Failure, stop_signals};
use fairmesh_dns::Zone;
use fairmesh_model::{Invalid, Label, Location, MeshRole, Protocol, Region, ServiceName, SpiffePath, spec};
use fairmesh_proxy::{
    AccessLogConfig, AccessLogFormat, BoundProxy, EndpointMetrics, InboundConfig, InboundEndpoint, Limits,
    ListenerConfig, ListenerKind, ProxyConfig, ProxyError, TlsFiles, check_tls,
};
use fairmesh_server::default_instance;
use fairmesh_wire::transport::Transport;

pub(crate) use capture::uids;
use key_server_args::KeyServerAddress;
pub use status::ready;
use trace_args::TraceArgs;

use super::daemon_args::{AdminAddress, UpstreamArgs, host_name};
use crate::{byte_size::read_size, logging::Logging, register};

/// Arguments of `fairmesh proxy`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ProxyArgs {
    #[command(subcommand)]
    command: Option<ProxyCommand>,
    #[command(flatten)]
    serve: ServeArgs,
}

/// Further commands.
#[derive(Debug, Subcommand)]
enum ProxyCommand {
    /// Redirect connections of unmodified programs to the proxy, with nftables, or stop that.
    Capture(Box<capture::CaptureArgs>),
    /// Show the endpoints of a service as a running proxy sees them, with those that it ejected.
    Endpoints(endpoints::EndpointsArgs),
    /// Show how a running proxy routes calls of its services: backends with their shares, faults, limits, timeouts.
    Routes(routes::RoutesArgs),
    /// Show the configuration of a running proxy, the age of its records, and its services' requests.
    Status(status::StatusArgs),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("tls_keys").multiple(true))]
struct ServeArgs {
    /// Address for programs: ip:port, where the host of each request names its service (cart.shop for shop/cart), or
    /// ip:port=tenant/service for a single service; tcp:ip:port=tenant/service forwards TCP connections. +accept-proxy
    /// accepts the PROXY protocol of a load balancer, +tls terminates TLS, +connect allows tunnels (CONNECT) without a
    /// route that names them, and +send-proxy or +send-proxy-v2 sends the PROXY protocol to servers of tcp:.
    /// capture:ip:port accepts connections redirected by 'fairmesh proxy capture'; +only-services refuses all but calls
    /// of services, and +transparent accepts those of 'capture --from'. kernel:ip:port accepts connections redirected by
    /// 'fairmesh kernel attach'. Clients at an address that is not on loopback, with +tls or +accept-proxy are outside the
    /// mesh: they state no caller and learn nothing of servers; +mesh says that they are programs of the mesh, and +explain
    /// answers 'x-fairmesh-explain' there. May be repeated. 'none' with --inbound: the program calls no others through this proxy.
    #[arg(
        long,
        value_name = "[tcp:|capture:|kernel:]ADDRESS[=SERVICE][+OPTION]",
        default_value = "127.0.0.1:7410",
        value_delimiter = ','
    )]
    listen: Vec<ListenArg>,
    /// The certificate chain of listeners with +tls: PEM, the leaf first. It is reloaded when it changes.
    #[arg(long, value_name = "FILE", requires = "tls_keys")]
    tls_cert: Option<PathBuf>,
    /// The private key of that certificate, in PEM, unencrypted. With --tls-key-server, it signs only when the key server does
    /// not.
    #[arg(long, value_name = "FILE", requires = "tls_cert", group = "tls_keys")]
    tls_key: Option<PathBuf>,
    /// A key server that signs handshakes with the private key of that certificate, and the name of the key there; may be
    /// given several times, those of the own zone first. The next one signs while one does not. Listeners with +tls then
    /// speak TLS 1.3 only.
    #[arg(long = "tls-key-server", value_name = "NAME@IP:PORT", requires = "tls_cert", group = "tls_keys")]
    tls_key_servers: Vec<KeyServerAddress>,
    /// Time limit of a signature by one key server.
    #[arg(long, value_name = "DURATION", value_parser = spec::read_duration, default_value = "1s", requires = "tls_key_servers")]
    tls_key_timeout: Duration,
    /// Address of the admin pages (/ lists them), or 'none'.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7411")]
    admin: AdminAddress,
    /// A Unix socket for hot upgrades: a proxy started with the same path takes over the listeners of the running one,
    /// which then drains and ends.
    #[arg(long, value_name = "PATH")]
    handover: Option<PathBuf>,
    /// A program on this machine that is an endpoint of a service, and the address of this proxy at which callers reach
    /// it.
    #[arg(long, value_name = "SERVICE@IP:PORT=PROGRAM")]
    inbound: Option<InboundEndpoint>,
    /// The protocol of that program: http1, http2 or grpc. A service without declaration is declared with it.
    #[arg(long, value_parser = register::protocol, default_value = "http1", requires = "inbound")]
    inbound_protocol: Protocol,
    /// The instance id of the program within the service [default: host name and port].
    #[arg(long, value_name = "ID", requires = "inbound")]
    inbound_instance: Option<String>,
    /// Maximum number of concurrent requests to the program; further ones are refused, and callers retry elsewhere.
    #[arg(long, value_name = "N", default_value_t = InboundConfig::DEFAULT_REQUESTS, requires = "inbound")]
    inbound_requests: u32,
    /// Adaptive concurrency limit: follows the latency of requests, up to --inbound-requests.
    #[arg(long, requires = "inbound")]
    inbound_adaptive: bool,
    #[command(flatten)]
    upstream: UpstreamArgs,
    /// Its region [default: that of the agent, or FAIRMESH_REGION].
    #[arg(long)]
    region: Option<Region>,
    /// Its client id, which determines its subset of endpoints; stable, and unique among proxies [default:
    /// FAIRMESH_CLIENT_ID, else the names of host and program].
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// The service whose programs call through this proxy: the identity of its calls, and 'service.name' of its spans
    /// [default: that of --inbound, else the proxy itself].
    #[arg(long, value_name = "SERVICE", conflicts_with = "inbound")]
    service: Option<ServiceName>,
    /// The zone of 'fairmesh dns': hosts beneath it name services too, cart.shop.ZONE as cart.shop does.
    #[arg(long, value_name = "ZONE")]
    dns_zone: Option<Zone>,
    /// The access log, to standard output.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    access_log: LogForm,
    /// Log one of N requests; failed ones are all logged.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    access_log_one_in: u64,
    /// Count attempts by endpoint too, for at most a thousand endpoints.
    #[arg(long)]
    metrics_per_endpoint: bool,
    #[command(flatten)]
    traces: TraceArgs,
    /// Time limit for requests in flight after SIGTERM.
    #[arg(long, value_parser = spec::read_duration, default_value = "25s")]
    drain_deadline: Duration,
    /// Idle timeout of connections, and time limit for the headers of a request.
    #[arg(long, value_parser = spec::read_duration, default_value = "75s")]
    idle_timeout: Duration,
    /// Idle timeout of WebSocket, CONNECT and TCP connections.
    #[arg(long, value_parser = spec::read_duration, default_value = "1h")]
    tunnel_idle_timeout: Duration,
    /// Maximum number of downstream connections; further ones wait.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    max_connections: usize,
    /// Maximum number of services followed; calls of one more get a 503 response until another one is idle.
    #[arg(long, default_value_t = 65_536, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=80_000))]
    max_services: u32,
    /// How long a service without calls is followed; the next call subscribes again.
    #[arg(long, value_parser = spec::read_duration, default_value = "10m")]
    service_idle_timeout: Duration,
    /// Maximum size of a request body in bytes, or with a unit, such as 1MB; larger ones get a 413 response [default:
    /// unlimited].
    #[arg(long, value_name = "SIZE", value_parser = read_size)]
    max_body: Option<u64>,
    /// Threads that serve connections [default: the number of available processors]. With 1 the process has a single
    /// thread.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    cores: Option<u16>,
    #[command(flatten)]
    logging: Logging,
}

/// One value of `--listen`.
#[derive(Clone, Debug)]
enum ListenArg {
    None,
    Listener(ListenerConfig),
}

impl FromStr for ListenArg {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text {
            "none" => Ok(Self::None),
            _ => text.parse().map(Self::Listener),
        }
    }
}

/// The listeners of the proxy.
fn listeners(args: &ServeArgs) -> Result<Vec<ListenerConfig>, Failure> {
    let listeners: Vec<ListenerConfig> = args
        .listen
        .iter()
        .filter_map(|one| match one {
            ListenArg::None => None,
            ListenArg::Listener(listener) => Some(listener.clone()),
        })
        .collect();
    let problem = match () {
        () if listeners.len() == args.listen.len() => return Ok(listeners),
        () if !listeners.is_empty() => "--listen none stands beside other listeners",
        () if args.inbound.is_none() => {
            "a proxy without listeners and without --inbound has nothing to serve"
        }
        () => return Ok(listeners),
    };
    Err(Failure::refused(problem, "give 'none' alone and with --inbound, or leave it out"))
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum LogForm {
    /// No access log.
    #[default]
    Off,
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl From<LogForm> for AccessLogFormat {
    fn from(form: LogForm) -> Self {
        match form {
            LogForm::Off => Self::Off,
            LogForm::Text => Self::Text,
            LogForm::Json => Self::Json,
        }
    }
}

impl ProxyArgs {
    /// Whether the thread that serves connections also runs everything else. With a second, mostly idle thread the
    /// process's file table would be shared, and the kernel would look up each socket with atomic operations, which
    /// costs a few percent of a request.
    pub fn runs_on_one_thread(&self) -> bool {
        self.command.is_none() && cores(&self.serve) == 1
    }
}

/// Number of threads that serve connections.
fn cores(args: &ServeArgs) -> usize {
    let processors = || thread::available_parallelism().map_or(1, usize::from);
    args.cores.map_or_else(processors, usize::from)
}

/// The configuration of the program behind the proxy, for inbound calls.
fn inbound(args: &ServeArgs) -> Option<InboundConfig> {
    args.inbound.clone().map(|inbound| InboundConfig {
        transport: None,
        inbound,
        protocol: args.inbound_protocol,
        instance: args.inbound_instance.clone(),
        location: args.region.clone().map(Location::in_region),
        requests: args.inbound_requests,
        adaptive: args.inbound_adaptive,
        limits: limits(args),
        agent: args.upstream.agent.clone(),
        control: args.upstream.control.clone(),
    })
}

fn limits(args: &ServeArgs) -> Limits {
    Limits {
        connections: args.max_connections,
        body: args.max_body,
        idle_timeout: args.idle_timeout,
        tunnel_idle: args.tunnel_idle_timeout,
        drain: args.drain_deadline,
        services: args.max_services as usize,
        service_idle: args.service_idle_timeout,
        ..Limits::default()
    }
}

/// Serves until SIGTERM or SIGINT, then drains; or runs the subcommand.
pub async fn run(args: ProxyArgs) -> Result<ExitCode, Failure> {
    match args.command {
        Some(ProxyCommand::Capture(args)) => capture::run(*args).await,
        Some(ProxyCommand::Endpoints(args)) => endpoints::run(args).await,
        Some(ProxyCommand::Routes(args)) => routes::run(args).await,
        Some(ProxyCommand::Status(args)) => status::run(args).await,
        None => serve(args.serve).await,
    }
}

async fn serve(args: ServeArgs) -> Result<ExitCode, Failure> {
    args.logging.start()?;
    // Errors in arguments are reported before anything is started.
    let listen = listeners(&args)?;
    check_tls(&listen, args.tls_cert.is_some())
        .map_err(|wrong| Failure::refused(wrong, "see 'fairmesh proxy --help'"))?;
    check_kernel(&listen)?;
    let shutdown = stop_signals::shutdown()?;
    let inbound = inbound(&args);
    let endpoints = args.metrics_per_endpoint.then(EndpointMetrics::new);
    let (transport, key_servers) = key_server_args::connect(&args).await?.unzip();
    let config = ProxyConfig { key_servers, listen, ..config(&args, endpoints.clone()) };
    // Every address is bound before an endpoint is registered. Otherwise callers could already try an endpoint that
    // does not listen yet.
    let stopped = |error: ProxyError| Failure::stopped(&error);
    let mut bound = BoundProxy::bind(&config, inbound.as_ref()).await.map_err(stopped)?;
    let mesh = mesh(&args, endpoints, transport).await?;
    let served = match inbound {
        Some(inbound) => bound.start_inbound(inbound).await.map_err(stopped)?,
        None => None,
    };
    // The program may call others through this proxy while it completes calls in flight.
    let shutdown = async {
        shutdown.await;
        if let Some(served) = &served {
            served.shutdown().await;
        }
    };
    let ended = bound.run(ProxyConfig { inbound: served.clone(), ..config }, mesh, shutdown).await;
    if let (Err(_), Some(served)) = (&ended, &served) {
        // A process that ends early removes its endpoint.
        served.shutdown().await;
    }
    ended.map_err(stopped)?;
    Ok(ExitCode::SUCCESS)
}

/// Checks that there is at most one kernel listener, because the kernel redirects to one.
fn check_kernel(listen: &[ListenerConfig]) -> Result<(), Failure> {
    let is_kernel = |one: &&ListenerConfig| matches!(one.kind, ListenerKind::Kernel { .. });
    match listen.iter().filter(is_kernel).count() {
        0 | 1 => Ok(()),
        count => Err(Failure::refused(
            format!("{count} listeners kernel: in one proxy, and connections are redirected to one"),
            "give one --listen kernel:IP:PORT; several cgroups may be attached to it",
        )),
    }
}

/// The proxy's configuration except for the listeners, the key server and the inbound server.
fn config(args: &ServeArgs, endpoints: Option<Arc<EndpointMetrics>>) -> ProxyConfig {
    let (options, cores, limits) = (client_settings(args), cores(args), limits(args));
    let instance = inbound_instance(args).or_else(|| args.client_id.clone()).unwrap_or_else(host_name);
    ProxyConfig {
        service: args.inbound.as_ref().map(|inbound| inbound.service.clone()),
        cores,
        limits,
        access_log: AccessLogConfig { form: args.access_log.into(), one_in: args.access_log_one_in },
        traces: trace_args::config(&args.traces, service(args), instance),
        endpoints,
        options,
        listen: Vec::new(),
        zone: args.dns_zone.as_ref().map(ToString::to_string),
        tls: args.tls_cert.clone().map(|certificate| TlsFiles { certificate, key: args.tls_key.clone() }),
        key_servers: None,
        admin: args.admin.0,
        handover: args.handover.clone(),
        inbound: None,
    }
}

/// Settings of the client library, for the admin page.
fn client_settings(args: &ServeArgs) -> BTreeMap<&'static str, String> {
    let inbound = args.inbound.as_ref().map(|_| format!("{:?}", args.inbound_protocol).to_lowercase());
    let control: Vec<_> = args.upstream.control.iter().map(ToString::to_string).collect();
    let told = [
        ("agent", args.upstream.agent.as_ref().map(ToString::to_string)),
        ("control", (!control.is_empty()).then(|| control.join(","))),
        ("region", args.region.as_ref().map(ToString::to_string)),
        ("client-id", args.client_id.clone()),
        ("dns-zone", args.dns_zone.as_ref().map(ToString::to_string)),
        ("inbound-protocol", inbound),
    ];
    told.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The identity used in the proxy's calls: that of the service it represents, or its own.
fn identity(args: &ServeArgs) -> SpiffePath {
    service(args).map_or_else(own_identity, SpiffePath::Service)
}

/// The service that the proxy represents.
fn service(args: &ServeArgs) -> Option<ServiceName> {
    args.service.clone().or_else(|| Some(args.inbound.as_ref()?.service.clone()))
}

/// The instance of the program behind the proxy.
fn inbound_instance(args: &ServeArgs) -> Option<String> {
    let inbound = args.inbound.as_ref()?;
    let usual = || Some(default_instance(inbound.address).ok()?.to_string());
    args.inbound_instance.clone().or_else(usual)
}

/// The identity of a proxy that serves any program.
pub fn own_identity() -> SpiffePath {
    SpiffePath::Mesh(MeshRole::Proxy, Label::new("proxy").expect("it is a name"))
}

/// Time for which a proxy waits for its identity before it listens. It waits longer before it is ready.
const IDENTITY_WAIT: Duration = Duration::from_secs(1);

/// Opens the proxy's mesh handle. `transport` is a transport with the proxy's identity, if there already is one.
async fn mesh(
    args: &ServeArgs,
    endpoints: Option<Arc<EndpointMetrics>>,
    transport: Option<Transport>,
) -> Result<Mesh, Failure> {
    // The proxy holds handles to the called services, and so decides how long each is followed.
    let mesh = with_identity_wait(with_event_loops(Mesh::builder(), cores(args)), IDENTITY_WAIT);
    let mesh = mesh.identity(identity(args));
    let mut mesh = args.upstream.follow(mesh).idle_timeout(args.service_idle_timeout / 10);
    if let Some(region) = &args.region {
        mesh = mesh.location(Location::in_region(region.clone()));
    }
    if let Some(id) = &args.client_id {
        mesh = mesh.client_id(id);
    }
    if let Some(endpoints) = endpoints {
        mesh = mesh.observer(endpoints);
    }
    if let Some(transport) = transport {
        mesh = mesh.transport(transport);
    }
    mesh.connect().await.map_err(|error| Failure::refused(error.problem, error.hint))
}
