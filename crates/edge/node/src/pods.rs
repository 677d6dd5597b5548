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

/// A pod as an endpoint or caller of one service, with its transport, tunnels and counters.
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
    /// One entry for each service of each pod.
    all: BTreeMap<(IpAddr, ServiceName), Arc<Pod>>,
    /// The service as which each pod calls: the first that was given for its address.
    callers: BTreeMap<IpAddr, Arc<Pod>>,
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
        let (mut all, mut callers) = (BTreeMap::new(), BTreeMap::new());
        let mut listeners: BTreeMap<SocketAddr, NodeListener> = BTreeMap::new();
        for (config, transport) in configs {
            let new = || Arc::new(Pod::new(&config, &transport, ends));
            let pod = all.entry((config.address, config.service.clone())).or_insert_with(new);
            let pod = Arc::clone(pod);
            callers.entry(config.address).or_insert_with(|| Arc::clone(&pod));
            let Some(served) = config.served else { continue };
            let listener = listeners.entry(served.node).or_insert_with(|| NodeListener {
                address: served.node,
                service: config.service.clone(),
                transport,
                pods: BTreeMap::new(),
            });
            listener.pods.insert(served.pod, pod);
        }
        Self { all, callers, listeners: listeners.into_values().map(Arc::new).collect() }
    }

    /// The pod whose connections come from this address.
    pub(crate) fn at(&self, address: IpAddr) -> Option<&Arc<Pod>> {
        self.callers.get(&address)
    }

    /// Each service of each pod, by address and service.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.all.values()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_of_two_services_calls_as_first_and_is_counted_for_each() {
        let configs = ["red/web@192.0.2.7:7432=10.1.0.2:80", "red/api@192.0.2.7:7433=10.1.0.2:80"]
            .map(|pod| (pod.parse().unwrap(), Transport::default()));
        let ends =
            Ends { limits: Limits::default(), shutdown: Arc::default(), connections: TaskTracker::new() };
        let pods = Pods::new(configs.into(), &ends);
        let service = |pod: &Pod| pod.service.to_string();
        assert_eq!(pods.at([10, 1, 0, 2].into()).map(|pod| service(pod)).as_deref(), Some("red/web"));
        let listeners = pods.listeners.iter().map(|listener| {
            let pods: Vec<_> = listener.pods.values().map(|pod| service(pod)).collect();
            (listener.service.to_string(), pods)
        });
        let of = |name: &str| (name.to_owned(), vec![name.to_owned()]);
        assert_eq!(listeners.collect::<Vec<_>>(), [of("red/web"), of("red/api")]);
        assert_eq!(pods.iter().map(|pod| service(pod)).collect::<Vec<_>>(), ["red/api", "red/web"]);
    }
}
