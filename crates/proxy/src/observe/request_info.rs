//! What is known of a request.

use std::{net::SocketAddr, time::Duration};

use fairmesh_client::{BodyEnd, EndpointTarget, Step, Tried};
use fairmesh_headers::{SpanContext, is_grpc};
use http::{HeaderValue, Method, StatusCode, Uri, Version, header, request::Parts};
use tokio::time::Instant;

/// The longest path that is kept.
const MAX_PATH: usize = 1024;

/// When a request arrived, and from where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) caller: SocketAddr,
    pub(crate) began: Instant,
    /// Bytes of the body, if it announces them.
    pub(crate) length: Option<u64>,
}

/// What was asked.
#[derive(Debug)]
pub(crate) struct RequestInfo {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) host: Option<HeaderValue>,
    pub(crate) version: Version,
    pub(crate) is_grpc: bool,
    pub(crate) caller: SocketAddr,
    /// The length of the body, where it was known beforehand.
    pub(crate) length: Option<u64>,
    /// The trace that its program has it in, where that can be read.
    pub(crate) context: Option<SpanContext>,
    pub(crate) began: Instant,
    /// The same, since 1970.
    pub(crate) time: Duration,
}

/// What became of it.
#[derive(Debug)]
pub(crate) struct RequestOutcome {
    pub(crate) status: StatusCode,
    /// Why no server answered.
    pub(crate) fault: Option<&'static str>,
    pub(crate) message: Option<String>,
    /// Who did.
    pub(crate) server: Option<EndpointTarget>,
    pub(crate) attempts: usize,
    /// To the head of the answer.
    pub(crate) took: Duration,
    pub(crate) attempt_log: Vec<Tried>,
    pub(crate) decision_steps: Vec<Step>,
}

impl RequestInfo {
    pub(crate) fn new(parts: &Parts, arrival: Arrival, time: Duration) -> Self {
        let Arrival { caller, began, length } = arrival;
        Self {
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            host: parts.headers.get(header::HOST).cloned(),
            version: parts.version,
            is_grpc: is_grpc(&parts.headers),
            caller,
            length,
            context: SpanContext::read(&parts.headers),
            began,
            time,
        }
    }

    /// Its path, without the query, which may hold what is secret; what is too long is cut off.
    pub(crate) fn path(&self) -> &str {
        let path = self.uri.path();
        // A path may hold what is no ASCII, and is cut between characters.
        let end = (0..=MAX_PATH.min(path.len())).rev().find(|at| path.is_char_boundary(*at));
        &path[..end.unwrap_or(0)]
    }

    /// Which host was asked for, with its port.
    pub(crate) fn authority(&self) -> Option<&str> {
        let named = self.uri.authority().map(|authority| authority.as_str());
        named.or_else(|| self.host.as_ref()?.to_str().ok())
    }
}

impl RequestOutcome {
    pub(crate) fn failed(&self) -> bool {
        self.fault.is_some() || self.status.is_server_error()
    }
}

/// All that there is to tell.
#[derive(Debug)]
pub(crate) struct CompletedRequest<'a> {
    pub(crate) service: String,
    pub(crate) outcome: &'a RequestOutcome,
    /// The status of a gRPC call.
    pub(crate) grpc_status: Option<u16>,
    /// How many bytes of the answer's body were read.
    pub(crate) bytes_out: u64,
    pub(crate) end: BodyEnd,
    /// From the head of the request to the end of the answer.
    pub(crate) took: Duration,
}

impl CompletedRequest<'_> {
    /// What kind of failure it was, and words for it; `None` where it was none of the server's or the proxy's.
    pub(crate) fn error(&self) -> Option<(String, String)> {
        let outcome = self.outcome;
        if let Some(fault) = outcome.fault {
            return Some((fault.into(), outcome.message.clone().unwrap_or_default()));
        }
        if outcome.status.is_server_error() {
            return Some((outcome.status.as_u16().to_string(), String::new()));
        }
        let words = match self.end {
            BodyEnd::Whole => return None,
            BodyEnd::Broken => ("broken", "the answer broke off"),
            BodyEnd::GivenUp => ("given_up", "its program did not take the whole answer"),
        };
        Some((words.0.into(), words.1.into()))
    }
}
