//! Mirrors calls to another service and discards the responses (ServiceRouter §4.1).
//!
//! A mirrored call never delays the original. Its own task sends it, from a completely buffered body, and it is skipped
//! if too many are in flight. Actions of its own route are not applied: mirrored calls are not mirrored again.

use std::{sync::Arc, time::Duration};

use fairmesh_connections::{EndpointPool, Head, Request, RequestBody};
use fairmesh_model::ServiceName;
use fairmesh_signals::NodeId;
use http::Response;
use http_body_util::BodyExt as _;
use tokio::{sync::OwnedSemaphorePermit, time::timeout};

use super::{context::DispatchContext, retry::execute_attempts, route::route};
use crate::{
    call::{Call, CallContext, CallStart},
    discovery::{ServiceState, Subscription, wait_ready},
    fault::Fault,
    observe::CallInfo,
    response_body::Body,
    service::handle::Handle,
};

/// Maximum size of a mirrored body, in bytes.
const MAX_BODY: u64 = 64 * 1024;
/// Timeout of a mirrored call.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of response bytes that are read to keep the connection for another call.
const MAX_DISCARDED: usize = 64 * 1024;
/// Maximum time to read a response.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// A mirrored call.
struct MirroredCall {
    handle: Handle,
    context: CallContext,
    /// The service whose route mirrors calls.
    from: ServiceName,
    /// The served call on whose behalf the original call is made.
    parent: Option<NodeId>,
    head: Head,
    body: RequestBody,
    /// Permit that is held until the mirrored call ends.
    _permit: OwnedSemaphorePermit,
}

/// Mirrors a call that is about to be made, if a permit is available.
pub(super) fn send(
    dispatch: DispatchContext<'_>,
    call: &Call<'_, Arc<EndpointPool>>,
    service: &ServiceName,
    head: &Head,
    body: &RequestBody,
) {
    let mesh = &dispatch.handle.mesh;
    let copy = body.replay().filter(|_| body.buffered_len() <= MAX_BODY);
    let copy = copy.and_then(|copy| copy.to_body());
    let permits =
        dispatch.options.principal.as_ref().map_or(&mesh.mirror_permits, |principal| &principal.mirrors);
    let permit = Arc::clone(permits).try_acquire_owned();
    let (Some(body), Ok(permit)) = (copy, permit) else {
        return dispatch.handle.count(|counters| &counters.mirrors_skipped);
    };
    dispatch.handle.count(|counters| &counters.mirrored_calls);
    let subscription = match &*dispatch.handle.subscription.state() {
        ServiceState::Ready(ready) => ready.split(service).cloned(),
        _ => None,
    };
    let subscription = subscription.unwrap_or_else(|| mesh.source.subscription(service));
    let key = dispatch.options.key.or(call.policy_key());
    let mirrored = MirroredCall {
        // The mirrored call is counted by the service that was called.
        handle: Handle {
            counters: Arc::clone(&dispatch.handle.counters),
            ..Handle::new(Arc::clone(mesh), subscription)
        },
        from: dispatch.handle.subscription.name().clone(),
        parent: call.parent(),
        context: CallContext { key, timeout: None, ..dispatch.options.clone() },
        head: head.clone(),
        body,
        _permit: permit,
    };
    tokio::spawn(async move {
        let handle = mirrored.handle.clone();
        // The original is limited by its own timeouts, but a mirrored call holds one of a few permits.
        if timeout(CALL_TIMEOUT, mirrored.execute()).await.is_err() {
            handle.count(|counters| &counters.mirrors_failed);
        }
    });
}

impl MirroredCall {
    async fn execute(self) {
        let Self { handle, context, from, parent, head, body, _permit } = self;
        let start = CallStart { now: handle.mesh.clock.now(), limit: None, seed: handle.mesh.seed() };
        let call_info = CallInfo::default();
        let dispatch =
            DispatchContext { handle: &handle, options: &context, start, trace: None, call_info: &call_info };
        match response(dispatch, &from, parent, (head, body)).await {
            Ok(body) => discard(body).await,
            Err(fault) => {
                handle.count(|counters| &counters.mirrors_failed);
                tracing::debug!(service = %handle.subscription.name(), %fault, "a mirrored call failed");
            }
        }
    }
}

async fn response(
    dispatch: DispatchContext<'_>,
    from: &ServiceName,
    parent: Option<NodeId>,
    (head, body): (Head, RequestBody),
) -> Result<Body, Fault> {
    let subscription = &dispatch.handle.subscription;
    accept_mirror(subscription, from).await?;
    let mut call = Call::new(subscription);
    call.set_parent(parent);
    let result = match route(dispatch, &mut call, &head).await {
        Ok(routed) => {
            let mut pending = Some(Request::new(head, body));
            execute_attempts(dispatch, routed, &mut call, &mut pending).await
        }
        Err(fault) => Err(fault),
    };
    result.map(Response::into_body).inspect_err(|fault| call.report_fault(fault.kind().into()))
}

/// Waits for the mirrored service. Its policy must accept copies of calls to the service `from`.
async fn accept_mirror<T>(mirrored: &Arc<Subscription<T>>, from: &ServiceName) -> Result<(), Fault> {
    match &*wait_ready(mirrored, CALL_TIMEOUT).await? {
        ServiceState::Ready(ready) => ready
            .upstream
            .accept_routes_from(from)
            .map_err(|why| Fault::new((&why).into(), format!("{}: {why}", mirrored.name()))),
        _ => Ok(()),
    }
}

/// Reads a short response to its end. Cancels a longer or slower one.
async fn discard(mut body: Body) {
    let short = async {
        let mut left = MAX_DISCARDED;
        while let Some(Ok(frame)) = body.frame().await {
            match left.checked_sub(frame.data_ref().map_or(0, |data| data.len())) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    let _ = timeout(DISCARD_TIMEOUT, short).await;
}
