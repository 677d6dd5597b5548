//! A service that is called through the proxy.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Relaxed},
        },
    },
    time::Duration,
};

use bytes::Bytes;
use fairmesh_client::{BodyEnd, Region, ServiceHandle, Watch, core::View};
use http_body::Frame;
use tokio::time::Instant;

use crate::observe::{recent_requests::LastRequest, service_metrics::ServiceMetrics};

/// A service with what is counted of it.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) handle: ServiceHandle,
    pub(crate) metrics: ServiceMetrics,
    /// The last request of it that was looked at.
    pub(crate) last: LastRequest,
    /// Whether it has series of its own.
    pub(crate) is_labelled: bool,
    /// Whether it is followed though it is not called.
    pub(crate) is_pinned: AtomicBool,
    pub(crate) activity: Mutex<Activity>,
    pub(crate) forgotten: AtomicBool,
}

impl Target {
    pub(crate) fn new(handle: ServiceHandle, is_labelled: bool) -> Self {
        Self {
            handle,
            metrics: ServiceMetrics::default(),
            last: LastRequest::default(),
            is_labelled,
            is_pinned: AtomicBool::new(false),
            activity: Mutex::default(),
            forgotten: AtomicBool::new(false),
        }
    }

    /// Whether its name has to be looked up again.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Acquire)
    }

    /// What is known of it now: the region from which it is called, and the revision that this is by.
    pub(crate) fn home_and_revision(&self) -> Option<(Region, u64)> {
        match &*self.handle.view() {
            View::Ready(ready) => Some((ready.upstream.home().clone(), ready.revision)),
            _ => None,
        }
    }
}

/// Since when how many requests were counted, by the last look.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    pub(crate) requests: u64,
    pub(crate) since: Option<Instant>,
}

impl Target {
    /// Whether nothing was asked of it for so long. Looks find that out by what is counted anyway, so that requests need not say
    /// when they come.
    pub(crate) fn is_idle(&self, now: Instant, idle_for: Duration) -> bool {
        let requests = self.metrics.responses.classes().iter().sum();
        let mut activity = self.activity.lock().unwrap_or_else(PoisonError::into_inner);
        if activity.requests != requests || self.metrics.in_flight.load(Relaxed) > 0 {
            *activity = Activity { requests, since: Some(now) };
        }
        let since = *activity.since.get_or_insert(now);
        !self.is_pinned.load(Acquire) && now.duration_since(since) >= idle_for
    }
}

/// Answers of a service that speaks gRPC, whose status comes behind them.
impl Watch for Target {
    fn frame(&self, frame: &Frame<Bytes>) {
        if let Some(trailers) = frame.trailers_ref() {
            self.metrics.grpc_statuses.record(trailers);
        }
    }

    fn ended(&self, end: BodyEnd) {
        if end != BodyEnd::Whole {
            self.metrics.grpc_statuses.record_missing();
        }
    }
}
