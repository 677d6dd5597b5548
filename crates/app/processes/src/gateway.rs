//! `fairmesh gateway`.

mod backend_load_text;
mod entry_text;
mod explain;
mod in_force;
mod load_actions;
mod placements;
mod relocation;
mod rolling_upgrade;
mod status;
mod throttle;

use std::{
    net::{SocketAddr, SocketAddrV4},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Subcommand};
use fairmesh_calls::{
    Mesh,
    forwarding::{with_event_loops, with_identities_only, with_principals},
};
use fairmesh_console::{connect, failure::Failure, stop_signals};
use fairmesh_gateway::{EntryConfig, GatewayConfig};
use fairmesh_kernel::DEFAULT_ENTRY_PINS;
use fairmesh_model::{Label, MeshRole, SpiffePath, spec};
use fairmesh_proxy::{AccessLogConfig, Limits};
use fairmesh_wire::transport::Address;

use super::{
    daemon_args::{AdminAddress, host_name},
    proxy::LogForm,
};
use crate::{byte_size::read_size, logging::Logging};

/// Arguments of `fairmesh gateway`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct GatewayCommandArgs {
    #[command(subcommand)]
    command: Option<GatewayCommand>,
    #[command(flatten)]
    replica: GatewayArgs,
}

/// Further commands.
#[derive(Debug, Subcommand)]
enum GatewayCommand {
    /// Show the backends of the gateway, their load, the services that each serves, and what is not placed as it asks, and why.
    Status(status::StatusArgs),
    /// Show how loaded a backend is, or the backends of a service, and why.
    Explain(explain::ExplainArgs),
    /// Choose the backends of a service, or let the controller choose them again. Needs the role admin.
    Move(relocation::MoveArgs),
    /// Limit the new connections of a service, or end a limit. Needs the role admin.
    Throttle(throttle::ThrottleArgs),
    /// Replace the program of replicas one by one, by hot upgrade; stop and go back when error codes rise.
    Upgrade(rolling_upgrade::UpgradeArgs),
}

/// Arguments of a replica.
#[derive(Debug, Args)]
struct GatewayArgs {
    /// Address for nodes, over mutual TLS.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7440")]
    listen: SocketAddr,
    /// The backend that it is a replica of: requests for services that are placed on others get a 421 response [default: none, it
    /// serves all services].
    #[arg(long, value_name = "NAME")]
    backend: Option<Label>,
    /// An address that all replicas of the backend share. A router spreads connections to it over them, and redirectors in the kernel
    /// bring each packet to the replica that holds its connection. This machine has the address on an interface, such as lo.
    #[arg(long, value_name = "IPV4:PORT", requires = "entry_interface", requires = "backend")]
    entry: Option<SocketAddrV4>,
    /// The interface at which packets to the shared address arrive.
    #[arg(long, value_name = "NAME", requires = "entry")]
    entry_interface: Option<String>,
    /// Directory in a BPF file system, where the redirector stays if the gateway crashes.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_ENTRY_PINS)]
    entry_bpffs: PathBuf,
    /// Address of /metrics, /healthz and /readyz, or 'none'.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7441")]
    admin: AdminAddress,
    /// A Unix socket for hot upgrades: a gateway started with the same path takes over the listeners of the running one,
    /// which then drains and ends.
    #[arg(long, value_name = "PATH")]
    handover: Option<PathBuf>,
    /// The agent to follow, which gives the gateway its identity [default: FAIRMESH_AGENT, else the agent's default socket].
    #[arg(long, value_name = "ADDRESS")]
    agent: Option<Address>,
    /// Its client id, which determines its subset of endpoints; stable, and unique among replicas [default: the names of host and
    /// program].
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// Maximum number of connections of one tenant; further ones are refused.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    max_tenant_connections: usize,
    /// Maximum number of requests of one tenant in flight, streams of HTTP/2 included; further ones get a 429 response.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    max_tenant_requests: usize,
    /// Maximum number of services that the pods of one tenant call; calls of one more get a 503 response until another one is idle.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_tenant_services: u32,
    /// Maximum number of tenants; connections of one more are refused.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    max_tenants: usize,
    /// Maximum number of connections of all tenants; further ones are refused.
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    max_connections: usize,
    /// Maximum number of connections whose caller has not proved its identity; further ones wait. While half of them are taken, an address
    /// has at most a sixteenth of them.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    max_handshakes: usize,
    /// Maximum size of a request body in bytes, or with a unit, such as 1MB; larger ones get a 413 response [default:
    /// unlimited].
    #[arg(long, value_name = "SIZE", value_parser = read_size)]
    max_body: Option<u64>,
    /// The access log, to standard output.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    access_log: LogForm,
    /// Log one of N requests; failed ones are all logged.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    access_log_one_in: u64,
    /// Time limit for requests in flight after SIGTERM, or once a successor serves.
    #[arg(long, value_name = "DURATION", value_parser = spec::read_duration, default_value = "25s")]
    drain_deadline: Duration,
    /// Idle timeout of connections, and time limit for the headers of a request.
    #[arg(long, value_name = "DURATION", value_parser = spec::read_duration, default_value = "75s")]
    idle_timeout: Duration,
    /// Idle timeout of WebSocket and TCP connections.
    #[arg(long, value_name = "DURATION", value_parser = spec::read_duration, default_value = "1h")]
    tunnel_idle_timeout: Duration,
    /// How long a service without calls is followed; the next call subscribes again.
    #[arg(long, value_name = "DURATION", value_parser = spec::read_duration, default_value = "10m")]
    service_idle_timeout: Duration,
    /// Threads that serve connections [default: the number of available processors].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=512))]
    cores: Option<u16>,
    #[command(flatten)]
    logging: Logging,
}

