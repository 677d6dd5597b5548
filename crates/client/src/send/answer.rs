//! What came of a try: what it says about trying elsewhere, and about the server's load.

use std::sync::Arc;

use fairmesh_model::Protocol;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::{MAYBE, terms::Terms};
use crate::{
    BoxError, Fault, FaultKind, Retry,
    core::{Call, Clock, Ending},
    stats::count,
    transport::{Line, Reply, SendError, Sent, Silence},
};
use fairmesh_headers::{
    DEADLINE_EXCEEDED, FAULT, GRPC_STATUS, LOAD, LOAD_BIN, LoadReport, OVERLOADED, OVERLOADED_SERVER,
    WRONG_SHARD, is_server_error, load_from_binary, load_from_text,
};
use fairmesh_http::{
    h1::{BorrowedResponse, Malformed},
    h2::StreamError,
};

/// What a try over `line` amounts to, and what the caller gets if it is the last. `unsent`: whether the request is still at hand.
pub(super) fn judge(
    sent: Sent,
    unsent: bool,
    terms: Terms<'_>,
    call: &Call<'_, Arc<Line>>,
    line: &Line,
) -> (Ending, Result<Reply, Fault>) {
    let mesh = &terms.handle.mesh;
    match sent {
        Ok(reply) => {
            let (status, headers) = reply.head();
            let grpc_status = headers.get(&GRPC_STATUS);
            let is_own = |name: &HeaderValue| names(name, call, line);
            let ending = verdict(status, headers, grpc_status, is_own);
            learn((line, mesh.clock), headers, grpc_status.is_some(), ending == Ending::Answered);
            if matches!(ending, Ending::WrongShard { .. }) && call.is_by_shard() {
                count(&mesh.counters.wrong_shard);
            }
            (ending, Ok(reply))
        }
        Err(SendError::OutOfTime) if !unsent && mesh.clock.now() < call.deadline() => too_slow(call, line),
        Err(SendError::OutOfTime) => out_of_time(terms, call.deadline(), unsent),
        Err(SendError::Silent(silence)) => silent(silence, unsent, call, line),
        Err(error) => {
            let (ending, kind, what) = meaning(&error);
            let (name, target) = (call.target().name(), line.target());
            let message = format!("{name}: {} at {} {what}", target.instance, target.address);
            (ending, Err(Fault::new(kind, message).caused_by(BoxError::from(error))))
        }
    }
}

/// What it means for the try, what it is for the caller, and what to say of the endpoint.
#[cold]
fn meaning(error: &SendError) -> (Ending, FaultKind, &'static str) {
    match error {
        SendError::Unreachable(_) => (Ending::Unreachable, FaultKind::Unreachable, "cannot be reached"),
        SendError::Exhausted(_) => {
            (Ending::Abandoned, FaultKind::Unreachable, "cannot be connected to from here")
        }
        SendError::NoTime => {
            (Ending::Unsent, FaultKind::Unreachable, "could not be reached in half of the time that was left")
        }
        SendError::Refused(_) => (Ending::Refused, FaultKind::Unreachable, "refused the call unseen"),
        SendError::Stale(_) => (Ending::Stale, FaultKind::Unreachable, "was closing the connection"),
        SendError::Broken(cause) if violates_protocol(cause) => (
            Ending::Broken,
            FaultKind::Protocol,
            "did not speak the protocol that is declared for it; the call may have been carried out",
        ),
        SendError::Broken(_) => (
            Ending::Broken,
            FaultKind::Reset,
            "broke off before it answered; the call may have been carried out",
        ),
        SendError::OutOfTime | SendError::Silent(_) => {
            (Ending::Late, FaultKind::Deadline, "did not answer in time")
        }
        SendError::Body(_) => (Ending::Abandoned, FaultKind::Invalid, "was not sent the whole request"),
        SendError::Invalid(_) => (Ending::Abandoned, FaultKind::Invalid, "cannot be sent this request"),
    }
}

#[cold]
fn too_slow(call: &Call<'_, Arc<Line>>, line: &Line) -> (Ending, Result<Reply, Fault>) {
    let (name, target) = (call.target().name(), line.target());
    let message = format!(
        "{name}: {} at {} did not answer in the time that its route gives one try; {MAYBE}",
        target.instance, target.address
    );
    (Ending::Slow, Err(Fault::new(FaultKind::Deadline, message)))
}

