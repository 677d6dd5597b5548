//! The client library: a program calls another service by name, and the call goes straight to the right server.
//!
//! [`Mesh`] is the entry point. A [`ServiceHandle`] is a `tower::Service` over `http` requests, which hyper HTTP/1.1
//! and HTTP/2 servers and all generated tonic clients accept. `fairmesh-server` is the server side, and
//! `docs/library.md` has an example for each kind of program.
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
//!
//! Decision: this crate re-exports what programs use, and has no code of its own. Proxies and lookasides make calls
//! with the same `fairmesh-calls`, whose other items are subject to change. Rejected: hiding those items only from the
//! documentation of a single crate, where programs could still use them and the compiler would enforce nothing.

#[doc(inline)]
pub use fairmesh_calls::{
    Body, Fault, FaultKind, IntoServiceName, Mesh, MeshBuilder, Origin, Retry, ServiceHandle, Tunnel,
    observe::{ServiceStats, Stats, Trace},
};
#[cfg(feature = "fixed")]
#[doc(inline)]
pub use fairmesh_calls::{FixedMesh, Injection};
pub use fairmesh_headers::{Deadline, SpanContext};
pub use fairmesh_http::BoxError;
pub use fairmesh_model::{
    EndpointState, InstanceId, Invalid, KeyRange, Location, Protocol, Region, Role, ServiceName, ShardId,
    ShardKey, SpiffeId, SpiffePath,
};
pub use fairmesh_router::{EndpointTarget, PeerIdentity};
pub use fairmesh_wire::transport::{Address, Transport};

/// Observation of calls: counters, per-call traces, observers, and explanations of decisions.
pub mod observe {
    #[doc(inline)]
    pub use fairmesh_calls::observe::{
        AttemptEnd, AttemptRecord, CallExplanation, Decision, Ejection, EndpointStatus, Freshness, Metric,
        Observer,
    };
    pub use fairmesh_model::{BalancingPolicy, Verdict};
    pub use fairmesh_router::{Explanation, Step};
}
