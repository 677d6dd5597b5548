//! `tracing` spans by OpenTelemetry's semantic conventions for HTTP clients: one span per call, with a child span per
//! attempt. Their level is DEBUG and their target is `fairmesh_client::call`, like those of tower-http; a program that
//! records no such spans pays for one comparison. Numbers are signed, as in OpenTelemetry, whose layer for `tracing`
//! converts unsigned numbers to text.

use fairmesh_headers::{SpanContext, is_grpc};
use fairmesh_model::ServiceName;
use fairmesh_router::EndpointTarget;
use http::{StatusCode, request::Parts};
use tracing::{Span, field::Empty};

use crate::fault::FaultKind;

const TARGET: &str = "fairmesh_client::call";

/// Creates the span of a call.
pub(crate) fn of_call(service: &ServiceName, parts: &Parts, parent: Option<SpanContext>) -> Span {
    let span = tracing::debug_span!(
        target: TARGET,
        "call",
        otel.name = Empty,
        otel.kind = "client",
        otel.status_code = Empty,
        trace_id = Empty,
        peer.service = %service,
        http.request.method = %parts.method,
        url.path = parts.uri.path(),
        rpc.system = is_grpc(&parts.headers).then_some("grpc"),
        http.response.status_code = Empty,
        "error.type" = Empty,
    );
    if !span.is_disabled() {
        span.record("otel.name", tracing::field::display(format_args!("{} {service}", parts.method)));
        if let Some(parent) = SpanContext::read(&parts.headers).or(parent) {
            span.record("trace_id", tracing::field::display(format_args!("{:032x}", parent.trace)));
        }
    }
    span
}

/// Creates the span of an attempt, within the span of its call.
pub(crate) fn of_attempt(service: &ServiceName, endpoint: &EndpointTarget, number: usize) -> Span {
    tracing::debug_span!(
        target: TARGET,
        "attempt",
        otel.kind = "client",
        otel.status_code = Empty,
        peer.service = %service,
        server.address = %endpoint.address.ip(),
        server.port = i64::from(endpoint.address.port()),
        fairmesh.instance = %endpoint.instance,
        http.request.resend_count = i64::try_from(number.saturating_sub(1)).ok().filter(|resent| *resent > 0),
        http.response.status_code = Empty,
        "error.type" = Empty,
    )
}

/// Records the result of a call or an attempt. In client spans, a status of 400 or above is an error.
pub(crate) fn record(span: &Span, result: Result<StatusCode, FaultKind>) {
    let failed = match result {
        Ok(status) => {
            span.record("http.response.status_code", i64::from(status.as_u16()));
            status.is_client_error() || status.is_server_error()
        }
        Err(kind) => {
            span.record("error.type", kind.label());
            true
        }
    };
    if failed {
        span.record("otel.status_code", "ERROR");
    }
}
