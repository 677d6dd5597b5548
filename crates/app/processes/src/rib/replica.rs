//! `fairmesh rib replica`.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::Args;
use fairmesh_console::{connect, default_paths, failure::Failure, stop_signals};
use fairmesh_model::{Label, MeshRole, Region, SpiffePath};
use fairmesh_replica::ReplicaConfig;
use fairmesh_wire::transport::{Address, Transport};

use crate::{
    daemon_args::{AdminAddress, host_name},
    logging::Logging,
};

/// Arguments of `fairmesh rib replica`.
#[derive(Debug, Args)]
pub struct ReplicaArgs {
    /// The control plane or replica to follow: host:port or unix:/path; several are attempted in order.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', required = true)]
    upstream: Vec<Address>,
    /// Address for agents and further replicas: host:port or unix:/path; may be repeated.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7403")]
    listen: Vec<Address>,
    /// Directory of the copy of the routing information [default: /var/lib/fairmesh/replica, or below
    /// ~/.local/state/fairmesh when not root].
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Name of this replica, for people [default: the host's name].
    #[arg(long)]
    name: Option<String>,
    /// The agent of this machine, which gives the replica its identity if the mesh has a trust domain; it follows another
    /// control plane or replica [default: FAIRMESH_AGENT, else the agent's default socket].
    #[arg(long, value_name = "ADDRESS")]
    agent: Option<Address>,
    /// Accept and open connections over TCP only with an identity, from the start on: for a mesh with a trust domain.
    /// Without it, a process that starts before its agent responds uses plaintext until it learns of the trust domain.
    #[arg(long)]
    require_identity: bool,
    /// The region of this replica, for 'fairmesh rib status'.
    #[arg(long, env = "FAIRMESH_REGION")]
    region: Option<Region>,
    /// The address at which 'fairmesh rib status' reaches this replica; may be repeated [default: its listeners, with
    /// the host's name for wildcard addresses].
    #[arg(long, value_name = "ADDRESS")]
    advertise: Vec<Address>,
    /// Address of /metrics, /healthz and /readyz, or 'none'.
    #[arg(long, alias = "metrics", value_name = "ADDRESS", default_value = "127.0.0.1:7404")]
    admin: AdminAddress,
    #[command(flatten)]
    logging: Logging,
}

/// Runs until SIGTERM or SIGINT.
pub(super) async fn run(args: ReplicaArgs) -> Result<ExitCode, Failure> {
    args.logging.start()?;
    let name = args.name.unwrap_or_else(host_name);
    let transport = mesh_transport(args.agent.unwrap_or_else(connect::agent), &name).await?;
    if args.require_identity {
        connect::require_identity(&transport)?;
    }
    let config = ReplicaConfig {
        transport,
        upstreams: args.upstream,
        advertise: match args.advertise.is_empty() {
            true => args.listen.iter().map(reachable).collect(),
            false => args.advertise,
        },
        listen: args.listen,
        state_dir: args.state_dir.map_or_else(|| default_paths::state("replica"), Ok)?,
        name,
        region: args.region,
        metrics: args.admin.0,
    };
    fairmesh_replica::run(config, stop_signals::shutdown()?)
        .await
        .map_err(|error| Failure::stopped(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Determines how the replica opens and accepts connections.
async fn mesh_transport(agent: Address, name: &str) -> Result<Transport, Failure> {
    let label = Label::new(name.to_ascii_lowercase());
    let label = label.map_err(|error| Failure::refused(error, "give another name with --name"))?;
    let path = SpiffePath::Mesh(MeshRole::Replica, label);
    Ok(connect::transport_of_agent(agent, Some(path), format!("replica {name}")).await)
}

/// Returns the address at which others reach a listener.
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
    fn replica_listeners_are_advertised_at_reachable_addresses() {
        let told = |text: &str| reachable(&text.parse().unwrap()).to_string();
        assert_eq!(told("10.0.0.7:7403"), "10.0.0.7:7403");
        assert_eq!(told("unix:/run/replica.sock"), "unix:/run/replica.sock");
        assert_eq!(told("0.0.0.0:7403"), format!("{}:7403", host_name()));
        assert_eq!(told("[::]:7403"), format!("{}:7403", host_name()));
    }
}
