//! Accepts connections within limits, and bounds what one peer may use: connections and descriptors, the time for
//! preface, headers and body, and the bytes of incomplete messages. `docs/limits.md` lists all limits.
//!
//! The crate is independent of the mesh. `wire`'s transport serves gRPC on it, [`PageListener`] serves the pages for
//! operators, and the library's server serves the services of programs.
//!
//! - [`listener_table`] has a row for every listener.
//! - [`Listeners`] are the listeners of one process. They share the [`Memory`] for incomplete requests.
//! - An [`Acceptor`] accepts for all listeners of one purpose. It returns [`GuardedStream`]s, which stay in its table
//!   until they are dropped. Once a second it closes connections that exceed a time limit. At its connection limit, it
//!   closes quiet connections in favour of new ones.
//! - [`guard_request`] bounds the body of one request in time and memory.
//!
//! A timer per connection was rejected: one scan of the table per second costs less than setting a timer for each
//! request, and the same table shows which connection can be closed when there are too many.

mod acceptor;
mod body_framing;
mod connection;
mod descriptor_limit;
mod guarded_stream;
mod http2_frames;
mod limits;
pub mod listener_table;
mod listeners;
mod message_claim;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "http")]
mod page_listener;
mod reaper;
mod request_body;
mod request_guard;
mod request_memory;
mod response_body;
mod unread_responses;
mod waiting_handlers;

pub use acceptor::Acceptor;
pub use body_framing::Framing;
pub use connection::{CloseReason, Connection, InFlight};
pub use descriptor_limit::{descriptor_limit, raise_descriptor_limit};
pub use guarded_stream::{ConnectionSlot, GuardedStream};
pub use limits::{Http2Settings, Limits};
pub use listeners::Listeners;
pub use message_claim::MessageClaim;
#[cfg(feature = "http")]
pub use page_listener::{PageListener, Securing};
pub use request_body::{BodyError, RequestBody};
pub use request_guard::{GuardedCall, RequestGuard, guard_request};
pub use request_memory::Memory;
pub use response_body::ResponseBody;
pub use waiting_handlers::{QueuePlace, WaitRefused};
