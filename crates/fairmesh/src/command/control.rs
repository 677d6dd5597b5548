//! `fairmesh control`.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::Args;
use fairmesh_control::ControlConfig;
use fairmesh_wire::transport::Address;

use crate::{failure::Failure, logging::Logging, signals};

use super::places;

/// Arguments of `fairmesh control`.
#[derive(Debug, Args)]
pub(crate) struct ControlArgs {
    /// Where the routing information base is kept [default: /var/lib/fairmesh/control, or below
    /// ~/.local/state/fairmesh when not root].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Where agents and this command line connect: host:port or unix:/path; may be repeated.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7400")]
    grpc: Vec<Address>,
    /// Where the registry's HTTP API, /metrics, /healthz and /readyz are.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7401")]
    http: SocketAddr,
    /// A YAML file of 'kind: Endpoints', or a folder of them, to watch; may be repeated.
    #[arg(long = "source", value_name = "PATH")]
    sources: Vec<PathBuf>,
    /// Give the store a new id before it is served: once, after a copy of it was put back, so that agents and programs
    /// which saw later revisions start over instead of mixing two histories.
    #[arg(long)]
    new_store_id: bool,
    #[command(flatten)]
    logging: Logging,
}

/// Runs until SIGTERM or SIGINT.
pub(crate) async fn run(args: ControlArgs) -> Result<ExitCode, Failure> {
    args.logging.start()?;
    let data_dir = args.data_dir.map_or_else(|| places::state("control"), Ok)?;
    if args.new_store_id {
        let id =
            fairmesh_control::renew_store_id(&data_dir).await.map_err(|error| Failure::stopped(&error))?;
        tracing::warn!(%id, "the store has a new id; every reader takes a snapshot. Leave --new-store-id out next time");
    }
    let config = ControlConfig { data_dir, grpc: args.grpc, http: args.http, sources: args.sources };
    fairmesh_control::run(config, signals::shutdown()?).await.map_err(|error| Failure::stopped(&error))?;
    Ok(ExitCode::SUCCESS)
}
