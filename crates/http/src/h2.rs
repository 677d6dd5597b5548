//! HTTP/2 as bytes (RFC 9113), without sockets: either side of a connection, as a proxy serves it and as calls are made on it.
//!
//! h2, whose place this takes, is a library for everybody: it reads 8 KB at a time into a buffer of its own, takes heads
//! apart into names and values that are looked at again, and hands each frame on through a store of streams and two channels.
//! Here frames are read where they came, fields are understood once and then come from the table, and bodies are passed on where
//! they lie. It is held against h2, frame by frame and message by message, in tests.

mod allowance;
mod answer_body;
mod call;
mod connection;
mod exchange;
mod frame;
mod lost;
mod message;
mod outbound;
mod outbox;
mod reason;
mod request_body;
mod responder;
mod saying;
mod session;
mod tunnel;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use answer_body::AnswerBody;
pub use call::{Answered, Call, Unanswered, Upload};
pub use connection::{Connection, End};
pub use frame::PREFACE;
pub use lost::Lost;
pub use message::keep_allowed;
pub use outbound::Outbound;
pub use reason::{Reason, ResetReason, Violation};
pub use request_body::RequestBody;
pub use responder::{Gone, Responder};
pub use session::{Ask, Came, Place, Session};
pub use tunnel::{Duplex, Switch};

/// A session that its driver and its streams share.
pub type Shared = Arc<Mutex<Session>>;

/// The session, whoever has it.
pub fn lock(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}
