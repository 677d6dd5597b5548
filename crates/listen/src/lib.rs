//! How listeners accept connections, and what one peer may cost: connections and descriptors, the time of preface, headers and
//! body, and the bytes of messages that are not complete. `docs/limits.md` is the table of all of it.
//!
//! It knows nothing of the mesh. `wire`'s transport serves gRPC on it, [`PageListener`] the pages for operators, and the library's
//! server the services of programs.
//!
//! * [`Listeners`] are those of one process. They share the [`Memory`] for incomplete requests.
//! * An [`Acceptor`] accepts for the listeners of one purpose. What it accepts is a [`Guarded`] stream, in its table until it is
//!   dropped. Once a second it closes the connections that are late; where it is full, quiet ones make room for new ones.
//! * [`guard_request`] bounds the body of one request in time and memory.
//!
//! A timer for each connection was rejected: one scan a second over the table costs less than arming a timer for each request,
//! and the same table says which connection can be closed when there are too many.

mod acceptor;
mod body;
mod connection;
mod descriptors;
mod framing;
mod guarded;
mod limits;
mod listeners;
mod memory;
#[cfg(feature = "metrics")]
mod metrics;
mod pages;
mod request;
mod response_body;
mod responses;
mod sweep;
mod wait;

pub use acceptor::Acceptor;
pub use body::{BodyError, RequestBody};
pub use connection::{CloseReason, Connection, InFlight};
pub use descriptors::{descriptor_limit, raise_descriptor_limit};
pub use framing::Framing;
pub use guarded::{Guarded, Place};
pub use limits::{Http2, Limits};
pub use listeners::Listeners;
pub use memory::Memory;
pub use pages::PageListener;
pub use request::{GuardedCall, RequestGuard, guard_request};
pub use response_body::ResponseBody;
pub use wait::WaitRefused;
