//! Records calls whose responses reached the callers unchanged, either from the kernel or relayed, as if the
//! proxy had made them.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use bytes::BytesMut;
use fairmesh_calls::forwarding::{
    CompletedCall, RouteBackendIndex, record_completed as record_call, route_backend_name,
};
use fairmesh_edge::{
    observe::{
        observer::unix_time,
        request_info::{Arrival, InPlaceResponse, RequestInfo, RequestOutcome},
    },
    services::host_cache::HostCache,
};
use fairmesh_http::h1::{BorrowedRequest, RequestReader, header_storage};
use fairmesh_kernel::{COMPLETED_AT_ONCE, CompletedCall as KernelCall, program_clock};
use fairmesh_metrics::known_method;
use http::StatusCode;
use tokio::time::{Instant, timeout};

use crate::kernel::attached_maps::Attached;

/// Interval at which the ring of completed calls is read while it contains calls: 200 wake-ups per second. Picks
/// therefore use load reports of at most this age.
const BUSY_INTERVAL: Duration = Duration::from_millis(5);
/// Interval at which the ring is read while it is empty. The ring has room for the calls of a fast machine in that
/// time; further calls go through the proxy.
const IDLE_INTERVAL: Duration = Duration::from_millis(100);

/// Records completed calls, until the kernel sends no more requests for this proxy and the last calls are recorded.
pub(super) async fn record_completed(attached: Arc<Attached>) {
    let Some(sender) = attached.sender() else { return };
    let hosts = HostCache::default();
    let mut departed = HashMap::new();
    loop {
        // Read before the last look at the ring, so that no call is missed.
        let is_over = attached.released.is_cancelled();
        // The last calls of these callers were in the ring before they disconnected.
        departed.extend(attached.departed().drain());
        let taken = sender.take_completed(|call| {
            let caller = attached.callers().get(&call.cookie).map(|caller| {
                caller.note_completed();
                caller.address
            });
            // A disconnecting caller is entered here before it is removed from the callers.
            let gone = || attached.departed().get(&call.cookie).copied();
            let caller = caller.or_else(|| departed.get(&call.cookie).copied()).or_else(gone);
            record(&attached, &hosts, &call, caller);
        });
        if is_over && taken == 0 {
            return;
        }
        if taken < COMPLETED_AT_ONCE {
            departed.clear();
        }
        let interval = if taken > 0 { BUSY_INTERVAL } else { IDLE_INTERVAL };
        // The wait ends early when the last calls may have arrived.
        let _ = timeout(interval, attached.released.cancelled()).await;
    }
}

/// Records a call of this caller whose response was forwarded unchanged.
pub(super) fn record(
    attached: &Attached,
    hosts: &HostCache,
    call: &KernelCall<'_>,
    caller: Option<SocketAddr>,
) {
    let forwarder = &attached.forwarder;
    let mut storage = header_storage();
    // Always parses: the kernel's parser is at least as strict.
    let Some(request) = BorrowedRequest::read_head(call.head, &mut storage, |_| false) else { return };
    let Ok(target) = hosts.get(request.host, || forwarder.services.by_host(request.host)) else { return };
    let Ok(status) = StatusCode::from_u16(call.status) else { return };
    let response = (known_method(request.method), status);
    // An endpoint that was published later at the same position is not the call's.
    let endpoint = attached.endpoint(call.endpoint).filter(|endpoint| endpoint.published_at <= call.sent);
    let Some(endpoint) = endpoint else {
        return target.metrics.record_response(RouteBackendIndex::default(), None, response, call.took);
    };
    if let Some(counter) = endpoint.in_place.get() {
        counter.record(response, call.took);
    }
    let completed = CompletedCall {
        seed: call.seed,
        took: call.took,
        status,
        body_bytes: call.body_bytes as usize,
        load: call.load,
    };
    let route_backend = record_call(&target.handle, &request, &endpoint.endpoint, &completed);
    let region = &endpoint.endpoint.target().location.region;
    target.metrics.record_response(route_backend, Some(region), response, call.took);
    let now = Instant::now();
    let began = now.checked_sub(call.took).unwrap_or(now);
    let Some(caller) = caller.filter(|_| forwarder.observer.may_observe(&target, began)) else { return };
    let mut bytes = BytesMut::from(call.head);
    let Ok(Some(received)) = RequestReader::default().read(&mut bytes) else { return };
    let arrival = Arrival { caller, began, length: received.body.left(), is_outside: false };
    let outcome = RequestOutcome {
        status,
        route_backend: Some(route_backend_name(&target.handle, route_backend)),
        injected: None,
        fault: None,
        message: None,
        server: Some(endpoint.endpoint.target().clone()),
        attempts: 1,
        took: call.took,
        attempt_log: Vec::new(),
        decision_steps: Vec::new(),
    };
    let arrived = unix_time().saturating_sub(program_clock().saturating_sub(call.sent));
    let request = RequestInfo::new(&received.head.into_parts().0, arrival, arrived);
    if let Some(counter) = endpoint.in_place.get() {
        let body_bytes = Some(call.body_bytes.into());
        counter.log(&request, InPlaceResponse { status, took: [call.took; 2], body_bytes });
    }
    forwarder.observer.observe_completed(&target, request, outcome, call.body_bytes.into());
}
