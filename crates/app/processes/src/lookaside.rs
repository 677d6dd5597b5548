//! `fairmesh lookaside`.

mod pick;

use std::{pin::pin, process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use fairmesh_client::Mesh;
use fairmesh_console::{connect, failure::Failure, stop_signals};
use fairmesh_identity::FIRST_CERTIFICATE_WAIT;
use fairmesh_lookaside::{LeaseTerms, Limits, LookasideConfig};
use fairmesh_model::{Label, Location, MeshRole, Region, SpiffePath, spec};
use fairmesh_wire::transport::Address;

use super::daemon_args::{AdminAddress, UpstreamArgs};
use crate::logging::Logging;

/// Arguments of `fairmesh lookaside`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct LookasideArgs {
    #[command(subcommand)]
    command: Option<LookasideCommand>,
    #[command(flatten)]
    serve: ServeArgs,
}

/// Further commands.
#[derive(Debug, Subcommand)]
enum LookasideCommand {
    /// Request leases from a running lookaside, and print them.
    Pick(pick::PickArgs),
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Address for callers: ip:port or unix:/path.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7420")]
    listen: Address,
    /// Address of /metrics, /healthz and /readyz, or 'none'.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7421")]
    admin: AdminAddress,
    #[command(flatten)]
    upstream: UpstreamArgs,
    /// Accept and open connections over TCP only with an identity, from the start on: for a mesh with a trust domain.
    /// Without it, a process that starts before its agent responds uses plaintext until it learns of the trust domain.
    #[arg(long)]
    require_identity: bool,
    /// Its region [default: that of the agent, or FAIRMESH_REGION].
    #[arg(long)]
    region: Option<Region>,
    /// Its client id, which determines its subset of endpoints and so that of all its callers [default:
    /// FAIRMESH_CLIENT_ID, else the names of host and program].
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// Lifetime of a lease; callers may use a draining endpoint this long.
    #[arg(long, value_name = "DURATION", value_parser = spec::read_duration, default_value = "5s")]
    lease: Duration,
    /// Number of calls per lease.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    lease_calls: u32,
    /// Maximum number of live leases.
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    max_leases: usize,
    /// Maximum number of connections; further ones wait.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    max_connections: usize,
    /// Time limit for calls in flight after SIGTERM.
    #[arg(long, value_name = "DURATION", value_parser = spec::read_duration, default_value = "10s")]
    drain_deadline: Duration,
    #[command(flatten)]
    logging: Logging,
}

/// Serves until SIGTERM or SIGINT, then drains; or runs the subcommand.
pub async fn run(args: LookasideArgs) -> Result<ExitCode, Failure> {
    match args.command {
        Some(LookasideCommand::Pick(args)) => pick::run(args).await,
        None => serve(args.serve).await,
    }
}

async fn serve(args: ServeArgs) -> Result<ExitCode, Failure> {
    args.logging.start()?;
    let shutdown = stop_signals::shutdown()?;
    let name = Label::new("lookaside").map_err(|error| Failure::refused(error, "report this"))?;
    let path = SpiffePath::Mesh(MeshRole::Proxy, name);
    let mut shutdown = pin!(shutdown);
    // Before it has an identity, it could answer no caller of a mesh with a trust domain.
    let asked =
        connect::transport_within(args.upstream.agent(), Some(path), "lookaside", FIRST_CERTIFICATE_WAIT);
    let transport = tokio::select! {
        transport = asked => transport,
        () = &mut shutdown => return Ok(ExitCode::SUCCESS),
    };
    if args.require_identity {
        connect::require_identity(&transport)?;
    }
    let config = LookasideConfig {
        transport: transport.clone(),
        upstreams: args.upstream.addresses(),
        listen: args.listen,
        admin: args.admin.0,
        lease_terms: LeaseTerms { ttl: args.lease, calls: args.lease_calls },
        limits: Limits {
            connections: args.max_connections,
            leases: args.max_leases,
            drain: args.drain_deadline,
        },
    };
    let mut mesh = args.upstream.follow(Mesh::builder().transport(transport));
    if let Some(region) = args.region {
        mesh = mesh.location(Location::in_region(region));
    }
    if let Some(id) = args.client_id {
        mesh = mesh.client_id(id);
    }
    let mesh = mesh.connect().await.map_err(|error| Failure::refused(error.problem, error.hint))?;
    fairmesh_lookaside::run(config, mesh, shutdown).await.map_err(|error| Failure::stopped(&error))?;
    Ok(ExitCode::SUCCESS)
}
