//! Responses that Fairmesh made on the way: for the caller they are faults, like those of its own side.
//!
//! Without this a call that times out has two outcomes, by whether the timer of the caller or that of the server fires
//! first.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{HeaderMap, Response, header::RETRY_AFTER};
use http_body_util::{BodyExt as _, Limited};

use crate::{
    call::AttemptOutcome,
    fault::{Fault, FaultKind, Retry},
    response_body::Body,
};

/// Longest message of a response that is repeated in the fault, in bytes.
const MAX_MESSAGE: usize = 512;

/// The fault of a response by `endpoint`.
#[cold]
pub(super) fn fault_of(
    kind: FaultKind,
    endpoint: &str,
    response: Response<Body>,
    outcome: AttemptOutcome,
) -> Fault {
    let (parts, body) = response.into_parts();
    let mut message = format!("{endpoint} responded {} with the fault '{}'", parts.status, kind.label());
    let grpc = parts.headers.get("grpc-message").and_then(|value| value.to_str().ok());
    if let Some(detail) = grpc.map(str::to_owned).or_else(|| received_text(body)) {
        message.extend([": ", detail.trim_end()]);
    }
    let fault = Fault::new(kind, message).with_retry(retry(kind, outcome));
    match retry_after(&parts.headers) {
        Some(wait) => fault.with_retry_after(wait),
        None => fault,
    }
}

/// The text of a body that has arrived. A body that is read to its end keeps its connection, which an overloaded server
/// above all should not have to accept anew.
fn received_text(body: Body) -> Option<String> {
    let collecting = pin!(Limited::new(body, MAX_MESSAGE).collect());
    let Poll::Ready(collected) = collecting.poll(&mut Context::from_waker(Waker::noop())) else {
        return None;
    };
    let collected = collected.ok()?;
    String::from_utf8(collected.to_bytes().into()).ok().filter(|text| !text.is_empty())
}

/// Whether a retry is safe. Only the server that was called can say that it started nothing: one that relays the fault
/// of another has processed the call.
fn retry(kind: FaultKind, outcome: AttemptOutcome) -> Retry {
    match (kind.retry(), outcome) {
        (Retry::Never, _) => Retry::Never,
        (_, AttemptOutcome::Overloaded) => Retry::Unsent,
        _ => Retry::MaybeSent,
    }
}

/// In seconds (RFC 9110 §10.2.3); a date is not read.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
