//! Calls of a mesh: the basis of the client library, proxies and lookasides.
//!
//! The crate builds on `rib` (records from the agent), `router` (routing and balancing) and [`fairmesh_connections`]
//! (pooled connections to endpoints). [`discovery`] follows records and publishes the state of each service. [`call`]
//! is the state machine, without a transport, that every form of Fairmesh runs around an attempt. `dispatch` sends the
//! attempts. Programs call through [`Mesh`] and [`ServiceHandle`]; proxies also use [`forwarding`].
//!
//! Decision: `fairmesh-client` re-exports what programs use, so that everything here may change between releases.
//! Rejected: one crate that hides its internals only from its documentation, since the compiler would not enforce the
//! separation.

#![warn(clippy::missing_errors_doc)]

pub mod call;
pub mod discovery;
mod dispatch;
mod fault;
pub mod forwarding;
pub mod fuzzing;
mod load_report;
mod lookaside;
mod mesh;
pub mod observe;
mod response_body;
mod service;

pub use fairmesh_headers::{Deadline, SpanContext};
pub use fairmesh_http::BoxError;
pub use fairmesh_model::{
    EndpointState, InstanceId, Invalid, KeyRange, Location, Protocol, Region, Role, ServiceName, ShardId,
    ShardKey,
};
pub use fairmesh_router::{EndpointTarget, PeerIdentity};
pub use fairmesh_wire::transport::{Address, Transport};
pub use fault::{Fault, FaultKind, Origin, Retry};
#[cfg(feature = "fixed")]
pub use mesh::{FixedMesh, Injection};
pub use mesh::{IntoServiceName, Mesh, MeshBuilder};
pub use observe::{Stats, Trace};
pub use response_body::{Body, Tunnel};
pub use service::ServiceHandle;
