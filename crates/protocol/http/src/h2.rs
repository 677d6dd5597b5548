//! HTTP/2 as bytes (RFC 9113), without sockets: the server side of a proxy's connections and the client side of calls.
//!
//! The `h2` crate, which this module replaced, is general: it reads 8 KB at a time into a buffer of its own, splits
//! headers into names and values that are parsed again, and passes each frame through a store of streams and two
//! channels. Here frames are parsed in the read buffer, repeated fields come parsed from the dynamic table, and bodies
//! are forwarded without copying. Tests compare this module with `h2`, frame by frame and message by message.

#![cfg_attr(
    not(feature = "server"),
    allow(dead_code, reason = "parts of the session are for its server side")
)]

mod body_sender;
mod client_call;
mod client_connection;
mod drain_read;
mod error_code;
mod exchange;
mod flood_limit;
mod frame;
mod message;
mod request_body;
mod responder;
mod response_body;
#[cfg(feature = "server")]
mod server_connection;
mod session;
mod stream_error;
mod tunnel;
mod write_buffer;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use client_call::{Call, CallError, CallResponse, Upload};
pub use client_connection::ClientConnection;
pub use drain_read::DrainRead;
pub use error_code::{Reason, ResetReason, Violation};
pub use frame::PREFACE;
pub use message::keep_allowed;
pub use request_body::RequestBody;
pub use responder::{Responder, StreamReset};
pub use response_body::ResponseBody;
#[cfg(feature = "server")]
pub use server_connection::{ConnectionError, ServerConnection};
pub use session::{Capacity, IncomingRequest, RequestHead, Session};
pub use stream_error::StreamError;
pub use tunnel::{PendingTunnel, TunnelStream};

/// A session, shared by the task that drives the connection and by the users of its streams.
pub type Shared = Arc<Mutex<Session>>;

/// Locks the session, even if it was poisoned by a panic elsewhere.
pub fn lock(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}
