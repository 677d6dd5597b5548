//! Classifies the result of an attempt: its outcome for retries, and the response or fault for the caller.

use std::sync::Arc;

use fairmesh_connections::{
    EndpointPool, EndpointResponse, IdleTimeout, SendError, SendResult, violates_protocol,
};
use fairmesh_headers::{
    DEADLINE_EXCEEDED, FAULT, GRPC_STATUS, OVERLOADED, OVERLOADED_SERVER, WRONG_SHARD, is_server_error,
};
use fairmesh_http::BoxError;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::context::{DispatchContext, MAYBE_PROCESSED, NOTHING_SENT};
use crate::{
    call::{AttemptOutcome, Call},
    fault::{Fault, FaultKind, Retry},
    load_report::LoadRecorder,
    observe::count,
};

/// The attempt to classify.
pub(super) struct AttemptInput<'a, 'c> {
    pub(super) call: &'a Call<'c, Arc<EndpointPool>>,
    pub(super) pool: &'a EndpointPool,
    /// Whether the request is still unsent.
    pub(super) unsent: bool,
}

type Classified = (AttemptOutcome, Result<EndpointResponse, Fault>);

/// Returns the attempt's outcome, and the call's result if no further attempt follows.
pub(super) fn classify(
    dispatch: DispatchContext<'_>,
    result: SendResult,
    input: &AttemptInput<'_, '_>,
) -> Classified {
    let mesh = &dispatch.handle.mesh;
    let AttemptInput { call, pool, unsent } = *input;
    match result {
        Ok(response) => {
            let (status, headers) = (response.status(), response.headers());
            let grpc_status = headers.get(&GRPC_STATUS);
            let is_called = |refused_by: &HeaderValue| names_endpoint(refused_by, call, pool);
            let outcome = response_outcome(status, headers, grpc_status, is_called);
            let recorder = LoadRecorder { pool, clock: mesh.clock };
            recorder.record_headers(headers, grpc_status.is_some(), outcome == AttemptOutcome::Responded);
            if matches!(outcome, AttemptOutcome::WrongShard { .. }) && call.is_by_shard() {
                count(&mesh.counters.wrong_shard);
            }
            (outcome, Ok(response))
        }
        Err(SendError::TimedOut) if !unsent && mesh.clock.now() < call.deadline() => {
            attempt_timeout(call, pool)
        }
        Err(SendError::TimedOut) => deadline_exceeded(dispatch, call.deadline(), unsent),
        Err(SendError::Idle(timeout)) => idle_timeout(timeout, input),
        Err(error) => {
            let outcome = error_class(&error).outcome;
            (outcome, Err(send_fault(&endpoint_name(call, pool), error)))
        }
    }
}

/// Returns the names of an attempt's service and endpoint, for messages.
pub(super) fn endpoint_name(call: &Call<'_, Arc<EndpointPool>>, pool: &EndpointPool) -> String {
    let target = pool.target();
    format!("{}: {} at {}", call.target().name(), target.instance, target.address)
}

/// Returns the fault for a request to `server` that failed with this error.
#[cold]
pub(super) fn send_fault(server: &str, error: SendError) -> Fault {
    let ErrorClass { kind, what, .. } = error_class(&error);
    Fault::new(kind, format!("{server} {what}")).caused_by(BoxError::from(error))
}

struct ErrorClass {
    outcome: AttemptOutcome,
    kind: FaultKind,
    /// Predicate of an error message; the endpoint is its subject.
    what: &'static str,
}

/// Returns the kind of fault for a send error.
pub(super) fn fault_kind(error: &SendError) -> FaultKind {
    error_class(error).kind
}

#[cold]
fn error_class(error: &SendError) -> ErrorClass {
    let (outcome, kind, what) = match error {
        SendError::Unreachable(_) => {
            (AttemptOutcome::Unreachable, FaultKind::Unreachable, "cannot be reached")
        }
        SendError::NoIdentity(_) | SendError::PlaintextRefused(_) => {
            (AttemptOutcome::Unreachable, FaultKind::Unreachable, "cannot be called by this program")
        }
        SendError::LocalResources(_) => {
            (AttemptOutcome::CallerFailed, FaultKind::Unreachable, "cannot be connected to from here")
        }
        SendError::ConnectTimedOut => (
            AttemptOutcome::ConnectTimedOut,
            FaultKind::Unreachable,
            "could not be reached in half of the time that was left",
        ),
        SendError::Refused(_) => {
            (AttemptOutcome::Refused, FaultKind::Unreachable, "refused the call unprocessed")
        }
        SendError::Stale(_) => (AttemptOutcome::Stale, FaultKind::Unreachable, "was closing the connection"),
        SendError::Broken(cause) if violates_protocol(cause) => (
            AttemptOutcome::Reset,
            FaultKind::Protocol,
            "did not speak its declared protocol; the call may have been processed",
        ),
        SendError::Broken(_) => (
            AttemptOutcome::Reset,
            FaultKind::Reset,
            "closed the connection before it responded; the call may have been processed",
        ),
        SendError::TimedOut | SendError::Idle(_) => {
            (AttemptOutcome::DeadlineExceeded, FaultKind::Deadline, "did not respond in time")
        }
        SendError::Body(_) => {
            (AttemptOutcome::CallerFailed, FaultKind::Invalid, "was not sent the whole request")
        }
        SendError::Rejected(_) => {
            (AttemptOutcome::Rejected, FaultKind::Invalid, "rejected this request as malformed")
        }
        SendError::Invalid(_) => {
            (AttemptOutcome::CallerFailed, FaultKind::Invalid, "cannot be sent this request")
        }
    };
    ErrorClass { outcome, kind, what }
}