/// Runs a replica, or the subcommand.
pub async fn run(args: GatewayCommandArgs) -> Result<ExitCode, Failure> {
    match args.command {
        Some(GatewayCommand::Status(args)) => status::run(args).await.map(|()| ExitCode::SUCCESS),
        Some(GatewayCommand::Explain(args)) => explain::run(args).await.map(|()| ExitCode::SUCCESS),
        Some(GatewayCommand::Move(args)) => relocation::run(args).await.map(|()| ExitCode::SUCCESS),
        Some(GatewayCommand::Throttle(args)) => throttle::run(args).await.map(|()| ExitCode::SUCCESS),
        Some(GatewayCommand::Upgrade(args)) => rolling_upgrade::run(args).await,
        None => serve(args.replica).await,
    }
}

/// Serves until SIGTERM or SIGINT, or until a successor serves; then drains.
async fn serve(args: GatewayArgs) -> Result<ExitCode, Failure> {
    args.logging.start()?;
    let shutdown = stop_signals::shutdown()?;
    let agent = args.agent.clone().unwrap_or_else(connect::agent);
    let name = Label::new("gateway").map_err(|error| Failure::refused(error, "report this"))?;
    let path = SpiffePath::Mesh(MeshRole::Gateway, name);
    let transport = connect::transport_of_agent(agent.clone(), Some(path), "gateway").await;
    // Nodes and pods are identified only by mutual TLS.
    connect::require_identity(&transport)?;
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    let cores = args.cores.map_or_else(processors, usize::from);
    let client_id = args.client_id.clone().unwrap_or_else(|| format!("{}/gateway", host_name()));
    let mesh = with_principals(with_identities_only(with_event_loops(Mesh::builder(), cores)))
        .transport(transport.clone())
        .agent(agent.clone())
        .client_id(client_id)
        .idle_timeout(args.service_idle_timeout / 10);
    let mesh = mesh.connect().await.map_err(|error| Failure::refused(error.problem, error.hint))?;
    let config = GatewayConfig {
        listen: args.listen,
        transport,
        agent,
        backend: args.backend.clone(),
        entry: entry(&args),
        admin: args.admin.0,
        handover: args.handover.clone(),
        cores,
        limits: limits(&args),
        connections: args.max_connections,
        handshakes: args.max_handshakes,
        tenant_requests: args.max_tenant_requests,
        tenants: args.max_tenants,
        access_log: AccessLogConfig { form: args.access_log.into(), one_in: args.access_log_one_in },
    };
    fairmesh_gateway::run(config, mesh, shutdown).await.map_err(|error| Failure::stopped(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// The address that the replicas of the backend share.
fn entry(args: &GatewayArgs) -> Option<EntryConfig> {
    let (address, interface) = (args.entry?, args.entry_interface.clone()?);
    Some(EntryConfig { address, interface, pins: args.entry_bpffs.clone() })
}

/// The limits of one tenant.
fn limits(args: &GatewayArgs) -> Limits {
    Limits {
        connections: args.max_tenant_connections,
        body: args.max_body,
        idle_timeout: args.idle_timeout,
        tunnel_idle: args.tunnel_idle_timeout,
        drain: args.drain_deadline,
        services: args.max_tenant_services as usize,
        services_option: "--max-tenant-services",
        service_idle: args.service_idle_timeout,
        ..Limits::default()
    }
}
