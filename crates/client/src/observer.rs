use std::{fmt, time::Duration};

use fairmesh_model::ServiceName;
use fairmesh_router::EndpointTarget;
use http::StatusCode;

use crate::FaultKind;

/// Is told of every try of every call of a mesh, for counters by endpoint: see
/// [`MeshBuilder::observer`](crate::MeshBuilder::observer). It is called on the way of calls, so it must not wait.
pub trait Observer: fmt::Debug + Send + Sync {
    /// A try has ended: its answer has begun, or there will be none.
    fn tried(&self, ended: &TryEnded<'_>);
}

/// A try that has ended.
#[derive(Clone, Copy, Debug)]
pub struct TryEnded<'a> {
    /// The service that got the call.
    pub service: &'a ServiceName,
    /// Who was asked.
    pub endpoint: &'a EndpointTarget,
    /// The answer's status, or what went wrong.
    pub outcome: Result<StatusCode, FaultKind>,
    /// From its decision to the head of its answer, or to its failure.
    pub took: Duration,
}
