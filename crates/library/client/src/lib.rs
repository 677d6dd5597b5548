//! The embeddable library: a program calls another service by name, and the call goes straight to the right server.
//!
//! [`Mesh`] is the entry point; a [`ServiceHandle`] is a `tower::Service` over `http` requests that hyper HTTP/1.1 and
//! HTTP/2 servers and every generated tonic client accept. `fairmesh-server` is the other end, and `docs/library.md` has
//! an example for each kind of program.
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
//! Decision: this crate names what programs use, and has no code of its own: proxies and lookasides make calls by the same
//! `fairmesh-calls`, whose other items are subject to change. Rejected: hiding those from the documentation of one
//! crate, where programs can still use them, and the compiler keeps nothing apart.

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
