//! A caller's connection to one server, with its polling state.

use std::sync::Arc;

use fairmesh_balancer::load_poll::{PollGuard, PollState, PollTarget};

/// Idle timeout of a connection, in nanoseconds, as in the client library.
const IDLE_TIMEOUT: u64 = 90_000_000_000;

/// The connection to a server that was called before.
#[derive(Debug, Default)]
pub(crate) struct EndpointConnection {
    /// Time until which the connection stays open without a further call; 0 while it is closed.
    open_until: u64,
    poll_state: Arc<PollState>,
    /// The poll in flight, with its request number, if any.
    poll: Option<(u32, PollGuard)>,
}

impl EndpointConnection {
    /// Marks the connection as used by a response to a call.
    #[inline]
    pub(crate) fn mark_used(&mut self, now: u64) {
        self.open_until = now + IDLE_TIMEOUT;
    }

    /// Closes the connection.
    pub(crate) fn close(&mut self) {
        self.open_until = 0;
    }

    pub(crate) fn is_open(&self, now: u64) -> bool {
        now < self.open_until
    }

    /// Records that a poll was sent.
    pub(crate) fn begin_poll(&mut self, request: u32, guard: PollGuard) {
        self.poll = Some((request, guard));
    }

    /// Ends the poll; `None` if it belonged to the previous connection.
    pub(crate) fn end_poll(&mut self, request: u32) -> Option<PollGuard> {
        self.poll.take_if(|(id, _)| *id == request).map(|(_, guard)| guard)
    }
}

/// Closed connections are never offered as poll targets.
impl PollTarget for EndpointConnection {
    fn poll_state(&self) -> &Arc<PollState> {
        &self.poll_state
    }

    fn is_connected(&self) -> bool {
        true
    }
}
