//! What is counted of one service.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::observe::{grpc_status::GrpcStatusCounts, response_metrics::ResponseMetrics};

/// What happened to requests of one service.
#[derive(Debug, Default)]
pub(crate) struct ServiceMetrics {
    pub(crate) responses: ResponseMetrics,
    /// By status, where they are answers to calls of gRPC.
    pub(crate) grpc_statuses: GrpcStatusCounts,
    /// Those of them that the proxy answered itself, since no server did.
    pub(crate) faults: AtomicU64,
    pub(crate) in_flight: AtomicU64,
}

impl ServiceMetrics {
    /// Adds what another one counted, but for what is in flight.
    pub(crate) fn add(&self, other: &Self) {
        self.responses.add(&other.responses);
        self.grpc_statuses.add(&other.grpc_statuses);
        self.faults.fetch_add(other.faults.load(Relaxed), Relaxed);
    }

    /// Whether a server ever answered, as far as is counted.
    pub(crate) fn had_server_response(&self) -> bool {
        self.responses.classes().iter().sum::<u64>() >= self.faults.load(Relaxed)
    }
}
