use fairmesh_headers::{DEADLINE_EXCEEDED, FAULT, OVERLOADED, UNAUTHORIZED};
use fairmesh_model::CallFault;
use fairmesh_router::PickError;
use http::{HeaderMap, StatusCode};
use tonic::Code;

/// The kind of a fault. [`FaultKind::label`] gives each kind a stable name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// The service is not declared.
    UnknownService,
    /// The records of the service are not available: there is no agent, no control plane and no copy on disk.
    Unavailable,
    /// The service has no endpoint that may be called from here.
    NoEndpoints,
    /// The service chooses its servers by key, and the call has no key.
    KeyMissing,
    /// No shard holds the key.
    KeyOutside,
    /// The shard has no replica in the requested role.
    NoReplica,
    /// A rate limit of the policy refused the call.
    RateLimited,
    /// The region table dropped this call, as part of a share of calls.
    Dropped,
    /// The call timed out.
    Deadline,
    /// No chosen endpoint accepted a connection, so nothing was sent.
    Unreachable,
    /// The connection broke after the request was sent. The server may have processed it.
    Reset,
    /// The request cannot be sent as it is, or its body failed.
    Invalid,
    /// The server violated the protocol.
    Protocol,
    /// The server has reached its concurrency limit and did not start the call.
    Overloaded,
    /// A proxy on the way refused the request body as too large.
    TooLarge,
    /// The request came back to a proxy that had already forwarded it.
    Loop,
    /// A route sends the call to a service of another tenant, whose policy does not accept it.
    RouteNotAccepted,
    /// The service's policy does not allow the call, or does not allow the caller on whose behalf a gateway makes the
    /// call.
    Unauthorized,
}

/// The party that caused a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The program that made the call.
    Caller,
    /// Fairmesh: its data, or the lack of data.
    Mesh,
    /// The server, or the network on the way to the server.
    Server,
}

/// Whether a retry of the call is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Retry {
    /// The request was never sent: a retry is safe.
    Unsent,
    /// The server may have processed the request. Only the caller knows whether a retry is safe.
    MaybeSent,
    /// A retry would fail in the same way.
    Never,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [Self; 18] = [
        Self::UnknownService,
        Self::Unavailable,
        Self::NoEndpoints,
        Self::KeyMissing,
        Self::KeyOutside,
        Self::NoReplica,
        Self::RateLimited,
        Self::Dropped,
        Self::Deadline,
        Self::Unreachable,
        Self::Reset,
        Self::Invalid,
        Self::Protocol,
        Self::Overloaded,
        Self::TooLarge,
        Self::Loop,
        Self::RouteNotAccepted,
        Self::Unauthorized,
    ];

    /// Returns the kind with this [`label`](Self::label).
    pub fn from_label(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.label() == label)
    }

    /// A stable name for metrics, logs and the header `x-fairmesh-fault`.
    pub fn label(self) -> &'static str {
        match self {
            Self::UnknownService => "unknown_service",
            Self::Unavailable => "unavailable",
            Self::NoEndpoints => "no_endpoints",
            Self::KeyMissing => "key_missing",
            Self::KeyOutside => "key_outside",
            Self::NoReplica => "no_replica",
            Self::RateLimited => "rate_limited",
            Self::Dropped => "dropped",
            Self::Deadline => DEADLINE_EXCEEDED,
            Self::Unreachable => "unreachable",
            Self::Reset => "reset",
            Self::Invalid => "invalid",
            Self::Protocol => "protocol",
            Self::Overloaded => OVERLOADED,
            Self::TooLarge => "too_large",
            Self::Loop => "loop",
            Self::RouteNotAccepted => "route_not_accepted",
            Self::Unauthorized => UNAUTHORIZED,
        }
    }

    /// HTTP status of a proxy's response (RFC 9110).
    pub fn http_status(self) -> StatusCode {
        match self {
            Self::UnknownService => StatusCode::NOT_FOUND,
            Self::Unavailable
            | Self::NoEndpoints
            | Self::NoReplica
            | Self::Unreachable
            | Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::KeyMissing | Self::KeyOutside | Self::Invalid => StatusCode::BAD_REQUEST,
            Self::RateLimited | Self::Dropped => StatusCode::TOO_MANY_REQUESTS,
            Self::Deadline => StatusCode::GATEWAY_TIMEOUT,
            Self::Reset | Self::Protocol => StatusCode::BAD_GATEWAY,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            // RFC 5842 §7.2.
            Self::Loop => StatusCode::LOOP_DETECTED,
            Self::RouteNotAccepted | Self::Unauthorized => StatusCode::FORBIDDEN,
        }
    }

    /// Numeric status code for a gRPC caller: 14 is `UNAVAILABLE`.
    pub fn grpc_code(self) -> i32 {
        self.code() as i32
    }

    pub(crate) fn code(self) -> Code {
        match self {
            Self::UnknownService => Code::NotFound,
            Self::Unavailable
            | Self::NoEndpoints
            | Self::NoReplica
            | Self::Unreachable
            | Self::Reset
            | Self::Overloaded => Code::Unavailable,
            Self::KeyMissing | Self::Invalid => Code::InvalidArgument,
            Self::KeyOutside => Code::OutOfRange,
            Self::RateLimited | Self::Dropped | Self::TooLarge => Code::ResourceExhausted,
            Self::Deadline => Code::DeadlineExceeded,
            Self::Protocol => Code::Internal,
            // The loop persists until an operator changes the configuration.
            Self::Loop => Code::FailedPrecondition,
            Self::RouteNotAccepted | Self::Unauthorized => Code::PermissionDenied,
        }
    }

    pub(super) fn origin(self) -> Origin {
        match self {
            Self::KeyMissing | Self::KeyOutside | Self::Invalid | Self::UnknownService | Self::TooLarge => {
                Origin::Caller
            }
            Self::Unavailable
            | Self::NoEndpoints
            | Self::NoReplica
            | Self::RateLimited
            | Self::Dropped
            | Self::Deadline
            | Self::Loop
            | Self::RouteNotAccepted
            | Self::Unauthorized => Origin::Mesh,
            Self::Unreachable | Self::Reset | Self::Protocol | Self::Overloaded => Origin::Server,
        }
    }

    pub(crate) fn retry(self) -> Retry {
        match self {
            Self::Unreachable
            | Self::Unavailable
            | Self::NoEndpoints
            | Self::NoReplica
            | Self::RateLimited
            | Self::Overloaded => Retry::Unsent,
            Self::Deadline | Self::Reset | Self::Protocol => Retry::MaybeSent,
            // A retry would bring back the load that was dropped.
            Self::Dropped
            | Self::UnknownService
            | Self::KeyMissing
            | Self::KeyOutside
            | Self::Invalid
            | Self::TooLarge
            | Self::Loop
            | Self::RouteNotAccepted
            | Self::Unauthorized => Retry::Never,
        }
    }
}

