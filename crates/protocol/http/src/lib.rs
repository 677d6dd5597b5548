//! HTTP/1.1, HTTP/2 and HPACK as bytes and connections, shared by clients and servers.
//!
//! The crate knows nothing about services, endpoints or policies. [`h1`] and [`h2`] read and write messages without
//! sockets, and [`hpack`] compresses headers; the client's pool and the proxy's listeners drive them. Headers that a
//! caller reserves for itself come in as a predicate on names.
//!
//! Decision: own protocol code instead of hyper and h2, so that requests are forwarded from the read buffer without a
//! map of headers. `cpu_vs_bare` in `docs/benchmarks.md` shows the CPU saved compared with a proxy made of hyper and
//! its pool.

pub mod h1;
pub mod h2;
pub mod hpack;
pub mod informational;
pub mod path;
mod response_deadline;
pub mod socket_options;

pub use path::{Path, RawPath};
pub use response_deadline::ResponseDeadline;

/// Any error, as in bodies and tower services.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
