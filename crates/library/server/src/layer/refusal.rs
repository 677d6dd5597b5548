//! Responses made by the layer itself, for calls that the service does not process or complete.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use tonic::Code;

use super::{ServerBody, server_load::ServerLoad};
use crate::load_report;
use fairmesh_headers::{
    CallerProtocol, DEADLINE_EXCEEDED, FAULT, GRPC_STATUS, OVERLOADED, OVERLOADED_SERVER, UNAUTHORIZED,
    WRONG_SHARD,
};

/// Why the layer itself responds to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Another server holds the key, according to this version of the shard map.
    WrongShard(u64),
    /// The concurrency limit is reached.
    Overloaded,
    /// The caller's deadline has passed.
    Late,
    /// The policy of the service does not allow the call.
    Unauthorized,
    /// The end user's token is not accepted.
    BadToken,
    /// It is not known yet which callers are allowed.
    Unready,
}

/// Counts of refusals by kind.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    overloaded: AtomicU64,
    late: AtomicU64,
    failed_handshakes: AtomicU64,
}

impl Refusals {
    pub(crate) fn count(&self, refusal: Refusal) {
        match refusal {
            Refusal::WrongShard(_) | Refusal::Unauthorized | Refusal::BadToken | Refusal::Unready => {}
            Refusal::Overloaded => drop(self.overloaded.fetch_add(1, Relaxed)),
            Refusal::Late => drop(self.late.fetch_add(1, Relaxed)),
        }
    }

    /// Number of calls rejected by the concurrency limit.
    pub(crate) fn overloaded(&self) -> u64 {
        self.overloaded.load(Relaxed)
    }

    pub(crate) fn count_failed_handshake(&self) {
        self.failed_handshakes.fetch_add(1, Relaxed);
    }

    /// Number of connections without a complete handshake.
    pub(crate) fn failed_handshakes(&self) -> u64 {
        self.failed_handshakes.load(Relaxed)
    }

    /// Number of calls cancelled at their deadline.
    pub(crate) fn late(&self) -> u64 {
        self.late.load(Relaxed)
    }
}

impl Refusal {
    /// Status and message. Messages are printable ASCII, which gRPC sends unchanged.
    fn status_and_message(self) -> (StatusCode, Code, &'static str) {
        match self {
            Self::WrongShard(_) => (
                StatusCode::MISDIRECTED_REQUEST,
                Code::FailedPrecondition,
                "this server does not hold the shard of x-fairmesh-key in that role; fairmesh-wrong-shard names the \
                 version of its shard map",
            ),
            Self::Overloaded => (
                StatusCode::SERVICE_UNAVAILABLE,
                Code::Unavailable,
                "this server has reached its concurrency limit; the call was not started, and may be sent to another \
                 server",
            ),
            Self::Unauthorized => (
                StatusCode::FORBIDDEN,
                Code::PermissionDenied,
                "the policy of this service does not allow this caller this call",
            ),
            Self::BadToken => (
                StatusCode::UNAUTHORIZED,
                Code::Unauthenticated,
                "this service does not accept the token in 'authorization'; get a new one from its issuer, for this service",
            ),
            Self::Unready => (
                StatusCode::SERVICE_UNAVAILABLE,
                Code::Unavailable,
                "this server does not know yet who may call it; the call was not started, and may be sent to another server",
            ),
            Self::Late => (
                StatusCode::GATEWAY_TIMEOUT,
                Code::DeadlineExceeded,
                "the caller's deadline has passed; the call was cancelled, and may have been processed in part",
            ),
        }
    }

    /// Returns the message of a response. For a refusal by the policy, it says how to get an explanation.
    fn message(self, load: &ServerLoad) -> String {
        let (_, _, words) = self.status_and_message();
        // `SERVICE/INSTANCE`.
        let name = load.name().and_then(|name| name.to_str().ok());
        match (self, name.and_then(|name| name.rsplit_once('/'))) {
            (Self::Unauthorized, Some((service, _))) => {
                format!("{words}; 'fairmesh explain {service} --as' with the caller's identity says why")
            }
            _ => words.to_owned(),
        }
    }

    /// Removes marks that only the layer may set from a response of the service. Callers would otherwise attribute
    /// them to this server.
    pub(crate) fn remove_marks(headers: &mut HeaderMap) {
        headers.remove(WRONG_SHARD);
        headers.remove(OVERLOADED_SERVER);
        let of_layer = [OVERLOADED, DEADLINE_EXCEEDED, UNAUTHORIZED];
        if headers.get(FAULT).is_some_and(|fault| of_layer.iter().any(|one| fault == one)) {
            headers.remove(FAULT);
        }
    }

    /// Adds the marks for callers that use Fairmesh.
    fn mark(self, headers: &mut HeaderMap, name: Option<&HeaderValue>) {
        match self {
            Self::WrongShard(version) => headers.insert(WRONG_SHARD, HeaderValue::from(version)),
            Self::Unauthorized => headers.insert(FAULT, HeaderValue::from_static(UNAUTHORIZED)),
            // RFC 6750, 3.
            Self::BadToken => headers
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer error=\"invalid_token\"")),
            Self::Overloaded | Self::Unready => {
                name.and_then(|name| headers.insert(OVERLOADED_SERVER, name.clone()));
                headers.insert(FAULT, HeaderValue::from_static(OVERLOADED))
            }
            Self::Late => headers.insert(FAULT, HeaderValue::from_static(DEADLINE_EXCEEDED)),
        };
    }

    /// Builds the complete response, in the caller's protocol.
    pub(crate) fn response<B>(self, caller: &CallerProtocol, load: &ServerLoad) -> Response<ServerBody<B>> {
        load.refusals().count(self);
        let (status, _, _) = self.status_and_message();
        let kind = match caller {
            CallerProtocol::Grpc(kind) | CallerProtocol::GrpcWeb(kind) => kind.clone(),
            CallerProtocol::Http => HeaderValue::from_static("text/plain; charset=utf-8"),
        };
        let is_http = *caller == CallerProtocol::Http;
        let text = if is_http { self.message(load) + "\n" } else { String::new() };
        let mut response = Response::new(ServerBody::text(text));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, kind);
        if is_http {
            self.mark(headers, load.name());
            load_report::add_text(headers, load.report());
            *response.status_mut() = status;
        } else {
            self.end_grpc(headers, load);
        }
        response
    }

    /// Builds the trailers that end a response in progress.
    pub(crate) fn trailers(self, load: &ServerLoad) -> HeaderMap {
        load.refusals().count(self);
        let mut trailers = HeaderMap::new();
        self.end_grpc(&mut trailers, load);
        trailers
    }

    fn end_grpc(self, headers: &mut HeaderMap, load: &ServerLoad) {
        let (_, code, words) = self.status_and_message();
        headers.insert(GRPC_STATUS, HeaderValue::from(code as i32));
        // Names of services are ASCII.
        let message = HeaderValue::try_from(self.message(load));
        headers.insert("grpc-message", message.unwrap_or_else(|_| HeaderValue::from_static(words)));
        self.mark(headers, load.name());
        load_report::add_binary(headers, load.report());
    }
}
