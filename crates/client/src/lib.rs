//! The embeddable library: a program calls another service by name, and the call goes straight to the right server.
//!
//! It sits on `rib` (what the agent tells), `router` (what to choose), [`fairmesh_http`] (how to send). [`Mesh`] is the
//! entrance; a [`ServiceHandle`] is a `tower::Service` over `http` requests that hyper HTTP/1.1 and HTTP/2 servers and
//! every generated tonic client understand. [`mod@core`] holds what every form of Fairmesh must do alike around a try, without
//! a transport; `fairmesh-server` is the other end.
//!
//! ```no_run
//! # async fn call() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use fairmesh_client::Mesh;
//!
//! let mesh = Mesh::connect().await?;
//! let cart = mesh.service("shop/cart")?.key(618).role("secondary")?;
//! let answer = cart.send(http::Request::get("/items").body(fairmesh_client::Body::empty())?).await?;
//! # Ok(()) }
//! ```
//!
//! Decision: policies (retries, deadlines, budgets) run in a `decide` before and a `finish` after each try, and not in a
//! stack of tower layers. Layers were rejected because each of them boxes or wraps the request and its body, and because
//! a proxy's lean path could not share them.

mod body;
pub mod core;
mod cores;
pub mod explain;
mod fault;
#[doc(hidden)]
pub mod fuzzing;
mod leases;
mod mesh;
mod observer;
mod poll;
mod send;
mod service;
mod source;
mod stats;
mod trace;
mod transport;
mod tunnel;

pub use body::{Body, BodyEnd, Watch};
pub use core::CallContext;
pub use cores::on_core;
pub use fairmesh_headers::Deadline;
pub use fairmesh_http::BoxError;
pub use fairmesh_model::{InstanceId, Invalid, Location, Protocol, Region, ServiceName, ShardId, ShardKey};
pub use fairmesh_router::{EndpointTarget, Step};
pub use fairmesh_wire::transport::Address;
pub use fault::{Fault, FaultKind, Origin, Retry};
pub use mesh::{Mesh, MeshBuilder};
pub use observer::{Observer, TryEnded};
pub use send::{Apart, Passage};
pub use service::ServiceHandle;
pub use stats::Stats;
pub use trace::{Trace, Tried};
pub use tunnel::{Connected, Tunnel};
