use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use fairmesh_model::{Label, ServiceName};

/// The most services of a report: those with the most requests and connections.
pub const MAX_SERVICES: usize = 64;

/// What a replica counted in one interval, and what it had at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Where nodes connect. It identifies the replica: a successor by hot upgrade has the same one.
    pub address: SocketAddr,
    /// `None`: a replica that serves all services.
    pub backend: Option<Label>,
    /// The length of the interval.
    pub span: Duration,
    /// CPU time used in it.
    pub cpu: Duration,
    /// CPU limit in thousandths of a core; `None`: unknown.
    pub limit_millicores: Option<u32>,
    /// Resident memory in bytes.
    pub memory: u64,
    /// Open connections of nodes.
    pub open: u64,
    /// Connections in the interval, those that were refused included.
    pub accepted: u64,
    /// Requests of all services.
    pub all: ServiceCounts,
    /// At most [`MAX_SERVICES`].
    pub services: BTreeMap<ServiceName, ServiceCounts>,
    /// Whether the replica ends.
    pub is_leaving: bool,
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
