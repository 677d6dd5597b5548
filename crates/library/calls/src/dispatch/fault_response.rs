//! Responses made by Fairmesh on the way. The caller sees them as faults, like faults of its own side.
//!
//! Otherwise a call that times out would have one of two outcomes, depending on whether the timer of the caller or of
//! the server fires first.

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

/// Maximum length of the response message that a fault quotes, in bytes.
const MAX_MESSAGE: usize = 512;

/// Converts a response of `endpoint` to the fault it carries.
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

/// Returns the text of a body that has arrived. Reading the body to its end keeps its connection open, so that an
/// overloaded server need not accept another one.
fn received_text(body: Body) -> Option<String> {
    let collecting = pin!(Limited::new(body, MAX_MESSAGE).collect());
    let Poll::Ready(collected) = collecting.poll(&mut Context::from_waker(Waker::noop())) else {
        return None;
    };
    let collected = collected.ok()?;
    String::from_utf8(collected.to_bytes().into()).ok().filter(|text| !text.is_empty())
}

/// Whether a retry is safe. Only the called server can guarantee that it started nothing. A server that relays
/// another server's fault has processed the call.
fn retry(kind: FaultKind, outcome: AttemptOutcome) -> Retry {
    match (kind.retry(), outcome) {
        (Retry::Never, _) => Retry::Never,
        (_, AttemptOutcome::Overloaded) => Retry::Unsent,
        _ => Retry::MaybeSent,
    }
}

/// Parses `retry-after` in seconds (RFC 9110 §10.2.3). A date is ignored.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}
