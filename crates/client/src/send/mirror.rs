//! Copies of calls for another service, whose answers nobody sees (ServiceRouter §4.1).
//!
//! A copy never holds up the call that it is of: it is sent by a task of its own, from a body that is at hand as a whole, and
//! left out where too many are under way. It is treated no further: no copies are made of copies.

use std::{sync::Arc, time::Duration};

use fairmesh_model::ServiceName;
use http_body_util::BodyExt as _;
use tokio::{sync::OwnedSemaphorePermit, time::timeout};

use super::{go, route, terms::Terms};
use crate::{
    Body, CallContext, Fault,
    core::{Call, Start, View},
    service::{Handle, ServiceHandle},
    stats::count,
    transport::{Head, Line, Outgoing, Request},
};

/// The longest body that is copied, in bytes.
const LONGEST: u64 = 64 * 1024;
/// How long a copy may take.
const LONGEST_CALL: Duration = Duration::from_secs(15);
/// As much of an answer is read, so that its connection can carry another call.
const READ: usize = 64 * 1024;

/// Sends a copy of a call that is about to be made, if there is room for one.
pub(super) fn send(
    terms: Terms<'_>,
    call: &Call<'_, Arc<Line>>,
    service: &ServiceName,
    head: &Head,
    body: &Outgoing,
) {
    let mesh = &terms.handle.mesh;
    let copy = body.replay().filter(|_| body.at_hand() <= LONGEST);
    let place = Arc::clone(&mesh.mirrors).try_acquire_owned();
    let (Some(copy), Ok(place)) = (copy, place) else {
        return count(&mesh.counters.mirrors_skipped);
    };
    count(&mesh.counters.mirrored);
    let subscription = match &*terms.handle.subscription.view() {
        View::Ready(ready) => ready.split(service).cloned(),
        _ => None,
    };
    let subscription = subscription.unwrap_or_else(|| mesh.source.subscription(service));
    let handle = ServiceHandle::new(Arc::clone(mesh), subscription);
    let key = terms.context.key.or(call.key());
    let context = CallContext { key, timeout: None, ..terms.context.clone() };
    let (head, body) = (head.clone(), copy.again());
    tokio::spawn(async move {
        // What it is a copy of may take as long as it likes; a copy holds one of a few places.
        let carried_out = carry_out(&handle.inner, &context, head, body, place);
        if timeout(LONGEST_CALL, carried_out).await.is_err() {
            count(&handle.inner.mesh.counters.mirrors_failed);
        }
    });
}

async fn carry_out(
    handle: &Handle,
    context: &CallContext,
    head: Head,
    body: Outgoing,
    _place: OwnedSemaphorePermit,
) {
    let start = Start { now: handle.mesh.clock.now(), limit: None, seed: handle.mesh.seed() };
    let terms = Terms { handle, context, start, trace: None };
    match answer(terms, head, body).await {
        Ok(body) => read(body).await,
        Err(fault) => {
            count(&handle.mesh.counters.mirrors_failed);
            tracing::debug!(service = %handle.subscription.name(), %fault, "a copy of a call got no answer");
        }
    }
}

async fn answer(terms: Terms<'_>, head: Head, body: Outgoing) -> Result<Body, Fault> {
    let mut call = Call::new(&terms.handle.subscription);
    let decided = route(terms, &mut call, &head).await?;
    Ok(go(terms, decided, &mut call, &mut Some(Request::new(head, body))).await?.into_body())
}

/// Reads what is short; what is longer, or comes late, is given up.
async fn read(mut body: Body) {
    let short = async {
        let mut left = READ;
        while let Some(Ok(frame)) = body.frame().await {
            match left.checked_sub(frame.data_ref().map_or(0, |data| data.len())) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    let _ = timeout(Duration::from_secs(5), short).await;
}
