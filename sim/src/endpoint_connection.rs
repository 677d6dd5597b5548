//! A caller's connection to one server, with its polling state.

use std::sync::Arc;

use fairmesh_balancer::poll::{PollGuard, PollState, PollTarget};

/// Idle timeout of a connection without calls, in nanoseconds: that of the client library.
const IDLE_TIMEOUT: u64 = 90_000_000_000;

/// The connection to a server that was called.
#[derive(Debug, Default)]
pub(crate) struct EndpointConnection {
    /// Until when the connection stays open without a call; 0 while closed.
    open_until: u64,
    poll_state: Arc<PollState>,
    /// The poll in flight, by its request number.
    poll: Option<(u32, PollGuard)>,
}

impl EndpointConnection {
    /// A response to a call arrived over the connection.
    #[inline]
    pub(crate) fn mark_used(&mut self, now: u64) {
        self.open_until = now + IDLE_TIMEOUT;
    }

    /// The connection was closed.
    pub(crate) fn close(&mut self) {
        self.open_until = 0;
    }

    pub(crate) fn is_open(&self, now: u64) -> bool {
        now < self.open_until
    }

    /// A poll was sent.
    pub(crate) fn begin_poll(&mut self, request: u32, guard: PollGuard) {
        self.poll = Some((request, guard));
    }

    /// The poll has ended; `None` if it belonged to the previous connection.
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
