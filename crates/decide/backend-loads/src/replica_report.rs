use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use fairmesh_model::{Label, ServiceName};

/// Maximum number of services in a report: those with the most requests and connections.
pub const MAX_SERVICES: usize = 64;

/// Counters of a replica over one interval, and its gauges at the end of the interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Address at which nodes connect. Identifies the replica: a successor by hot upgrade has the same address.
    pub address: SocketAddr,
    /// Backend of the replica. `None` if the replica serves all services.
    pub backend: Option<Label>,
    /// Length of the interval.
    pub span: Duration,
    /// CPU time used in the interval.
    pub cpu: Duration,
    /// CPU limit in thousandths of a core. `None` if unknown.
    pub limit_millicores: Option<u32>,
    /// Resident memory in bytes.
    pub memory: u64,
    /// Open connections from nodes.
    pub open: u64,
    /// New connections in the interval, including refused ones. Those whose peer left before it said who it is count beyond one for
    /// each other connection.
    pub accepted: u64,
    /// Counts of all services together.
    pub all: ServiceCounts,
    /// Counts by service, at most [`MAX_SERVICES`].
    pub services: BTreeMap<ServiceName, ServiceCounts>,
    /// Whether the replica is shutting down.
    pub is_leaving: bool,
    /// Whether this is the first report of a process that has not taken over from a running one.
    pub is_first: bool,
    /// The address that the replicas of the backend share, if they do.
    pub entry: Option<EntryLoad>,
}

/// The address that the replicas of a backend share, as one of them sees it. Packets are counts of the interval in a report, and
/// thousandths per second in a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryLoad {
    /// The address.
    pub address: SocketAddr,
    /// Buckets whose new connections come to this replica.
    pub head_buckets: u32,
    /// All buckets.
    pub buckets: u32,
    /// First packets of connections that began here.
    pub begun: u64,
    /// Packets passed on to other replicas.
    pub passed_on: u64,
    /// Packets of connections that no replica holds.
    pub unclaimed: u64,
    /// Replicas whose machines do not answer.
    pub unreachable: Vec<SocketAddr>,
}

impl EntryLoad {
    /// The load for a report of an interval.
    pub(crate) fn per_second(self, span: Duration) -> Self {
        let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = |count: u64| count.saturating_mul(1_000_000) / millis;
        Self {
            begun: rate(self.begun),
            passed_on: rate(self.passed_on),
            unclaimed: rate(self.unclaimed),
            ..self
        }
    }
}

/// Counts of one service in the interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceCounts {
    /// Requests with a response, errors included.
    pub requests: u64,
    /// Responses with a status of 4xx or 5xx.
    pub errors: u64,
    /// Connections to the virtual address of the service.
    pub connections: u64,
}
