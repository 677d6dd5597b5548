//! Requests of a client that reach their endpoints past the proxy.

use std::task::{Context, Poll};

use fairmesh_calls::forwarding::SentRequest;
use tokio::time::Instant;

/// Requests that another sender, such as the kernel, takes from the client's connection and sends itself. The connection handles the
/// requests that the sender returns in order with those that it reads.
///
/// A type parameter rather than a field of an enum: connections without a sender neither store nor check anything.
pub trait Offload: Unpin {
    /// Waits until the connection may parse its next request. The sender may return a request: its bytes come before those that the
    /// connection has read. `read` is the number of bytes read so far, and `has_input` whether some of them are not parsed.
    fn poll_request(
        &mut self,
        read: u64,
        has_input: bool,
        context: &mut Context<'_>,
    ) -> Poll<Option<Vec<u8>>>;

    /// The call of the request that [`poll_request`](Self::poll_request) returned, once: its first attempt was sent.
    fn take_sent(&mut self) -> Option<SentRequest>;

    /// Lets the sender take the next request. The connection has handled all requests among the first `read` bytes, and is about to send
    /// a response of `length` bytes, if that is known.
    fn note_served(&mut self, read: u64, length: Option<u64>);

    /// The connection is about to send so many bytes; `None` if the number is not known.
    fn note_sent(&mut self, bytes: Option<usize>);

    /// When the sender's last call ended.
    fn last_completed(&self) -> Option<Instant>;

    /// Whether an idle connection may be closed. The sender takes no further request then.
    fn may_close(&mut self) -> bool;
}

/// No other sender.
#[derive(Debug)]
pub enum NoOffload {}

impl Offload for NoOffload {
    fn poll_request(&mut self, _: u64, _: bool, _: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        match *self {}
    }

    fn take_sent(&mut self) -> Option<SentRequest> {
        match *self {}
    }

    fn note_served(&mut self, _: u64, _: Option<u64>) {
        match *self {}
    }

    fn note_sent(&mut self, _: Option<usize>) {
        match *self {}
    }

    fn last_completed(&self) -> Option<Instant> {
        match *self {}
    }

    fn may_close(&mut self) -> bool {
        match *self {}
    }
}