#[cold]
fn attempt_timeout(call: &Call<'_, Arc<EndpointPool>>, pool: &EndpointPool) -> Classified {
    let message = format!(
        "{} did not respond within the attempt timeout of its route; {MAYBE_PROCESSED}",
        endpoint_name(call, pool)
    );
    (AttemptOutcome::TimedOut, Err(Fault::new(FaultKind::Deadline, message)))
}

/// Classifies an idle timeout. Silence of the caller says nothing about the server.
#[cold]
fn idle_timeout(timeout: IdleTimeout, input: &AttemptInput<'_, '_>) -> Classified {
    let AttemptInput { call, pool, unsent } = *input;
    let (outcome, message) = match timeout {
        IdleTimeout::Response(time) => {
            let message = format!(
                "{} sent no response headers within {time:?} of the request; {MAYBE_PROCESSED}; a \
                 deadline of the call, or responseHeaderTimeout of its route, gives it longer",
                endpoint_name(call, pool)
            );
            (AttemptOutcome::DeadlineExceeded, message)
        }
        IdleTimeout::Upload(time) => {
            let endpoint = endpoint_name(call, pool);
            let message = format!("{endpoint} read nothing of the request for {time:?}; {MAYBE_PROCESSED}");
            (AttemptOutcome::DeadlineExceeded, message)
        }
        IdleTimeout::Caller(time) => {
            let name = call.target().name();
            let message =
                format!("{name}: the caller sent nothing of its request for {time:?}; {MAYBE_PROCESSED}");
            (AttemptOutcome::CallerFailed, message)
        }
    };
    let fault = Fault::new(FaultKind::Deadline, message);
    match unsent {
        true => (AttemptOutcome::ConnectTimedOut, Err(fault.with_retry(Retry::Unsent))),
        false => (outcome, Err(fault)),
    }
}

#[cold]
fn deadline_exceeded(dispatch: DispatchContext<'_>, deadline: u64, unsent: bool) -> Classified {
    match unsent {
        true => {
            let fault = dispatch.deadline_fault(deadline, NOTHING_SENT).with_retry(Retry::Unsent);
            (AttemptOutcome::ConnectTimedOut, Err(fault))
        }
        false => (AttemptOutcome::DeadlineExceeded, Err(dispatch.deadline_fault(deadline, MAYBE_PROCESSED))),
    }
}

/// Whether the server that refused the call is the called server. A server that relays another server's refusal may
/// have processed the call first.
#[cold]
fn names_endpoint(refused_by: &HeaderValue, call: &Call<'_, Arc<EndpointPool>>, pool: &EndpointPool) -> bool {
    *refused_by == format!("{}/{}", call.target().name(), pool.target().instance)[..]
}

/// Returns the outcome shown by the headers of a response. `is_called` returns whether the server that refused the
/// call is the called server.
fn response_outcome(
    status: StatusCode,
    headers: &HeaderMap,
    grpc_status: Option<&HeaderValue>,
    is_called: impl Fn(&HeaderValue) -> bool,
) -> AttemptOutcome {
    let wrong_shard = || {
        let version = headers.get(&WRONG_SHARD)?.to_str().ok()?.parse().ok()?;
        Some(AttemptOutcome::WrongShard { version })
    };
    let has_fault = |name: &str| headers.get(&FAULT).is_some_and(|fault| fault == name);
    match (status.as_u16(), grpc_status.map(HeaderValue::as_bytes)) {
        (421, _) | (_, Some(b"9")) => wrong_shard().unwrap_or(AttemptOutcome::Responded),
        (503, _) | (_, Some(b"14"))
            if has_fault(OVERLOADED) && headers.get(&OVERLOADED_SERVER).is_some_and(&is_called) =>
        {
            AttemptOutcome::Overloaded
        }
        (503, _) | (_, Some(b"14")) => AttemptOutcome::Unavailable,
        // The server itself reported this; it did not relay it from another server.
        (_, Some(b"4")) if has_fault(DEADLINE_EXCEEDED) => AttemptOutcome::ServerError,
        // The proxy in front of the server lost its connection to the server; treated as if the caller had lost its
        // own.
        (502, _) if has_fault(FaultKind::Reset.label()) => AttemptOutcome::Unavailable,
        (500 | 502 | 504..=599, _) => AttemptOutcome::ServerError,
        (_, Some(code)) if is_server_error(code) => AttemptOutcome::ServerError,
        _ => AttemptOutcome::Responded,
    }
}
