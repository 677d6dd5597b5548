//! Counts the calls that the kernel sends to programs directly, past the sidecars of their servers and without mutual TLS.
//!
//! These sidecars do not see the calls, so this proxy counts them as they would: by service and by caller, which is this
//! proxy.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::ServiceName;
use fairmesh_edge::observe::served_metrics::{ServedCaller, ServedMetrics};
use fairmesh_metrics::{CallRow, known_method};
use fairmesh_model::{CallerId, SpiffeId};
use http::StatusCode;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

/// Calls by service. As many services as are published at a time are in use, and those of earlier ones have no series after an
/// hour.
#[derive(Debug, Default)]
pub(crate) struct SidecarBypassCalls(Mutex<BTreeMap<ServiceName, Arc<ServedMetrics>>>);

/// Counts the calls of this proxy to one service. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct SidecarBypassCounter {
    metrics: Arc<ServedMetrics>,
    caller: Arc<ServedCaller>,
}

/// A call whose response the connection of its caller reads. Counted once: by its response, or when it ends without one.
#[derive(Debug)]
pub(super) struct UnreadCall {
    counter: SidecarBypassCounter,
    method: &'static str,
    began: Instant,
    /// The status that a listener in front of the program would count without a response.
    unanswered: StatusCode,
    is_counted: AtomicBool,
}

impl SidecarBypassCalls {
    /// Counts the calls to a service in the name of this proxy.
    pub(super) fn counter(&self, service: &ServiceName, caller: &SpiffeId) -> SidecarBypassCounter {
        let mut services = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Others may hold the counters of a service only while it is published.
        services.retain(|_, metrics| Arc::strong_count(metrics) > 1 || !metrics.call_rows().is_empty());
        let metrics =
            services.entry(service.clone()).or_insert_with(|| Arc::new(ServedMetrics::new(service)));
        let caller = ServedCaller::new(&CallerId::new(caller.clone()));
        SidecarBypassCounter { metrics: Arc::clone(metrics), caller: Arc::new(caller) }
    }

    /// Registers the responses by service and caller. There are none without the kernel form.
    pub(super) fn register(&self, registry: &mut Registry) {
        let services = self.services();
        if !services.is_empty() {
            ServedMetrics::register_responses(
                &services,
                registry.sub_registry_with_prefix("in_place_of_mtls"),
            );
        }
    }

    /// Durations of the calls, on the server's side.
    pub(crate) fn call_rows(&self) -> Vec<CallRow> {
        self.services().iter().flat_map(|metrics| metrics.call_rows()).collect()
    }

    fn services(&self) -> Vec<Arc<ServedMetrics>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

impl SidecarBypassCounter {
    /// Counts a response to a request with this method.
    pub(super) fn record(&self, response: (&'static str, StatusCode), took: Duration) {
        self.metrics.record_unseen(&self.caller, response, took);
    }

    /// A call with this request, whose response is still to be read. `is_closed` says that the program has closed the connection
    /// instead.
    pub(super) fn unread(&self, request: &[u8], began: Instant, is_closed: bool) -> UnreadCall {
        let method = request.split(|byte| *byte == b' ').next().unwrap_or_default();
        // 499: the caller has disconnected, as in access logs.
        let left = StatusCode::from_u16(499).unwrap_or_default();
        UnreadCall {
            counter: self.clone(),
            method: known_method(str::from_utf8(method).unwrap_or_default()),
            began,
            unanswered: if is_closed { StatusCode::BAD_GATEWAY } else { left },
            is_counted: AtomicBool::new(false),
        }
    }
}

impl UnreadCall {
    pub(super) fn record(&self, status: StatusCode) {
        if !self.is_counted.swap(true, Relaxed) {
            self.counter.record((self.method, status), self.began.elapsed());
        }
    }
}

impl Drop for UnreadCall {
    fn drop(&mut self) {
        self.record(self.unanswered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_call_is_counted_once_with_or_without_response() {
        let calls = SidecarBypassCalls::default();
        let (service, caller) = (ServiceName::new("shop/cart").unwrap(), "spiffe://prod/shop/web");
        let counter = calls.counter(&service, &caller.parse().unwrap());
        let unread = |is_closed| counter.unread(b"PUT /a HTTP/1.1\r\n", Instant::now(), is_closed);
        let answered = unread(false);
        answered.record(StatusCode::CREATED);
        drop((answered, unread(false), unread(true)));
        let mut statuses: Vec<_> = calls.call_rows().iter().map(|row| row.outcome).collect();
        statuses.sort_by_key(|outcome| format!("{outcome:?}"));
        let expected =
            [201, 499, 502].map(|status| fairmesh_metrics::CallOutcome::Http { method: "PUT", status });
        assert_eq!(statuses, expected);
        assert!(calls.call_rows().iter().all(|row| row.caller == "shop/web" && row.callee == "shop/cart"));
    }
}
