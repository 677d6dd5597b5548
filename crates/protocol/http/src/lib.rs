//! HTTP/1.1, HTTP/2 and HPACK as bytes and connections: shared by clients and servers.
//!
//! It has no notion of services, endpoints or policies. [`h1`] and [`h2`] read and write messages without sockets,
//! [`hpack`] compresses headers; the client's pool and the proxy's listeners drive them. Headers that a caller
//! reserves for itself come in as a predicate on names.
//!
//! Decision: own protocol code instead of hyper and h2, because requests are forwarded from the read buffer, without a
//! map of headers. What that saves beside a proxy of hyper and its pool is `cpu_vs_bare` in `docs/benchmarks.md`.

pub mod h1;
pub mod h2;
pub mod hpack;
pub mod informational;
pub mod path;
mod response_deadline;
pub mod socket;

pub use path::{Path, RawPath};
pub use response_deadline::ResponseDeadline;

/// An error of any kind, as in bodies and tower services.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
