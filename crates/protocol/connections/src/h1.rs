//! HTTP/1.1: one call at a time per connection; idle connections are kept for reuse.
//!
//! The call that uses a connection owns it, writes its request and reads its response itself, so no other task has to
//! be woken. Rejected: a task per connection, as in hyper, which costs two context switches per call.

mod borrowed_exchange;
mod connection;
mod pool;
mod response_body;
mod upload;

#[cfg(test)]
mod tests;

pub(super) use self::pool::{MAX_IDLE_CHECKS, Pool, receive, send_over_new};
pub use self::{
    borrowed_exchange::{BorrowedExchange, BorrowedOutcome},
    pool::call_over,
    response_body::ResponseBody,
};
