use std::{fmt, time::Duration};

use fairmesh_model::ServiceName;
use fairmesh_router::EndpointTarget;
use http::StatusCode;

use crate::fault::FaultKind;

/// Receives every attempt of a mesh's calls, for example to count attempts by endpoint. See
/// [`MeshBuilder::observer`](crate::MeshBuilder::observer). It runs on the request path, so it must not block.
pub trait Observer: fmt::Debug + Send + Sync {
    /// Called when an attempt has ended: its response has begun, or it failed.
    fn attempt_ended(&self, ended: &AttemptEnd<'_>);
}

/// An attempt that has ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AttemptEnd<'a> {
    /// The service that received the call.
    pub service: &'a ServiceName,
    /// The endpoint that was called.
    pub endpoint: &'a EndpointTarget,
    /// Status of the response, or the kind of fault.
    pub outcome: Result<StatusCode, FaultKind>,
    /// Time from the decision of the attempt to the head of its response, or to its failure.
    pub took: Duration,
}

impl<'a> AttemptEnd<'a> {
    /// Creates the value that a mesh reports, for tests of an [`Observer`].
    pub fn new(
        service: &'a ServiceName,
        endpoint: &'a EndpointTarget,
        outcome: Result<StatusCode, FaultKind>,
        took: Duration,
    ) -> Self {
        Self { service, endpoint, outcome, took }
    }
}
