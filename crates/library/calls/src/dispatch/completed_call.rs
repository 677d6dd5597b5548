//! Records calls that another component made, from their requests to their responses. They are counted, reported and
//! learnt from as if they had been made here.

use std::{sync::Arc, time::Duration};

use fairmesh_http::h1::BorrowedRequest;
use fairmesh_model::ResponseClass;
use http::StatusCode;
use tokio::time::Instant;

use super::{
    attempt::Attempt,
    borrowed_headers::{BorrowedHeaders, trace_of},
};
use crate::{
    call::{AttemptOutcome, Call, CallStart, nanos},
    discovery::{RouteBackendIndex, ServiceState},
    load_report::LoadRecorder,
    observe::count,
    service::{exported_service::ExportedEndpoint, handle::Handle},
};

/// A completed call whose caller has received the response. The response did not report a server failure.
#[derive(Clone, Copy, Debug)]
pub struct CompletedCall<'a> {
    /// Random seed of the route and the pick.
    pub seed: u64,
    /// Time from the request to the response.
    pub took: Duration,
    /// Status of the response.
    pub status: StatusCode,
    /// Size of the response body in bytes.
    pub body_bytes: usize,
    /// Value of the load report header; empty if there is none.
    pub load: &'a [u8],
}

/// Records a call and returns its route and backend. The endpoint no longer counts the call as outstanding.
pub(crate) fn record_completed(
    handle: &Handle,
    request: &BorrowedRequest<'_>,
    endpoint: &ExportedEndpoint,
    completed: &CompletedCall<'_>,
) -> RouteBackendIndex {
    let mesh = &handle.mesh;
    let now = mesh.clock.at(Instant::now());
    let began = now.saturating_sub(nanos(completed.took));
    let headers = BorrowedHeaders { request, keeps_host: false };
    let start = CallStart { now: began, limit: None, seed: completed.seed };
    let mut call = Call::new(&handle.subscription);
    // Searched at the present time, since the call may have taken longer than traces are remembered.
    call.find_parent(&mesh.clock, now, || trace_of(request));
    call.set_request_bytes(request.body.len() as u64);
    let view = headers.view(handle.default_headers.authority.as_str());
    let Ok(snapshot) = call.route(&view, &handle.context, start) else { return RouteBackendIndex::default() };
    count(&mesh.counters.calls);
    let (pool, index) = (endpoint.pool(), endpoint.index());
    let is_current = matches!(&**snapshot, ServiceState::Ready(ready)
        if ready.opened_transport(index).is_some_and(|opened| Arc::ptr_eq(opened, pool)));
    if !is_current {
        return call.route_backend();
    }
    // Counted as outstanding only for the moment in which its end is recorded.
    call.target().endpoint_stats().begin(index);
    drop(call.take_over(snapshot, index, mesh.clock, began));
    let attempt = Attempt::begin(handle, &call, Arc::clone(pool), began);
    if !completed.load.is_empty() {
        LoadRecorder { pool, clock: mesh.clock }.record_text(completed.load);
    }
    call.record_bytes(completed.body_bytes);
    attempt.poll_load(mesh, &call);
    call.report_response(ResponseClass::of_status(completed.status.as_u16()));
    call.end(AttemptOutcome::Responded);
    call.route_backend()
}
