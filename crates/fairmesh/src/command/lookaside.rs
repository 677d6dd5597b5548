//! `fairmesh lookaside`.

mod pick;

use std::{process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use fairmesh_client::Mesh;
use fairmesh_lookaside::{Limits, LookasideConfig, Terms};
use fairmesh_model::{Location, Region, spec};
use fairmesh_wire::transport::Address;

use super::process::Metrics;
use crate::{failure::Failure, logging::Logging, signals};

/// Arguments of `fairmesh lookaside`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct LookasideArgs {
    #[command(subcommand)]
    command: Option<LookasideCommand>,
    #[command(flatten)]
    serve: ServeArgs,
}

/// What else can be asked.
#[derive(Debug, Subcommand)]
enum LookasideCommand {
    /// Ask a lookaside that runs for endpoints, and print what it leases.
    Pick(pick::PickArgs),
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Where callers connect: ip:port or unix:/path.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7420")]
    listen: Address,
    /// Where /metrics, /healthz and /readyz are, or 'none'.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7421")]
    admin: Metrics,
    /// The agent to follow [default: FAIRMESH_AGENT, else the agent's usual socket].
    #[arg(long, value_name = "ADDRESS")]
    agent: Option<Address>,
    /// A control plane to follow, where there is no agent.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "agent")]
    control: Option<Address>,
    /// Where it picks from [default: where the agent says, or FAIRMESH_REGION].
    #[arg(long)]
    region: Option<Region>,
    /// Who it is: its subset of endpoints, and with it that of all its callers, hangs on it
    /// [default: FAIRMESH_CLIENT_ID, else the host's and the program's name].
    #[arg(long, value_name = "ID")]
    client_id: Option<String>,
    /// How long a lease is good for; as long may callers go on using an endpoint that drains.
    #[arg(long, value_name = "DURATION", value_parser = spec::read_duration, default_value = "5s")]
    lease: Duration,
    /// For how many calls a lease is good.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    lease_calls: u32,
    /// Leases that are counted at one time.
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    max_leases: usize,
    /// Connections at one time; further ones wait.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    max_connections: usize,
    /// How long calls under way may take once it is told to stop.
    #[arg(long, value_name = "DURATION", value_parser = spec::read_duration, default_value = "10s")]
    drain_deadline: Duration,
    #[command(flatten)]
    logging: Logging,
}

/// Serves until SIGTERM or SIGINT, then drains; or asks.
pub(crate) async fn run(args: LookasideArgs) -> Result<ExitCode, Failure> {
    match args.command {
        Some(LookasideCommand::Pick(args)) => pick::run(args).await,
        None => serve(args.serve).await,
    }
}

async fn serve(args: ServeArgs) -> Result<ExitCode, Failure> {
    args.logging.start()?;
    let shutdown = signals::shutdown()?;
    let config = LookasideConfig {
        listen: args.listen,
        admin: args.admin.0,
        terms: Terms { ttl: args.lease, calls: args.lease_calls },
        limits: Limits {
            connections: args.max_connections,
            leases: args.max_leases,
            drain: args.drain_deadline,
        },
    };
    let mut mesh = Mesh::builder();
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
    fairmesh_lookaside::run(config, mesh, shutdown).await.map_err(|error| Failure::stopped(&error))?;
    Ok(ExitCode::SUCCESS)
}
