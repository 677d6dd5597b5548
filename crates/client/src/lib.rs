//! The embeddable library: a program calls another service by name, and the call goes straight to the right server.
//!
//! It is built on `rib` (records from the agent), `router` (routing and balancing) and [`fairmesh_http`] (HTTP as
//! bytes). [`Mesh`] is the entry point; a [`ServiceHandle`] is a `tower::Service` over `http` requests that hyper
//! HTTP/1.1 and HTTP/2 servers and every generated tonic client accept. `fairmesh-server` is the other end. `call` is the
//! state machine that every form of Fairmesh runs around an attempt, without a transport, and `discovery` the source of its
//! snapshots.
//!
//! ```no_run
//! # async fn call() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use fairmesh_client::Mesh;
//!
//! let mesh = Mesh::connect().await?;
//! let cart = mesh.service("shop/cart")?.key(618).role("secondary")?;
//! let response = cart.send(http::Request::get("/items").body(fairmesh_client::Body::empty())?).await?;
//! # Ok(()) }
//! ```

#![warn(clippy::missing_errors_doc)]

// What the mesh's own programs are built on, beside the public API: no promise is made for it.
#[doc(hidden)]
pub mod call;
#[doc(hidden)]
pub mod discovery;
mod dispatch;
mod event_loops;
mod fault;
#[doc(hidden)]
pub mod fuzzing;
mod lookaside;
mod mesh;
pub mod observe;
#[doc(hidden)]
pub mod proxy_support;
mod response_body;
mod service;
mod transport;

#[doc(hidden)]
pub use call::CallContext;
pub use fairmesh_headers::{Deadline, SpanContext};
pub use fairmesh_http::BoxError;
pub use fairmesh_model::{
    EndpointState, InstanceId, Invalid, KeyRange, Location, Protocol, Region, Role, ServiceName, ShardId,
    ShardKey,
};
pub use fairmesh_router::EndpointTarget;
#[doc(hidden)]
pub use fairmesh_router::Step;
pub use fairmesh_wire::transport::{Address, Transport};
pub use fault::{Fault, FaultKind, Origin, Retry};
pub use mesh::{FixedMesh, Injection, IntoServiceName, Mesh, MeshBuilder};
pub use observe::{ServiceStats, Stats, Trace};
pub use response_body::{Body, Tunnel};
pub use service::ServiceHandle;
