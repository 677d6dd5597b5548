use fairmesh_calls::FaultKind;
use fairmesh_model::ServiceName;

/// A route chose a backend that is not declared, so that the call fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a route of {service} chooses {backend}, which is not declared")]
pub struct UndeclaredBackend {
    /// The service with the route.
    pub service: ServiceName,
    /// The backend that the route chose.
    pub backend: ServiceName,
}

impl UndeclaredBackend {
    /// The fault with which the call fails.
    pub const REASON: FaultKind = FaultKind::UnknownService;
}
