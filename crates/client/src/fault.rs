use std::{error::Error as StdError, fmt, time::Duration};

use fairmesh_http::{
    BoxError,
    h2::{Reason, ResetReason},
};
use fairmesh_router::Unroutable;
use http::{HeaderMap, StatusCode};
use tonic::{Code, Status};

/// Why a call got no answer. Answers of servers, good or bad, are not faults.
///
/// For tonic clients the fault carries a [`Status`] as its source, so that they see the right gRPC code.
pub struct Fault(Box<Inner>);

struct Inner {
    kind: FaultKind,
    origin: Origin,
    retry: Retry,
    status: Status,
    retry_after: Option<Duration>,
    tries: usize,
}

/// What went wrong; see [`FaultKind::label`] for the stable name of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// Nobody declared this service.
    UnknownService,
    /// Where the service runs could not be learned: no agent, no control plane and no copy on disk.
    Unavailable,
    /// The service has no endpoint that may be called from here.
    NoEndpoints,
    /// The service finds its servers by key and the call has none.
    KeyMissing,
    /// No shard holds the key.
    KeyOutside,
    /// The shard has no replica of the asked role.
    NoReplica,
    /// A limit of the policy lets no more calls through.
    RateLimited,
    /// The time for the call ran out.
    Deadline,
    /// No connection to the chosen endpoints could be made; nothing was sent.
    Unreachable,
    /// The connection broke after the request was sent, so that it may or may not have been carried out.
    Reset,
    /// The request itself cannot be sent, or its body failed.
    Invalid,
    /// The server broke the protocol.
    Protocol,
}

/// Who caused a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The program that made the call.
    Caller,
    /// Fairmesh: what it knows, or does not.
    Mesh,
    /// The server, or the network on the way to it.
    Server,
}

/// Whether making the call again can do harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// It was never sent: another try does no harm.
    Unsent,
    /// It may have been carried out: only the caller knows whether another try does harm.
    MaybeSent,
    /// Another try would fail alike.
    Never,
}

impl FaultKind {
    /// A stable name for metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::UnknownService => "unknown_service",
            Self::Unavailable => "unavailable",
            Self::NoEndpoints => "no_endpoints",
            Self::KeyMissing => "key_missing",
            Self::KeyOutside => "key_outside",
            Self::NoReplica => "no_replica",
            Self::RateLimited => "rate_limited",
            Self::Deadline => "deadline",
            Self::Unreachable => "unreachable",
            Self::Reset => "reset",
            Self::Invalid => "invalid",
            Self::Protocol => "protocol",
        }
    }

    /// The status with which a proxy answers, by RFC 9110.
    pub fn http_status(self) -> StatusCode {
        match self {
            Self::UnknownService => StatusCode::NOT_FOUND,
            Self::Unavailable | Self::NoEndpoints | Self::NoReplica | Self::Unreachable => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::KeyMissing | Self::KeyOutside | Self::Invalid => StatusCode::BAD_REQUEST,
            Self::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            Self::Deadline => StatusCode::GATEWAY_TIMEOUT,
            Self::Reset | Self::Protocol => StatusCode::BAD_GATEWAY,
        }
    }

    /// The code that a gRPC caller sees.
    pub fn grpc_code(self) -> Code {
        match self {
            Self::UnknownService => Code::NotFound,
            Self::Unavailable | Self::NoEndpoints | Self::NoReplica | Self::Unreachable | Self::Reset => {
                Code::Unavailable
            }
            Self::KeyMissing | Self::Invalid => Code::InvalidArgument,
            Self::KeyOutside => Code::OutOfRange,
            Self::RateLimited => Code::ResourceExhausted,
            Self::Deadline => Code::DeadlineExceeded,
            Self::Protocol => Code::Internal,
        }
    }

    fn origin(self) -> Origin {
        match self {
            Self::KeyMissing | Self::KeyOutside | Self::Invalid | Self::UnknownService => Origin::Caller,
            Self::Unavailable | Self::NoEndpoints | Self::NoReplica | Self::RateLimited | Self::Deadline => {
                Origin::Mesh
            }
            Self::Unreachable | Self::Reset | Self::Protocol => Origin::Server,
        }
    }

    fn retry(self) -> Retry {
        match self {
            Self::Unreachable
            | Self::Unavailable
            | Self::NoEndpoints
            | Self::NoReplica
            | Self::RateLimited => Retry::Unsent,
            Self::Deadline | Self::Reset | Self::Protocol => Retry::MaybeSent,
            Self::UnknownService | Self::KeyMissing | Self::KeyOutside | Self::Invalid => Retry::Never,
        }
    }
}

