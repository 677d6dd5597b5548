//! Counts the calls that the kernel sends to programs directly, past the sidecars of their servers and without mutual TLS.
//!
//! These sidecars do not see the calls, so this proxy counts and logs them as they would: by service and by caller, which is this
//! proxy.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use bytes::BytesMut;
use fairmesh_calls::ServiceName;
use fairmesh_edge::observe::{
    observer::{RequestObserver, unix_time},
    request_info::{Arrival, InPlaceResponse, RequestInfo},
    served_metrics::{ServedCaller, ServedMetrics},
};
use fairmesh_http::h1::RequestReader;
use fairmesh_metrics::{CallRow, known_method};
use fairmesh_model::{CallerId, SpiffeId};
use http::StatusCode;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

/// Calls by service. As many services as are published at a time are in use, and those of earlier ones have no series after an
/// hour.
#[derive(Debug, Default)]
pub(crate) struct SidecarBypassCalls(Mutex<BTreeMap<ServiceName, Arc<ServedMetrics>>>);

/// Counts and logs the calls of this proxy to one service. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct SidecarBypassCounter {
    service: ServiceName,
    metrics: Arc<ServedMetrics>,
    caller: Arc<ServedCaller>,
    observer: Arc<RequestObserver>,
}

/// A call whose response the connection of its caller reads. Counted once: by its response, or when it ends without one. Logged
/// when it ends.
#[derive(Debug)]
pub(super) struct UnreadCall {
    counter: SidecarBypassCounter,
    method: &'static str,
    began: Instant,
    /// The status that a listener in front of the program would count without a response.
    unanswered: StatusCode,
    /// The status that was counted, and the time to the response headers.
    counted: OnceLock<(StatusCode, Duration)>,
    /// The request, if it is to be logged.
    request: Option<RequestInfo>,
}

impl SidecarBypassCalls {
    /// Counts the calls to a service in the name of this proxy.
    pub(super) fn counter(
        &self,
        service: &ServiceName,
        caller: &SpiffeId,
        observer: &Arc<RequestObserver>,
    ) -> SidecarBypassCounter {
        let mut services = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Others may hold the counters of a service only while it is published.
        services.retain(|_, metrics| Arc::strong_count(metrics) > 1 || !metrics.call_rows().is_empty());
        let metrics =
            services.entry(service.clone()).or_insert_with(|| Arc::new(ServedMetrics::new(service)));
        let caller = Arc::new(ServedCaller::new(&CallerId::new(caller.clone())));
        let observer = Arc::clone(observer);
        SidecarBypassCounter { service: service.clone(), metrics: Arc::clone(metrics), caller, observer }
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

    /// Logs a call, if the access log selects it.
    pub(super) fn log(&self, request: &RequestInfo, response: InPlaceResponse) {
        self.observer.log_in_place(&self.service, (request, &self.caller), response);
    }

    /// A call with this request, whose response is still to be read by its caller, if that is connected. `is_closed` says that the
    /// program has closed the connection instead.
    pub(super) fn unread(
        &self,
        request: &[u8],
        caller: Option<SocketAddr>,
        began: Instant,
        is_closed: bool,
    ) -> UnreadCall {
        let method = request.split(|byte| *byte == b' ').next().unwrap_or_default();
        let logged_caller = caller.filter(|_| self.observer.access.is_enabled());
        // 499: the caller has disconnected, as in access logs.
        let left = StatusCode::from_u16(499).unwrap_or_default();
        UnreadCall {
            counter: self.clone(),
            method: known_method(str::from_utf8(method).unwrap_or_default()),
            began,
            unanswered: if is_closed { StatusCode::BAD_GATEWAY } else { left },
            counted: OnceLock::new(),
            request: logged_caller.and_then(|caller| read_request(request, caller, began)),
        }
    }
}

/// Reads a request that the kernel sent for this caller.
fn read_request(request: &[u8], caller: SocketAddr, began: Instant) -> Option<RequestInfo> {
    let mut bytes = BytesMut::from(request);
    // Always parses: the kernel's parser is at least as strict.
    let received = RequestReader::default().read(&mut bytes).ok()??;
    let arrival = Arrival { caller, began, length: received.body.left(), is_outside: false };
    let arrived = unix_time().saturating_sub(began.elapsed());
    Some(RequestInfo::new(&received.head.into_parts().0, arrival, arrived))
}

impl UnreadCall {
    pub(super) fn record(&self, status: StatusCode) {
        let took = self.began.elapsed();
        if self.counted.set((status, took)).is_ok() {
            self.counter.record((self.method, status), took);
        }
    }
}

impl Drop for UnreadCall {
    fn drop(&mut self) {
        self.record(self.unanswered);
        if let (Some(request), Some(&(status, took))) = (&self.request, self.counted.get()) {
            let took = [took, self.began.elapsed()];
            self.counter.log(request, InPlaceResponse { status, took, body_bytes: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_edge::observe::observer::ObserverConfig;

    use super::*;

    #[tokio::test]
    async fn unread_call_is_counted_once_with_or_without_response() {
        let calls = SidecarBypassCalls::default();
        let (service, caller) = (ServiceName::new("shop/cart").unwrap(), "spiffe://prod/shop/web");
        let observer = RequestObserver::start(ObserverConfig::default());
        let counter = calls.counter(&service, &caller.parse().unwrap(), &observer);
        let unread = |is_closed| counter.unread(b"PUT /a HTTP/1.1\r\n", None, Instant::now(), is_closed);
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
