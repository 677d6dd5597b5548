//! The pods of a node, by address.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use fairmesh_edge::{limits::Limits, metrics::EdgeMetrics, shutdown::Shutdown, tunnel::Tunnels};
use fairmesh_model::ServiceName;
use fairmesh_wire::transport::Transport;
use tokio_util::task::TaskTracker;

use crate::{config::PodConfig, metrics::PodMetrics};

/// A pod, with its transport, tunnels and counters.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) service: ServiceName,
    pub(crate) address: IpAddr,
    /// Transport with the identity of the service.
    pub(crate) transport: Transport,
    pub(crate) metrics: Arc<PodMetrics>,
    /// Forwards and counts the pod's connections.
    pub(crate) tunnels: Tunnels,
}

/// A listener for gateways, and the pods behind it.
#[derive(Debug)]
pub(crate) struct NodeListener {
    pub(crate) address: SocketAddr,
    pub(crate) service: ServiceName,
    pub(crate) transport: Transport,
    /// The pods, by the destination that the PROXY protocol header names.
    pub(crate) pods: BTreeMap<SocketAddr, Arc<Pod>>,
}

/// All pods of the node.
#[derive(Debug)]
pub(crate) struct Pods {
    by_address: BTreeMap<IpAddr, Arc<Pod>>,
    pub(crate) listeners: Vec<Arc<NodeListener>>,
}

/// Limits, shutdown and task tracker, shared by the connections of all pods.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    pub(crate) limits: Limits,
    pub(crate) shutdown: Arc<Shutdown>,
    pub(crate) connections: TaskTracker,
}

impl Pods {
    pub(crate) fn new(configs: Vec<(PodConfig, Transport)>, ends: &Ends) -> Self {
        let mut by_address = BTreeMap::new();
        let mut listeners: BTreeMap<SocketAddr, NodeListener> = BTreeMap::new();
        for (config, transport) in configs {
            let new = || Arc::new(Pod::new(&config, &transport, ends));
            let pod = Arc::clone(by_address.entry(config.address).or_insert_with(new));
            let Some(served) = config.served else { continue };
            let listener = listeners.entry(served.node).or_insert_with(|| NodeListener {
                address: served.node,
                service: config.service.clone(),
                transport,
                pods: BTreeMap::new(),
            });
            listener.pods.insert(served.pod, pod);
        }
        Self { by_address, listeners: listeners.into_values().map(Arc::new).collect() }
    }

    /// The pod whose connections come from this address.
    pub(crate) fn at(&self, address: IpAddr) -> Option<&Arc<Pod>> {
        self.by_address.get(&address)
    }

    /// All pods, by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.by_address.values()
    }

    /// A description of a missing certificate, if some pod has none.
    pub(crate) fn lacks_certificate(&self) -> Option<String> {
        self.iter().find_map(|pod| {
            pod.transport
                .lacks_certificate()
                .map(|problem| format!("{} has no certificate: {problem}", pod.service))
        })
    }
}

impl Pod {
    fn new(config: &PodConfig, transport: &Transport, ends: &Ends) -> Self {
        let Ends { limits, shutdown, connections } = ends.clone();
        let edge = Arc::<EdgeMetrics>::default();
        let tunnels = Tunnels::new(limits, Arc::clone(&edge), shutdown, connections);
        Self {
            service: config.service.clone(),
            address: config.address,
            transport: transport.clone(),
            metrics: Arc::new(PodMetrics::new(edge)),
            tunnels,
        }
    }
}