/// The end of a call in which nothing moved for longer than it may. A caller that is silent says nothing of the server.
#[cold]
fn silent(
    silence: Silence,
    unsent: bool,
    call: &Call<'_, Arc<Line>>,
    line: &Line,
) -> (Ending, Result<Reply, Fault>) {
    let (name, target) = (call.target().name(), line.target());
    let (instance, address) = (&target.instance, target.address);
    let (ending, what) = match silence {
        Silence::Response(time) => {
            let what = format!(
                "{instance} at {address} sent no response headers within {time:?} of the request; {MAYBE}; a \
                 deadline of the call, or responseHeaderTimeout of its route, gives it longer"
            );
            (Ending::Late, what)
        }
        Silence::Upload(time) => {
            let what = format!("{instance} at {address} took nothing of the request for {time:?}; {MAYBE}");
            (Ending::Late, what)
        }
        Silence::Caller(time) => {
            let what = format!("the caller sent nothing of its request for {time:?}; {MAYBE}");
            (Ending::Abandoned, what)
        }
    };
    let fault = Fault::new(FaultKind::Deadline, format!("{name}: {what}"));
    match unsent {
        true => (Ending::Unsent, Err(fault.with_retry(Retry::Unsent))),
        false => (ending, Err(fault)),
    }
}

#[cold]
fn out_of_time(terms: Terms<'_>, deadline: u64, unsent: bool) -> (Ending, Result<Reply, Fault>) {
    match unsent {
        true => (Ending::Unsent, Err(terms.late(deadline, "nothing was sent").with_retry(Retry::Unsent))),
        false => (Ending::Late, Err(terms.late(deadline, MAYBE))),
    }
}

/// Whether a connection broke because of what the server sent on it, rather than because it ended.
pub(crate) fn violates_protocol(error: &BoxError) -> bool {
    error.is::<Malformed>() || error.downcast_ref::<StreamError>().is_some_and(StreamError::is_violation)
}

/// Keeps what the head of an answer says of the server's load; that of a gRPC answer with a body comes in its trailers.
fn learn(from: (&Line, Clock), headers: &HeaderMap, has_grpc_status: bool, is_good: bool) {
    let target = from.0.target();
    let metric = target.metric.as_deref();
    let load = match target.protocol {
        _ if has_grpc_status => {
            headers.get(&LOAD_BIN).map(|value| load_from_binary(value.as_bytes(), metric))
        }
        Protocol::Grpc => None,
        Protocol::Http1 | Protocol::Http2 => {
            headers.get(&LOAD).map(|value| load_from_text(value.as_bytes(), metric))
        }
    };
    keep(from, load, is_good);
}

/// Keeps what the trailers of an answer say of the server's load; `is_good` unless they say that it failed.
pub(crate) fn learn_from_trailers(from: (&Line, Clock), trailers: &HeaderMap, is_good: bool) {
    let metric = from.0.target().metric.as_deref();
    let load = trailers.get(&LOAD_BIN).map(|value| load_from_binary(value.as_bytes(), metric));
    keep(from, load, is_good);
}

/// Keeps what a plain answer says of the server's load.
#[inline]
pub(super) fn learn_from_plain(from: (&Line, Clock), answer: &BorrowedResponse<'_>) {
    if from.0.target().protocol == Protocol::Http1
        && let Some(value) = answer.value(&LOAD)
    {
        keep(from, Some(load_from_text(value, from.0.target().metric.as_deref())), true);
    }
}

fn keep((line, clock): (&Line, Clock), load: Option<Option<LoadReport>>, is_good: bool) {
    match load {
        None => {}
        Some(None) => count(&line.counters().reports_ignored),
        Some(Some(load)) if is_good => line.endpoint().report(load, clock.now()),
        Some(Some(load)) => line.endpoint().report_unearned(load, clock.now()),
    }
}

/// Whether a server that refuses a call is the one that was called. One that hands on what it was told when it called another one may
/// have carried out the call before that.
#[cold]
fn names(refuses: &HeaderValue, call: &Call<'_, Arc<Line>>, line: &Line) -> bool {
    *refuses == format!("{}/{}", call.target().name(), line.target().instance)[..]
}

/// What the head of an answer says about trying elsewhere; `is_own`: whether who refuses the call is who was called.
fn verdict(
    status: StatusCode,
    headers: &HeaderMap,
    grpc_status: Option<&HeaderValue>,
    is_own: impl Fn(&HeaderValue) -> bool,
) -> Ending {
    let wrong_shard = || {
        let version = headers.get(&WRONG_SHARD)?.to_str().ok()?.parse().ok()?;
        Some(Ending::WrongShard { version })
    };
    let says = |what: &str| headers.get(&FAULT).is_some_and(|fault| fault == what);
    match (status.as_u16(), grpc_status.map(HeaderValue::as_bytes)) {
        (421, _) | (_, Some(b"9")) => wrong_shard().unwrap_or(Ending::Answered),
        (503, _) | (_, Some(b"14"))
            if says(OVERLOADED) && headers.get(&OVERLOADED_SERVER).is_some_and(&is_own) =>
        {
            Ending::Full
        }
        (503, _) | (_, Some(b"14")) => Ending::Busy,
        // A server that says so itself, and did not only hand on what another one told it.
        (_, Some(b"4")) if says(DEADLINE_EXCEEDED) => Ending::Erred,
        (500 | 502 | 504..=599, _) => Ending::Erred,
        (_, Some(code)) if is_server_error(code) => Ending::Erred,
        _ => Ending::Answered,
    }
}
