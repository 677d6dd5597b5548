//! `fairmesh node`.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use fairmesh_console::{connect, failure::Failure, stop_signals};
use fairmesh_model::{ServiceName, SpiffePath, Zone, spec};
use fairmesh_node::{NodeConfig, PodConfig};
use fairmesh_proxy::Limits;
use fairmesh_wire::transport::{Address, Transport};

use super::daemon_args::AdminAddress;
use crate::logging::Logging;

/// Arguments of `fairmesh node`.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// A pod of this node with its service: tenant/service=ip for a pod that only calls, or
    /// tenant/service@node-ip:port=pod-ip:port for an endpoint, where gateways reach the pod at node-ip:port. May be
    /// repeated; all pods belong to one tenant.
    #[arg(long = "pod", value_name = "POD", required = true)]
    pods: Vec<PodConfig>,
    /// The address of a replica of the gateway. May be repeated.
    #[arg(long = "gateway", value_name = "IP:PORT", required = true)]
    gateways: Vec<SocketAddr>,
    /// The zone of the node, whose backends of the gateway are used first [default: the home zone of each service].
    #[arg(long, value_name = "ZONE")]
    zone: Option<Zone>,
    /// Address for captured connections: 'fairmesh proxy capture --at ADDRESS --from NETWORK' redirects them.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7415")]
    capture: SocketAddr,
    /// Address of /metrics, /healthz and /readyz, or 'none'.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7416")]
    admin: AdminAddress,
    /// A Unix socket for hot upgrades: a node started with the same path takes over the listeners of the running one, which then
    /// drains and ends.
    #[arg(long, value_name = "PATH")]
    handover: Option<PathBuf>,
    /// The agent of this machine, which gives the identities of pods and registers their endpoints [default: FAIRMESH_AGENT, else the
    /// agent's default socket].
    #[arg(long, value_name = "ADDRESS")]
    agent: Option<Address>,
    /// Log each connection when it ends: pod, addresses, bytes, and the id by which the gateway's access log names it.
    #[arg(long)]
    connection_log: bool,
    /// Maximum number of connections in each direction; further captured ones wait, and those of gateways are refused.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    max_connections: usize,
    /// Time limit for open connections after SIGTERM, or once a successor serves.
    #[arg(long, value_name = "DURATION", value_parser = spec::read_duration, default_value = "25s")]
    drain_deadline: Duration,
    /// Idle timeout of connections.
    #[arg(long, value_name = "DURATION", value_parser = spec::read_duration, default_value = "1h")]
    idle_timeout: Duration,
    #[command(flatten)]
    logging: Logging,
}

/// Serves until SIGTERM or SIGINT, or until a successor serves; then drains.
pub async fn run(args: NodeArgs) -> Result<ExitCode, Failure> {
    args.logging.start()?;
    let shutdown = stop_signals::shutdown()?;
    let agent = args.agent.clone().unwrap_or_else(connect::agent);
    let identities = identities(&args.pods, &agent).await?;
    let pods = args.pods.iter().filter_map(|pod| Some((pod.clone(), identities.get(&pod.service)?.clone())));
    let config = NodeConfig {
        pods: pods.collect(),
        capture: args.capture,
        gateways: args.gateways,
        zone: args.zone,
        registry: vec![agent],
        admin: args.admin.0,
        handover: args.handover,
        limits: Limits {
            connections: args.max_connections,
            tunnel_idle: args.idle_timeout,
            drain: args.drain_deadline,
            ..Limits::default()
        },
        logs_connections: args.connection_log,
    };
    fairmesh_node::run(config, shutdown).await.map_err(|error| Failure::stopped(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the identity of each pod's service. A node has no identity of its own.
async fn identities(
    pods: &[PodConfig],
    agent: &Address,
) -> Result<BTreeMap<ServiceName, Transport>, Failure> {
    let mut identities = BTreeMap::new();
    for PodConfig { service, .. } in pods {
        if identities.contains_key(service) {
            continue;
        }
        let path = SpiffePath::Service(service.clone());
        let software = format!("node {service}");
        let transport = connect::transport_of_agent(agent.clone(), Some(path), software).await;
        connect::require_identity(&transport)?;
        identities.insert(service.clone(), transport);
    }
    Ok(identities)
}
