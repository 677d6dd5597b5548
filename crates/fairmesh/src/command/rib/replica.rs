//! `fairmesh rib replica`.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::Args;
use fairmesh_model::Region;
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
    /// The region that this replica is in, for 'fairmesh rib status'.
    #[arg(long, env = "FAIRMESH_REGION")]
    region: Option<Region>,
    /// Where 'fairmesh rib status' reaches this replica; may be repeated [default: where it listens, by the host's name
    /// for 0.0.0.0 and its like of IPv6].
    #[arg(long, value_name = "ADDRESS")]
    advertise: Vec<Address>,
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
        advertise: match args.advertise.is_empty() {
            true => args.listen.iter().map(reachable).collect(),
            false => args.advertise,
        },
        listen: args.listen,
        state_dir: args.state_dir.map_or_else(|| places::state("replica"), Ok)?,
        name: args.name.unwrap_or_else(host_name),
        region: args.region,
        metrics: args.metrics.0,
    };
    fairmesh_replica::run(config, signals::shutdown()?).await.map_err(|error| Failure::stopped(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Where others reach what listens here.
fn reachable(listen: &Address) -> Address {
    if let Address::Tcp(text) = listen
        && let Ok(address) = text.parse::<SocketAddr>()
        && address.ip().is_unspecified()
    {
        return Address::Tcp(format!("{}:{}", host_name(), address.port()));
    }
    listen.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_told_as_others_reach_it() {
        let told = |text: &str| reachable(&text.parse().unwrap()).to_string();
        assert_eq!(told("10.0.0.7:7403"), "10.0.0.7:7403");
        assert_eq!(told("unix:/run/replica.sock"), "unix:/run/replica.sock");
        assert_eq!(told("0.0.0.0:7403"), format!("{}:7403", host_name()));
        assert_eq!(told("[::]:7403"), format!("{}:7403", host_name()));
    }
}
