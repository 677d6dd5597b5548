//! Answers of the layer itself, to calls that the service does not carry out or not to the end.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use tonic::Code;

use super::{ServerBody, load::Load, report};
use fairmesh_headers::{Caller, FAULT, FULL, GRPC_STATUS, LATE, OVERLOADED, WRONG_SHARD};

/// Why the layer answers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Another server holds the key, by this version of the shard map.
    WrongShard(u64),
    /// As many are under way as this server takes at a time.
    Overloaded,
    /// The time that the caller gave has passed.
    Late,
}

/// How often that happened.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    overloaded: AtomicU64,
    late: AtomicU64,
}

impl Refusals {
    pub(super) fn count(&self, refusal: Refusal) {
        match refusal {
            Refusal::WrongShard(_) => {}
            Refusal::Overloaded => drop(self.overloaded.fetch_add(1, Relaxed)),
            Refusal::Late => drop(self.late.fetch_add(1, Relaxed)),
        }
    }

    /// Calls that were not let in.
    pub(super) fn overloaded(&self) -> u64 {
        self.overloaded.load(Relaxed)
    }

    /// Calls that were cut off at their deadline.
    pub(super) fn late(&self) -> u64 {
        self.late.load(Relaxed)
    }
}

impl Refusal {
    /// The status and the words of it. The words are printable ASCII, which gRPC takes as it is.
    fn says(self) -> (StatusCode, Code, &'static str) {
        match self {
            Self::WrongShard(_) => (
                StatusCode::MISDIRECTED_REQUEST,
                Code::FailedPrecondition,
                "this server does not hold the shard of x-fairmesh-key in that role; fairmesh-wrong-shard names the \
                 version of the shard map that it goes by",
            ),
            Self::Overloaded => (
                StatusCode::SERVICE_UNAVAILABLE,
                Code::Unavailable,
                "as many calls are under way as this server takes at a time; it has not looked at this one, which may be \
                 sent to another server",
            ),
            Self::Late => (
                StatusCode::GATEWAY_TIMEOUT,
                Code::DeadlineExceeded,
                "the time that the caller gave this server has passed; work on the call has ended, and may have been \
                 carried out in part",
            ),
        }
    }

    /// Takes out of an answer of the service what only the layer may say, since callers would believe it of this server.
    pub(super) fn unmark(headers: &mut HeaderMap) {
        headers.remove(WRONG_SHARD);
        headers.remove(FULL);
        if headers.get(FAULT).is_some_and(|fault| fault == OVERLOADED || fault == LATE) {
            headers.remove(FAULT);
        }
    }

    /// What callers that know of Fairmesh go by.
    fn mark(self, headers: &mut HeaderMap, name: Option<&HeaderValue>) {
        match self {
            Self::WrongShard(version) => headers.insert(WRONG_SHARD, HeaderValue::from(version)),
            Self::Overloaded => {
                name.and_then(|name| headers.insert(FULL, name.clone()));
                headers.insert(FAULT, HeaderValue::from_static(OVERLOADED))
            }
            Self::Late => headers.insert(FAULT, HeaderValue::from_static(LATE)),
        };
    }

    /// All of the answer, as its caller understands it.
    pub(super) fn answer<B>(self, caller: &Caller, load: &Load) -> Response<ServerBody<B>> {
        load.refusals().count(self);
        let (status, _, words) = self.says();
        let kind = match caller {
            Caller::Grpc(kind) | Caller::GrpcWeb(kind) => kind.clone(),
            Caller::Http => HeaderValue::from_static("text/plain; charset=utf-8"),
        };
        let is_http = *caller == Caller::Http;
        let mut answer =
            Response::new(ServerBody::text(if is_http { format!("{words}\n") } else { String::new() }));
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, kind);
        if is_http {
            self.mark(headers, load.name());
            report::add_text(headers, load.report());
            *answer.status_mut() = status;
        } else {
            self.end_grpc(headers, load);
        }
        answer
    }

    /// The trailers that end an answer which has begun.
    pub(super) fn trailers(self, load: &Load) -> HeaderMap {
        load.refusals().count(self);
        let mut trailers = HeaderMap::new();
        self.end_grpc(&mut trailers, load);
        trailers
    }

    fn end_grpc(self, headers: &mut HeaderMap, load: &Load) {
        let (_, code, words) = self.says();
        headers.insert(GRPC_STATUS, HeaderValue::from(code as i32));
        headers.insert("grpc-message", HeaderValue::from_static(words));
        self.mark(headers, load.name());
        report::add_binary(headers, load.report());
    }
}
