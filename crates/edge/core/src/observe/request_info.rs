//! Data of an observed request.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_calls::{
    EndpointTarget,
    forwarding::{BodyEnd, Principal, RouteBackend},
    observe::{AttemptRecord, Step},
};
use fairmesh_headers::{SpanContext, is_grpc};
use http::{HeaderValue, Method, StatusCode, Uri, Version, header, request::Parts};
use tokio::time::Instant;

use crate::observe::{
    grpc_status::{is_server_failure, status_name},
    served_metrics::ServedCaller,
};

/// Maximum length of a path, in bytes.
const MAX_PATH: usize = 1024;

/// When and from where a request arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Address of the client.
    pub caller: SocketAddr,
    /// Time at which the request headers arrived.
    pub began: Instant,
    /// Length of the body in bytes, if announced.
    pub length: Option<u64>,
    /// Whether the client is outside the mesh.
    pub is_outside: bool,
}

/// An observed request.
#[derive(Clone, Debug)]
pub struct RequestInfo {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) host: Option<HeaderValue>,
    pub(crate) version: Version,
    pub(crate) is_grpc: bool,
    pub(crate) caller: SocketAddr,
    /// The caller that a gateway accepted.
    pub(crate) principal: Option<Arc<Principal>>,
    /// Length of the body in bytes, if announced.
    pub(crate) length: Option<u64>,
    /// Trace context that the client sent, if valid.
    pub(crate) context: Option<SpanContext>,
    pub(crate) began: Instant,
    /// Time of arrival since the Unix epoch.
    pub(crate) time: Duration,
    /// Whether the request goes to the program behind the proxy.
    pub(crate) is_served: bool,
    /// The caller of a request to the program behind the proxy, if it proved an identity.
    pub(crate) served_caller: Option<Arc<ServedCaller>>,
    /// Whether the kernel sent the request to the program in place of mutual TLS.
    pub(crate) is_in_place: bool,
}

/// The response to a request that the kernel sent in place of mutual TLS.
#[derive(Clone, Copy, Debug)]
pub struct InPlaceResponse {
    /// Status of the response.
    pub status: StatusCode,
    /// Time from the request headers to the response headers, and to the end of the response.
    pub took: [Duration; 2],
    /// Bytes of the response body, if known.
    pub body_bytes: Option<u64>,
}

/// Outcome of a request when its response begins.
#[derive(Debug)]
pub struct RequestOutcome {
    /// Status of the response.
    pub status: StatusCode,
    /// The route and backend; `None` if the client disconnected before the response.
    pub route_backend: Option<RouteBackend>,
    /// The faults that the route injected.
    pub injected: Option<&'static str>,
    /// Kind of the fault if no server responded.
    pub fault: Option<&'static str>,
    /// Message of the fault.
    pub message: Option<String>,
    /// The server that responded.
    pub server: Option<EndpointTarget>,
    /// Number of attempts, including hedged ones.
    pub attempts: usize,
    /// Time from the request headers to the response headers.
    pub took: Duration,
    /// The attempts, if they were traced.
    pub attempt_log: Vec<AttemptRecord>,
    /// Steps of the routing decision, if they were traced.
    pub decision_steps: Vec<Step>,
}

impl RequestInfo {
    /// Describes the request with these headers. `time` is the time of arrival since the Unix epoch.
    pub fn new(parts: &Parts, arrival: Arrival, time: Duration) -> Self {
        let Arrival { caller, began, length, is_outside: _ } = arrival;
        Self {
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            host: parts.headers.get(header::HOST).cloned(),
            version: parts.version,
            is_grpc: is_grpc(&parts.headers),
            caller,
            principal: parts.extensions.get().cloned(),
            length,
            context: SpanContext::read(&parts.headers),
            began,
            time,
            is_served: false,
            served_caller: None,
            is_in_place: false,
        }
    }

    /// The request as the program behind a listener got it from this caller, past the listener.
    #[must_use]
    pub(crate) fn served_in_place(self, caller: Arc<ServedCaller>) -> Self {
        Self { is_served: true, served_caller: Some(caller), is_in_place: true, ..self }
    }

    /// The identity that the caller proved.
    pub(crate) fn caller_id(&self) -> Option<String> {
        let accepted = self.principal.as_ref().map(|principal| principal.caller.as_str().to_owned());
        accepted.or_else(|| Some(self.served_caller.as_ref()?.id().to_owned()))
    }

    /// The path without its query, which may contain secrets. Cut off after [`MAX_PATH`] bytes.
    pub(crate) fn path(&self) -> &str {
        let path = self.uri.path();
        // Cut between characters: a path may contain non-ASCII characters.
        let end = (0..=MAX_PATH.min(path.len())).rev().find(|at| path.is_char_boundary(*at));
        &path[..end.unwrap_or(0)]
    }

    /// The requested host, with its port.
    pub(crate) fn authority(&self) -> Option<&str> {
        let named = self.uri.authority().map(|authority| authority.as_str());
        named.or_else(|| self.host.as_ref()?.to_str().ok())
    }
}

impl RequestOutcome {
    /// The outcome of a request that was sent to a program once, without routing.
    pub(crate) fn of_program(status: StatusCode, fault: Option<&'static str>, took: Duration) -> Self {
        Self {
            status,
            route_backend: None,
            injected: None,
            fault,
            message: None,
            server: None,
            attempts: 1,
            took,
            attempt_log: Vec::new(),
            decision_steps: Vec::new(),
        }
    }

    pub(crate) fn failed(&self) -> bool {
        self.fault.is_some() || self.status.is_server_error()
    }
}

/// All data of a completed request.
#[derive(Debug)]
pub(crate) struct CompletedRequest<'a> {
    pub(crate) service: String,
    pub(crate) outcome: &'a RequestOutcome,
    /// Status of a gRPC call.
    pub(crate) grpc_status: Option<u16>,
    /// Bytes of the response body that were read.
    pub(crate) bytes_out: u64,
    pub(crate) end: BodyEnd,
    /// Time from the request headers to the end of the response.
    pub(crate) took: Duration,
}

impl CompletedRequest<'_> {
    /// Kind and message of a failure, by the OpenTelemetry semantic conventions for server spans. `None` if neither
    /// the server nor the proxy failed. A request that was refused because of the client (4xx, and the corresponding
    /// gRPC statuses) is no failure.
    pub(crate) fn error(&self) -> Option<(String, String)> {
        let outcome = self.outcome;
        let failed = match self.grpc_status {
            Some(code) => is_server_failure(code).then(|| status_name(code).to_owned()),
            None => outcome.status.is_server_error().then(|| outcome.status.as_u16().to_string()),
        };
        if let Some(kind) = failed {
            let kind = outcome.fault.map_or(kind, ToOwned::to_owned);
            return Some((kind, outcome.message.clone().unwrap_or_default()));
        }
        if outcome.fault.is_some() {
            return None;
        }
        let words = match self.end {
            BodyEnd::Complete => return None,
            BodyEnd::Failed => ("broken", "the response broke off"),
            BodyEnd::Cancelled => ("given_up", "the client did not read the whole response"),
        };
        Some((words.0.into(), words.1.into()))
    }
}