/// The code that a gRPC caller gets for a status of HTTP, by the mapping of the gRPC project.
pub(crate) fn grpc_code_of(status: u16) -> Code {
    match status {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    }
}

impl From<&Unroutable> for FaultKind {
    fn from(why: &Unroutable) -> Self {
        match why {
            Unroutable::NoEndpoints | Unroutable::NoneInRegion { .. } => Self::NoEndpoints,
            Unroutable::KeyMissing => Self::KeyMissing,
            Unroutable::KeyOutside { .. } => Self::KeyOutside,
            Unroutable::NoReplica { .. } | Unroutable::NoShardMap => Self::NoReplica,
        }
    }
}

impl Fault {
    /// A fault whose message tells the caller what happened and what to do.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        let status = Status::new(kind.grpc_code(), message);
        let (origin, retry) = (kind.origin(), kind.retry());
        Self(Box::new(Inner { kind, origin, retry, status, retry_after: None, tries: 0 }))
    }

    /// The same fault with what caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<BoxError>) -> Self {
        self.0.status.set_source(source.into().into());
        self
    }

    /// The same fault, known to be safe or unsafe to try again.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.0.retry = retry;
        self
    }

    /// The same fault, which will be none after this time.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.0.retry_after = Some(wait);
        self
    }

    /// The same fault, after so many tries.
    pub(crate) fn after(mut self, tries: usize) -> Self {
        self.0.tries = tries;
        self
    }

    /// How many tries were made of the call.
    pub fn tries(&self) -> usize {
        self.0.tries
    }

    /// After which time the call may go well, where that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// What went wrong.
    pub fn kind(&self) -> FaultKind {
        self.0.kind
    }

    /// Who caused it.
    pub fn origin(&self) -> Origin {
        self.0.origin
    }

    /// Whether trying again can do harm.
    pub fn retry(&self) -> Retry {
        self.0.retry
    }

    /// The same as a gRPC call tells it: `grpc-status` and `grpc-message`.
    pub(crate) fn grpc_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        // Fails only for metadata, of which there is none.
        let _ = self.0.status.add_header(&mut headers);
        headers
    }

    /// What happened, for people.
    pub fn message(&self) -> &str {
        self.0.status.message()
    }
}

impl fmt::Display for Fault {
    /// The message and every cause, in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())?;
        let mut told = String::new();
        let mut next = self.0.status.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            // Some errors quote their cause.
            if !told.contains(&text) {
                write!(f, ": {text}")?;
                told = text;
            }
            next = cause.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fault")
            .field("kind", &self.kind())
            .field("origin", &self.origin())
            .field("retry", &self.retry())
            .field("message", &self.message())
            .field("source", &self.0.status.source())
            .finish()
    }
}

impl ResetReason for Fault {
    /// A call whose time is over is needed no more, and nothing is wrong with the proxy.
    fn reset_reason(&self) -> Reason {
        match self.kind() {
            FaultKind::Deadline => Reason::CANCEL,
            _ => Reason::INTERNAL_ERROR,
        }
    }
}

impl StdError for Fault {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0.status)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::transport::SendError;

    #[test]
    fn a_fault_says_every_cause_once() {
        let refused = SendError::Unreachable(io::Error::from(io::ErrorKind::ConnectionRefused));
        let fault = Fault::new(FaultKind::Unreachable, "cart-0 cannot be reached").caused_by(refused);
        assert_eq!(fault.to_string(), "cart-0 cannot be reached: no connection: connection refused");
        let quoted = io::Error::other(fault.to_string());
        let fault = Fault::new(FaultKind::Reset, "broke off").caused_by(io::Error::other(quoted));
        assert_eq!(fault.to_string().matches("connection refused").count(), 1);
    }

    #[test]
    fn a_grpc_client_sees_the_code_of_the_fault() {
        let fault = Fault::new(FaultKind::KeyOutside, "no shard holds key 5").caused_by("the map ends at 4");
        let status = Status::from_error(Box::new(fault));
        assert_eq!((status.code(), status.message()), (Code::OutOfRange, "no shard holds key 5"));
    }
}