/// Returns the fault in a response, if any. An injected fault is not included, because it stands for a response of
/// the service.
pub(crate) fn carried_fault(headers: &HeaderMap) -> Option<FaultKind> {
    FaultKind::from_label(headers.get(FAULT)?.to_str().ok()?)
}

/// Returns the gRPC status code for an HTTP status, by the gRPC project's mapping.
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

impl From<&PickError> for FaultKind {
    fn from(why: &PickError) -> Self {
        match why {
            PickError::NoEndpoints | PickError::NoneInRegion { .. } | PickError::PlaintextRefused { .. } => {
                Self::NoEndpoints
            }
            PickError::Dropped { .. } => Self::Dropped,
            PickError::KeyMissing => Self::KeyMissing,
            PickError::KeyOutside { .. } => Self::KeyOutside,
            PickError::NoReplica { .. } | PickError::NoShardMap => Self::NoReplica,
            PickError::RouteNotAccepted { .. } => Self::RouteNotAccepted,
        }
    }
}

/// Converts to the fault kinds of traffic reports.
impl From<FaultKind> for CallFault {
    fn from(kind: FaultKind) -> Self {
        match kind {
            FaultKind::UnknownService => Self::UnknownService,
            FaultKind::Unavailable => Self::Unavailable,
            FaultKind::NoEndpoints => Self::NoEndpoints,
            FaultKind::KeyMissing => Self::KeyMissing,
            FaultKind::KeyOutside => Self::KeyOutside,
            FaultKind::NoReplica => Self::NoReplica,
            FaultKind::RateLimited => Self::RateLimited,
            FaultKind::Dropped => Self::Dropped,
            FaultKind::Deadline => Self::Deadline,
            FaultKind::Unreachable => Self::Unreachable,
            FaultKind::Reset => Self::Reset,
            FaultKind::Invalid => Self::Invalid,
            FaultKind::Protocol => Self::Protocol,
            FaultKind::Overloaded => Self::Overloaded,
            FaultKind::TooLarge => Self::TooLarge,
            FaultKind::Loop => Self::Loop,
            FaultKind::RouteNotAccepted => Self::RouteNotAccepted,
            FaultKind::Unauthorized => Self::Unauthorized,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_labels_equal_those_of_traffic_reports() {
        assert!(FaultKind::ALL.iter().all(|kind| CallFault::from(*kind).label() == kind.label()));
    }
}
