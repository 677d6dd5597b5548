//! Ends a connection: GOAWAY and errors.

use super::{
    super::{
        Reason, StreamError, Violation,
        frame::{GOAWAY, MAX_31_BIT, PING, push},
    },
    GOAWAY_PING, Role, Session,
};

/// Progress of a graceful close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoAwayState {
    NotSent,
    /// The first GOAWAY is sent (RFC 9113 6.8), followed by a PING whose acknowledgement shows that the peer has
    /// received it.
    Warned,
    /// The last GOAWAY is sent: streams after this identifier are not processed.
    Sent(u32),
}

impl Session {
    /// Ends the connection with GOAWAY because of a protocol violation by the peer.
    pub fn terminate(&mut self, violation: Violation) -> Violation {
        // Identifier of the peer's last stream.
        let last = if self.role == Role::Server { self.last_stream } else { 0 };
        self.send_goaway(last, violation.reason);
        self.close(StreamError::Violation(violation));
        violation
    }

    /// Marks the connection as failed or ended: nothing more is received or accepted. Complete messages stay readable.
    pub fn close(&mut self, why: StreamError) {
        self.is_closed = true;
        self.pending_requests.clear();
        for stream in self.streams.values_mut() {
            stream.reset.get_or_insert(Reason::CANCEL);
            stream.error.get_or_insert(why);
            stream.wake();
        }
    }

    /// Begins a graceful close: asks the client to send further requests on another connection. Requests in flight are
    /// served.
    pub fn go_away(&mut self) {
        if self.goaway == GoAwayState::NotSent {
            self.goaway = GoAwayState::Warned;
            // More requests may be in flight. Anything after the acknowledgement of the PING was sent after the peer
            // received GOAWAY (RFC 9113 6.8).
            self.send_goaway(MAX_31_BIT, Reason::NO_ERROR);
            push(self.out.buffer(), PING, 0, 0, &GOAWAY_PING);
            self.wake_driver();
        }
    }

    pub(super) fn send_goaway(&mut self, last: u32, reason: Reason) {
        let [last, reason] = [last, reason.0].map(u32::to_be_bytes);
        push(self.out.buffer(), GOAWAY, 0, 0, &[last, reason].concat());
        self.wake_driver();
    }

    /// Whether a closing connection has no streams left.
    pub fn is_done(&self) -> bool {
        (self.goaway_received || matches!(self.goaway, GoAwayState::Sent(_)))
            && self.open == 0
            && self.streams.is_empty()
    }
}
