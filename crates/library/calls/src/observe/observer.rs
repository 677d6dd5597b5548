use std::{fmt, time::Duration};

use fairmesh_model::ServiceName;
use fairmesh_router::EndpointTarget;
use http::StatusCode;

use crate::fault::FaultKind;

/// Receives every attempt of every call of a mesh, for counters by endpoint: see
/// [`MeshBuilder::observer`](crate::MeshBuilder::observer). It runs on the path of calls, so it must not block.
pub trait Observer: fmt::Debug + Send + Sync {
    /// An attempt has ended: its response has begun, or there will be none.
    fn attempt_ended(&self, ended: &AttemptEnd<'_>);
}

/// An attempt that has ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AttemptEnd<'a> {
    /// The service that got the call.
    pub service: &'a ServiceName,
    /// The endpoint that was called.
    pub endpoint: &'a EndpointTarget,
    /// The status of the response, or the fault.
    pub outcome: Result<StatusCode, FaultKind>,
    /// From its decision to the head of its response, or to its failure.
    pub took: Duration,
}

impl<'a> AttemptEnd<'a> {
    /// What a mesh reports, for tests of an [`Observer`].
    pub fn new(
        service: &'a ServiceName,
        endpoint: &'a EndpointTarget,
        outcome: Result<StatusCode, FaultKind>,
        took: Duration,
    ) -> Self {
        Self { service, endpoint, outcome, took }
    }
}
