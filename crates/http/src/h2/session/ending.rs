//! How a connection ends.

use super::{
    super::{
        Lost, Reason, Violation,
        frame::{GOAWAY, HIGHEST, PING, push},
    },
    LAST, Session, Side,
};

/// How far the end of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goodbye {
    Unsaid,
    /// The other side was told, and asked whether it has heard.
    Warned,
    /// Nothing is taken after this stream.
    Said(u32),
}

impl Session {
    /// Ends the connection for what the other side has done, which it is told.
    pub fn end(&mut self, violation: Violation) -> Violation {
        // The last of the other side's streams.
        let last = if self.side == Side::Asked { self.last } else { 0 };
        self.say_goodbye(last, violation.reason);
        self.gone(Lost::Violated(violation));
        violation
    }

    /// The connection has broken, or ends: nothing comes any more, and nobody takes what is said. What has come whole stays.
    pub fn gone(&mut self, why: Lost) {
        self.is_gone = true;
        self.fresh.clear();
        for stream in self.streams.values_mut() {
            stream.reset.get_or_insert(Reason::CANCEL);
            stream.lost.get_or_insert(why);
            stream.wake();
        }
    }

    /// Asks the other side to take its further requests elsewhere. Those that it sent before it heard are answered.
    pub fn go_away(&mut self) {
        if self.goodbye == Goodbye::Unsaid {
            self.goodbye = Goodbye::Warned;
            // Requests may be on their way; what comes after the answer to the ping was sent by one who knows (RFC 9113 6.8).
            self.say_goodbye(HIGHEST, Reason::NO_ERROR);
            push(self.out.text(), PING, 0, 0, &LAST);
            self.wake_driver();
        }
    }

    pub(super) fn say_goodbye(&mut self, last: u32, reason: Reason) {
        let [last, reason] = [last, reason.0].map(u32::to_be_bytes);
        push(self.out.text(), GOAWAY, 0, 0, &[last, reason].concat());
        self.wake_driver();
    }

    /// Whether all is said and done.
    pub fn is_done(&self) -> bool {
        (self.is_left || matches!(self.goodbye, Goodbye::Said(_)))
            && self.open == 0
            && self.streams.is_empty()
    }
}
