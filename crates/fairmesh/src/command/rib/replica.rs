//! `fairmesh rib replica`.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use fairmesh_replica::ReplicaConfig;
use fairmesh_wire::transport::Address;

use crate::{
    command::{
        places,
        process::{Metrics, host_name},
    },
    failure::Failure,
    logging::Logging,
    signals,
};

/// Arguments of `fairmesh rib replica`.
#[derive(Debug, Args)]
pub(crate) struct ReplicaArgs {
    /// Whom to follow, the control plane or a replica nearer to it: host:port or unix:/path; several are tried in turn.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', required = true)]
    upstream: Vec<Address>,
    /// Where agents and further replicas connect: host:port or unix:/path; may be repeated.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7403")]
    listen: Vec<Address>,
    /// Where the copy of the routing information is kept [default: /var/lib/fairmesh/replica, or below
    /// ~/.local/state/fairmesh when not root].
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// What others call this replica, for people [default: the host's name].
    #[arg(long)]
    name: Option<String>,
    /// Where /metrics, /healthz and /readyz are, or 'none'.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7404")]
    metrics: Metrics,
    #[command(flatten)]
    logging: Logging,
}

/// Runs until SIGTERM or SIGINT.
pub(super) async fn run(args: ReplicaArgs) -> Result<ExitCode, Failure> {
    args.logging.start()?;
    let config = ReplicaConfig {
        upstreams: args.upstream,
        listen: args.listen,
        state_dir: args.state_dir.map_or_else(|| places::state("replica"), Ok)?,
        name: args.name.unwrap_or_else(host_name),
        metrics: args.metrics.0,
    };
    fairmesh_replica::run(config, signals::shutdown()?).await.map_err(|error| Failure::stopped(&error))?;
    Ok(ExitCode::SUCCESS)
}
