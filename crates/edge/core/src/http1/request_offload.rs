//! Requests of a client that reach their endpoints without passing through the proxy.

use std::task::{Context, Poll};

use fairmesh_calls::forwarding::SentRequest;
use tokio::time::Instant;

/// A sender, such as the kernel, that takes requests from the client's connection and sends them itself. The
/// connection handles the requests that the sender returns in order with those it reads.
///
/// A type parameter rather than a variant of an enum: connections without a sender neither store nor check
/// anything.
pub trait Offload: Unpin {
    /// Waits until the connection may parse its next request. The sender may return a request, whose bytes come
    /// before those that the connection has read. `read` is the total number of bytes read so far; `has_input` says
    /// whether some of them are unparsed.
    fn poll_request(
        &mut self,
        read: u64,
        has_input: bool,
        context: &mut Context<'_>,
    ) -> Poll<Option<Vec<u8>>>;

    /// Takes the call of the request that [`poll_request`](Self::poll_request) returned, if its first attempt was
    /// already sent. Returns it only once.
    fn take_sent(&mut self) -> Option<SentRequest>;

    /// Allows the sender to take the next request. The connection has handled all requests within the first `read`
    /// bytes, and is about to send a response of `length` bytes, if known.
    fn note_served(&mut self, read: u64, length: Option<u64>);

    /// Notes that the connection is about to send `bytes` bytes; `None` if the number is unknown.
    fn note_sent(&mut self, bytes: Option<usize>);

    /// When the sender's last call completed.
    fn last_completed(&self) -> Option<Instant>;

    /// Whether an idle connection may be closed. From `true` on, the sender takes no further request.
    fn may_close(&mut self) -> bool;
}

/// The type for connections without another sender. It has no values.
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
