//! A connection in place of a call: the same pick and the same retries, and nothing is sent.

use std::sync::Arc;

use bytes::BytesMut;
use http::request::Parts;

use super::{decide, leased, route, terms::Terms};
use crate::{
    Fault, FaultKind, Retry,
    body::Attempt,
    core::{Call, Ending, Next, Start, nanos},
    service::Handle,
    stats::count,
    transport::{Head, Line, SendError},
    tunnel::Tunnel,
};

/// Connects to a server, or to another one where that fails.
pub(crate) async fn connect(handle: &Handle, parts: Parts) -> Result<Tunnel, Fault> {
    let counters = &handle.mesh.counters;
    count(&counters.calls);
    let connected = tries(handle, parts).await;
    if connected.is_err() {
        count(&counters.faults);
    }
    connected
}

async fn tries(handle: &Handle, mut parts: Parts) -> Result<Tunnel, Fault> {
    let mesh = &handle.mesh;
    let (context, limit) = handle.terms(&parts)?;
    let start = Start { now: mesh.clock.now(), limit, seed: mesh.seed() };
    let terms = Terms { handle, context: &context, start, trace: None };
    if limit.is_some_and(|left| left.is_zero()) {
        return Err(terms.late(start.now, "nothing was sent").with_retry(Retry::Unsent));
    }
    let head = Head::take(handle, &mut parts)?;
    let mut call = Call::new(&handle.subscription);
    let routed = route(terms, &mut call, &head).await?;
    let ((mut now, mut view), _) = leased::turn(terms, &mut call, routed, None).await;
    loop {
        let line = decide(terms, &mut call, view, &mut now).await?;
        count(&mesh.counters.tries);
        // Half, as for a request: the rest is for another server.
        let connected_by = mesh.clock.instant(now + nanos(call.left_before_request(now)) / 2);
        let error = match line.open_raw(connected_by).await {
            Ok((io, open)) => {
                call.end(Ending::Answered);
                let attempt = Attempt::of_tunnel(&mut call, line, mesh.clock);
                let nothing = || Fault::new(FaultKind::NoEndpoints, "no endpoint was chosen");
                return Ok(Tunnel::new(io, BytesMut::new(), Some(open), attempt.ok_or_else(nothing)?));
            }
            Err(error) => error,
        };
        let (ending, fault) = judge(error, &call, &line);
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
