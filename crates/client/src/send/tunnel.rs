//! A connection in place of a call: the same pick and the same retries, and nothing is sent.

use std::sync::Arc;

use bytes::BytesMut;
use http::request::Parts;

use super::{HeadersView, decide, leased, ready, route, terms::Terms, treated};
use crate::{
    Fault, FaultKind, Retry,
    body::Attempt,
    core::{Call, Ending, Next, Sight, Start, View, nanos},
    service::Handle,
    stats::count,
    transport::{Head, Line, SendError},
    tunnel::{Connected, Tunnel},
};

/// Connects to a server, or to another one where that fails. Of its route's actions none but the limit is applied.
pub(crate) async fn connect(handle: &Handle, mut parts: Parts) -> Result<Tunnel, Fault> {
    let connected = async {
        let (context, start) = begin(handle, &parts)?;
        let terms = Terms { handle, context: &context, start, trace: None };
        let head = Head::take(handle, &mut parts)?;
        let mut call = Call::new(&handle.subscription);
        let routed = route(terms, &mut call, &head).await?;
        tries(terms, &mut call, routed).await
    };
    counted(handle, connected).await
}

/// Makes the tunnel that a request asks for with CONNECT as its route wants, where `allowed`, or where the route names that method.
pub(crate) async fn open(handle: &Handle, mut parts: Parts, allowed: bool) -> Result<Connected, Fault> {
    let opened = async {
        let (context, start) = begin(handle, &parts)?;
        let terms = Terms { handle, context: &context, start, trace: None };
        let head = Head::take(handle, &mut parts)?;
        if !allowed && !is_named(terms, &head).await? {
            return Ok(Connected::Refused);
        }
        let mut call = Call::new(&handle.subscription);
        drop(route(terms, &mut call, &head).await?);
        if let Some(treatment) = call.treatment().cloned() {
            if let Some(answer) = treated::instead(terms, &treatment, &head) {
                return Ok(Connected::Answered(answer));
            }
            treated::delay(terms, &treatment, &call).await?;
        }
        // Time has passed since it was routed: the service was waited for, or the route delayed the call.
        let current = (handle.mesh.clock.now(), call.look());
        tries(terms, &mut call, current).await.map(Connected::Tunnel)
    };
    counted(handle, opened).await
}

/// Counts a call, and what became of it.
async fn counted<T>(handle: &Handle, call: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let counters = &handle.mesh.counters;
    count(&counters.calls);
    let ended = call.await;
    if ended.is_err() {
        count(&counters.faults);
    }
    ended
}

/// With what a call begins.
fn begin<'a>(
    handle: &'a Handle,
    parts: &Parts,
) -> Result<(std::borrow::Cow<'a, crate::CallContext>, Start), Fault> {
    let mesh = &handle.mesh;
    let (context, limit) = handle.terms(parts)?;
    let start = Start { now: mesh.clock.now(), limit, seed: mesh.seed() };
    if limit.is_some_and(|left| left.is_zero()) {
        let terms = Terms { handle, context: &context, start, trace: None };
        return Err(terms.late(start.now, "nothing was sent").with_retry(Retry::Unsent));
    }
    Ok((context, start))
}

/// Whether the route of a request names CONNECT. Looked at before the call is routed, since a limit counts what is.
async fn is_named(terms: Terms<'_>, head: &Head) -> Result<bool, Fault> {
    let Terms { handle, context, start, .. } = terms;
    let limits = [start.limit, context.timeout];
    let patience = limits.into_iter().flatten().min().unwrap_or(super::FIRST_CONTACT);
    let view = ready(&handle.subscription, patience).await?;
    let headers = HeadersView(&head.headers);
    Ok(matches!(&*view, View::Ready(ready) if ready.upstream.names_connect(&head.view(&headers))))
}

/// Makes tries until a server is connected to.
async fn tries(
    terms: Terms<'_>,
    call: &mut Call<'_, Arc<Line>>,
    routed: (u64, Sight<Arc<Line>>),
) -> Result<Tunnel, Fault> {
    let mesh = &terms.handle.mesh;
    let ((mut now, mut view), _) = leased::turn(terms, call, routed, None).await;
    loop {
        let line = decide(terms, call, view, &mut now).await?;
        count(&mesh.counters.tries);
        // Half, as for a request: the rest is for another server.
        let half = now + nanos(call.left_before_request(now)) / 2;
        let connected_by = mesh.clock.instant(half.min(call.try_ends(now)));
        let error = match line.open_raw(connected_by).await {
            Ok((io, open)) => {
                call.end(Ending::Answered);
                let attempt = Attempt::of_tunnel(call, line, mesh.clock);
                let nothing = || Fault::new(FaultKind::NoEndpoints, "no endpoint was chosen");
                return Ok(Tunnel::new(io, BytesMut::new(), Some(open), attempt.ok_or_else(nothing)?));
            }
            Err(error) => error,
        };
        let (ending, fault) = judge(error, call, &line);
        drop(line);
        match call.finish(ending, mesh.seed()) {
            Next::Retry { after } if after.is_zero() => {}
            Next::Retry { after } => tokio::time::sleep(after).await,
            Next::Exhausted => {
                count(&mesh.counters.retries_refused);
                return Err(fault);
            }
            // Whoever was not reached has said nothing of shards.
            Next::Done | Next::Refresh { .. } => return Err(fault),
        }
        count(&mesh.counters.retries);
        now = mesh.clock.now();
        view = call.look();
    }
}

fn judge(error: SendError, call: &Call<'_, Arc<Line>>, line: &Line) -> (Ending, Fault) {
    let (ending, what) = match error {
        SendError::NoTime => (Ending::Unsent, "could not be reached in half of the time that was left"),
        SendError::Exhausted(_) => (Ending::Abandoned, "cannot be connected to from here"),
        _ => (Ending::Unreachable, "cannot be reached"),
    };
    let (name, target) = (call.target().name(), line.target());
    let message = format!("{name}: {} at {} {what}", target.instance, target.address);
    (ending, Fault::new(FaultKind::Unreachable, message).caused_by(error))
}
