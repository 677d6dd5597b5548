//! HTTP/1.1: one call at a time on a connection, idle ones kept.
//!
//! A connection is a value that the call which uses it owns: the call itself writes its request and reads its response,
//! so that nothing has to wake anything else. Rejected: a task per connection, as hyper has it, which costs two context
//! switches per call.

mod borrowed;
mod connection;
mod pool;
mod response_body;
mod upload;

#[cfg(test)]
mod tests;

pub(super) use self::pool::{MAX_IDLE_CHECKS, Pool, receive, send_over_new};
pub use self::{
    borrowed::{BorrowedExchange, BorrowedOutcome},
    pool::call_over,
    response_body::ResponseBody,
};
