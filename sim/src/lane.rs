//! What a caller has of one server: a connection, and what asking it for its load has shown.

use std::sync::Arc;

use fairmesh_balancer::poll::{PollGuard, PollState, PollTarget};

/// How long a connection stays open without a call, in nanoseconds: as long as the client library keeps one.
const IDLE: u64 = 90_000_000_000;

/// The way to a server that was called.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Until when the connection is open if no call goes over it; 0 while there is none.
    open_until: u64,
    poll_state: Arc<PollState>,
    /// The question under way, by its flight.
    question: Option<(u32, PollGuard)>,
}

impl Lane {
    /// An answer to a call came over the connection.
    #[inline]
    pub(crate) fn used(&mut self, now: u64) {
        self.open_until = now + IDLE;
    }

    /// The connection is gone.
    pub(crate) fn close(&mut self) {
        self.open_until = 0;
    }

    pub(crate) fn is_open(&self, now: u64) -> bool {
        now < self.open_until
    }

    /// A question is under way.
    pub(crate) fn asks(&mut self, flight: u32, guard: PollGuard) {
        self.question = Some((flight, guard));
    }

    /// That question is over; `None` where it was meant for whoever was here before.
    pub(crate) fn asked_by(&mut self, flight: u32) -> Option<PollGuard> {
        self.question.take_if(|(number, _)| *number == flight).map(|(_, guard)| guard)
    }
}

/// Lanes whose connection is closed are not offered for questions at all.
impl PollTarget for Lane {
    fn poll_state(&self) -> &Arc<PollState> {
        &self.poll_state
    }

    fn is_connected(&self) -> bool {
        true
    }
}
