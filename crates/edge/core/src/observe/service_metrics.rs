//! Counters of one service.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use fairmesh_calls::{Region, forwarding::RouteBackendIndex};
use fairmesh_metrics::{CallOutcome, CallSeries};
use http::StatusCode;

use crate::observe::{grpc_status::GrpcStatusCounts, response_metrics::ResponseMetrics};

/// Counters of the requests of one service.
#[derive(Debug, Default)]
pub struct ServiceMetrics {
    /// Responses by status, route, backend and region.
    pub responses: ResponseMetrics,
    /// Durations of calls by caller, method and status.
    pub calls: CallSeries,
    /// Calls by gRPC status.
    pub grpc_statuses: GrpcStatusCounts,
    /// Responses of the proxy itself, because no server responded.
    pub faults: AtomicU64,
    /// Requests in flight.
    pub in_flight: AtomicU64,
}

impl ServiceMetrics {
    /// Counts a response to an HTTP request with this method and without an exported span. `from` is the
    /// server's region.
    #[inline]
    pub fn record_response(
        &self,
        index: RouteBackendIndex,
        from: Option<&Region>,
        (method, status): (&'static str, StatusCode),
        took: Duration,
    ) {
        self.responses.record(index, from, status, took);
        self.calls.record(None, CallOutcome::Http { method, status: status.as_u16() }, took, None);
    }

    /// Adds the counts of `other`, except requests in flight.
    pub(crate) fn add(&self, other: &Self) {
        self.responses.add(&other.responses);
        self.calls.merge(&other.calls);
        self.grpc_statuses.add(&other.grpc_statuses);
        self.faults.fetch_add(other.faults.load(Relaxed), Relaxed);
    }

    /// Whether any response came from a server.
    pub(crate) fn had_server_response(&self) -> bool {
        self.responses.classes().iter().sum::<u64>() >= self.faults.load(Relaxed)
    }
}
