//! Accepts connections within limits, and bounds what one peer may use: connections and descriptors, the time of
//! preface, headers and body, and the bytes of incomplete messages. `docs/limits.md` lists all limits.
//!
//! It is independent of the mesh. `wire`'s transport serves gRPC on it, [`PageListener`] the pages for operators, and
//! the library's server the services of programs.
//!
//! * [`table`] has a row for every listener.
//! * [`Listeners`] are the listeners of one process. They share the [`Memory`] for incomplete requests.
//! * An [`Acceptor`] accepts for the listeners of one purpose. It returns [`GuardedStream`]s, which stay in its table until
//!   they are dropped. Once a second it closes connections that exceed a time limit; at its limit it closes quiet ones
//!   for new ones.
//! * [`guard_request`] bounds the body of one request in time and memory.
//!
//! A timer for each connection was rejected: one scan of the table per second costs less than setting a timer for each
//! request, and the same table tells which connection can be closed when there are too many.

mod acceptor;
mod body;
mod connection;
mod descriptors;
mod framing;
mod guarded;
mod http2_frames;
mod idle_reaper;
mod limits;
mod listeners;
mod memory;
mod message_claim;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "http")]
mod pages;
mod request;
mod response_body;
pub mod table;
mod unread_responses;
mod wait;

pub use acceptor::Acceptor;
pub use body::{BodyError, RequestBody};
pub use connection::{CloseReason, Connection, InFlight};
pub use descriptors::{descriptor_limit, raise_descriptor_limit};
pub use framing::Framing;
pub use guarded::{ConnectionSlot, GuardedStream};
pub use limits::{Http2Settings, Limits};
pub use listeners::Listeners;
pub use memory::Memory;
pub use message_claim::MessageClaim;
#[cfg(feature = "http")]
pub use pages::{PageListener, Securing};
pub use request::{GuardedCall, RequestGuard, guard_request};
pub use response_body::ResponseBody;
pub use wait::{QueuePlace, WaitRefused};
