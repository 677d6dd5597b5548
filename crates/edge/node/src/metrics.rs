//! Counters of connections and bytes, by pod.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use fairmesh_edge::{listen::unidentified_peers::Unidentified, metrics::EdgeMetrics};
use fairmesh_metrics::Register as _;
use prometheus_client::registry::Registry;

use crate::pods::Pods;

/// The counters of one pod. Both directions share the counters of open connections and bytes.
#[derive(Debug)]
pub(crate) struct PodMetrics {
    edge: Arc<EdgeMetrics>,
    /// Captured connections.
    pub(crate) captured: AtomicU64,
    /// Captured connections that no gateway accepted.
    pub(crate) unreachable: AtomicU64,
    /// Connections that gateways opened to the pod.
    pub(crate) accepted: AtomicU64,
    /// Connections of gateways that the pod did not accept.
    pub(crate) refused: AtomicU64,
}

/// Counters of the node, for connections that belong to no pod.
#[derive(Debug)]
pub(crate) struct NodeMetrics {
    /// Connections whose peer is not yet authenticated as a gateway.
    pub(crate) unidentified: Arc<Unidentified>,
    /// Accepts that waited for a permit or a file descriptor.
    pub(crate) accepts_delayed: AtomicU64,
    /// Connections of gateways refused at the maximum.
    pub(crate) refused_connections: AtomicU64,
    /// Captured connections whose source is no pod, or which were not redirected.
    pub(crate) unknown_sources: AtomicU64,
    /// Connections whose peer is not a gateway, or whose handshake failed.
    pub(crate) refused_peers: AtomicU64,
    /// Connections of gateways without a valid header, or whose header names no pod of the listener.
    pub(crate) invalid_headers: AtomicU64,
}

impl NodeMetrics {
    pub(crate) fn new(unidentified: Arc<Unidentified>) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            unidentified,
            accepts_delayed: zero(),
            refused_connections: zero(),
            unknown_sources: zero(),
            refused_peers: zero(),
            invalid_headers: zero(),
        }
    }
}

impl PodMetrics {
    pub(crate) fn new(edge: Arc<EdgeMetrics>) -> Self {
        let zero = || AtomicU64::new(0);
        Self { edge, captured: zero(), unreachable: zero(), accepted: zero(), refused: zero() }
    }

    /// Counts bytes that were sent before `carry` took over the connection.
    pub(crate) fn count_sent(&self, bytes: u64) {
        self.edge.tunnels.add_bytes(bytes, 0);
    }
}

/// Registers all metrics with their current values.
pub(crate) fn register(registry: &mut Registry, node: &NodeMetrics, pods: &Pods) {
    for (name, help, counter) in [
        (
            "captured_unknown_sources",
            "Captured connections whose source is no pod of the node",
            &node.unknown_sources,
        ),
        (
            "peers_refused",
            "Connections for pods whose peer did not prove to be a gateway",
            &node.refused_peers,
        ),
        (
            "headers_refused",
            "Connections of gateways whose PROXY protocol header names no pod there",
            &node.invalid_headers,
        ),
        (
            "connections_refused",
            "Connections of gateways refused at the maximum of connections",
            &node.refused_connections,
        ),
        (
            "handshakes_refused",
            "Connections for pods refused since their address had its share of unfinished handshakes",
            &node.unidentified.refused,
        ),
        (
            "accepts_delayed",
            "Accepts delayed by the maximum of connections or of descriptors",
            &node.accepts_delayed,
        ),
    ] {
        registry.counter(name, help, counter);
    }
    for (name, help, (kind, value)) in SERIES {
        let rows = pods.iter().map(|pod| {
            let labels =
                [("service", pod.service.to_string().into()), ("pod", pod.address.to_string().into())];
            (labels, value(&pod.metrics))
        });
        match kind {
            Kind::Counter => registry.counters(name, help, rows),
            Kind::Gauge => registry.gauges(name, help, rows),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Counter,
    Gauge,
}

/// Kind and value of a metric of each pod.
type Series = (Kind, fn(&PodMetrics) -> u64);

static SERIES: &[(&str, &str, Series)] = &[
    (
        "pod_connections_captured",
        "Captured connections by pod",
        (Kind::Counter, |pod| pod.captured.load(Relaxed)),
    ),
    (
        "pod_connections_unreachable",
        "Captured connections that no gateway accepted, by pod",
        (Kind::Counter, |pod| pod.unreachable.load(Relaxed)),
    ),
    (
        "pod_connections_accepted",
        "Connections of gateways by pod",
        (Kind::Counter, |pod| pod.accepted.load(Relaxed)),
    ),
    (
        "pod_connections_refused",
        "Connections of gateways that the pod did not accept",
        (Kind::Counter, |pod| pod.refused.load(Relaxed)),
    ),
    (
        "pod_connections_open",
        "Open connections of the pod, in both directions",
        (Kind::Gauge, |pod| pod.edge.tunnels.open()),
    ),
    (
        "pod_sent_bytes",
        "Bytes of closed connections towards their servers, by pod",
        (Kind::Counter, |pod| pod.edge.tunnels.bytes().0),
    ),
    (
        "pod_received_bytes",
        "Bytes of closed connections from their servers, by pod",
        (Kind::Counter, |pod| pod.edge.tunnels.bytes().1),
    ),
];
