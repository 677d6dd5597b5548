//! Counters of one service.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::observe::{grpc_status::GrpcStatusCounts, response_metrics::ResponseMetrics};

/// Counters of the requests of one service.
#[derive(Debug, Default)]
pub struct ServiceMetrics {
    /// By status, route, backend and region.
    pub responses: ResponseMetrics,
    /// By gRPC status.
    pub grpc_statuses: GrpcStatusCounts,
    /// Responses of the proxy itself because no server responded.
    pub faults: AtomicU64,
    /// Requests in flight.
    pub in_flight: AtomicU64,
}

impl ServiceMetrics {
    /// Adds the counts of `other`, except requests in flight.
    pub(crate) fn add(&self, other: &Self) {
        self.responses.add(&other.responses);
        self.grpc_statuses.add(&other.grpc_statuses);
        self.faults.fetch_add(other.faults.load(Relaxed), Relaxed);
    }

    /// Whether any response came from a server.
    pub(crate) fn had_server_response(&self) -> bool {
        self.responses.classes().iter().sum::<u64>() >= self.faults.load(Relaxed)
    }
}
