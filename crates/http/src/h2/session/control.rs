//! Frames about the connection, and about streams as such.

use super::{
    super::{
        Reason, Violation,
        frame::{ACK, HIGHEST, Head, PING, RST_STREAM, SETTINGS, USUAL, WINDOW_UPDATE, number, push},
        message::MOST,
    },
    Ended, FIRST_WINDOW, Goodbye, LAST, Lost, MOST_STREAMS, MOST_UNSEEN, REMEMBERED, STREAM_WINDOW, Session,
    Side, Wrong,
};

// RFC 9113 6.5.2.
const HEADER_TABLE_SIZE: u16 = 0x1;
const ENABLE_PUSH: u16 = 0x2;
const MAX_CONCURRENT_STREAMS: u16 = 0x3;
const INITIAL_WINDOW_SIZE: u16 = 0x4;
const MAX_FRAME_SIZE: u16 = 0x5;
const MAX_HEADER_LIST_SIZE: u16 = 0x6;

/// The streams that are begun before the other side has said how many it allows: what RFC 9113 6.5.2 recommends as the least.
/// Without it, the calls of the first round trip would all be sent at once, and most be refused.
pub(super) const FIRST_STREAMS: u32 = 100;

/// Writes what the other side has to know at first.
pub(super) fn settle(side: Side, out: &mut Vec<u8>) {
    let settings = [
        match side {
            Side::Asked => (MAX_CONCURRENT_STREAMS, MOST_STREAMS),
            Side::Asking => (ENABLE_PUSH, 0),
        },
        (INITIAL_WINDOW_SIZE, STREAM_WINDOW),
        (MAX_HEADER_LIST_SIZE, MOST as u32),
    ];
    let payload: Vec<u8> = settings
        .iter()
        .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    push(out, SETTINGS, 0, 0, &payload);
    push(out, WINDOW_UPDATE, 0, 0, &(side.window() - FIRST_WINDOW).to_be_bytes());
}

/// The four bytes that are all of a payload.
fn four(payload: &[u8]) -> Result<[u8; 4], Violation> {
    payload.try_into().map_err(|_| Violation::size("a frame is not as long as its kind is"))
}

impl Session {
    /// An order among streams: looked at, and not followed (RFC 9113 5.3).
    pub(super) fn priority(&self, head: Head, payload: &[u8]) -> Result<(), Wrong> {
        if head.stream == 0 {
            return Err(Violation::protocol("PRIORITY on no stream").into());
        }
        let (reason, why) = match payload.first_chunk::<4>() {
            Some(after) if payload.len() == 5 && number(*after) != head.stream => return Ok(()),
            Some(_) if payload.len() == 5 => (Reason::PROTOCOL_ERROR, "a stream is to come after itself"),
            _ => (Reason::FRAME_SIZE_ERROR, "PRIORITY does not have 5 bytes"),
        };
        // It may come before its stream, which nobody may reset then.
        self.has_begun(head.stream).map_err(|_| Violation::new(reason, why))?;
        Err(Wrong::Stream(head.stream, reason))
    }

    /// The other side begins no more streams, or takes none, and waits for the end of those that there are.
    pub(super) fn was_left(&mut self, head: Head, payload: &[u8]) -> Result<(), Wrong> {
        if head.stream != 0 {
            return Err(Violation::protocol("GOAWAY on a stream").into());
        }
        let ([last, reason, ..], _) = payload.as_chunks::<4>() else {
            return Err(Violation::size("GOAWAY has fewer than 8 bytes").into());
        };
        self.is_left = true;
        if self.side == Side::Asking {
            self.unseen_after(number(*last), Reason(u32::from_be_bytes(*reason)));
        }
        Ok(())
    }

    pub(super) fn settings(&mut self, head: Head, payload: &[u8]) -> Result<(), Wrong> {
        if head.stream != 0 {
            return Err(Violation::protocol("SETTINGS on a stream").into());
        }
        if head.flags & ACK != 0 {
            let is_empty = payload.is_empty();
            return if is_empty {
                Ok(())
            } else {
                Err(Violation::size("SETTINGS that agree say more").into())
            };
        }
        let (settings, []) = payload.as_chunks::<6>() else {
            return Err(Violation::size("SETTINGS are not whole").into());
        };
        let (mut window, mut limit) = (None, None);
        for [n0, n1, value @ ..] in settings {
            let (name, value) = (u16::from_be_bytes([*n0, *n1]), u32::from_be_bytes(*value));
            self.set(name, value)?;
            window = (name == INITIAL_WINDOW_SIZE).then_some(value).or(window);
            limit = (name == MAX_CONCURRENT_STREAMS).then_some(value).or(limit);
        }
        // Once, and not for each time that it is there.
        if let Some(window) = window {
            self.set_window(window)?;
        }
        // Who says nothing of it at first allows any number.
        self.limit = limit.unwrap_or(if self.is_settled { self.limit } else { u32::MAX });
        self.is_settled = true;
        push(self.out.text(), SETTINGS, ACK, 0, &[]);
        self.wake_driver();
        Ok(())
    }

    fn set(&mut self, name: u16, value: u32) -> Result<(), Violation> {
        match name {
            HEADER_TABLE_SIZE => self.encoder.limit(value),
            ENABLE_PUSH if value > 1 || value == 1 && self.side == Side::Asking => {
                return Err(Violation::protocol("ENABLE_PUSH is not what it may be"));
            }
            INITIAL_WINDOW_SIZE if value > HIGHEST => {
                return Err(Violation::new(
                    Reason::FLOW_CONTROL_ERROR,
                    "INITIAL_WINDOW_SIZE is above 2^31 - 1",
                ));
            }
            // Ours are of the least size that it may be: streams that share a connection take turns.
            MAX_FRAME_SIZE if !(USUAL..1 << 24).contains(&(value as usize)) => {
                return Err(Violation::protocol("MAX_FRAME_SIZE is not of 2^14 to 2^24 - 1"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Changes the room on every stream, maybe to less than none (RFC 9113 6.9.2).
    fn set_window(&mut self, value: u32) -> Result<(), Violation> {
        let more = i64::from(value) - self.first_room;
        self.first_room = value.into();
        for stream in self.streams.values_mut().filter(|stream| !stream.is_over) {
            stream.room += more;
            if stream.room > HIGHEST.into() {
                return Err(Violation::new(Reason::FLOW_CONTROL_ERROR, "a window is above 2^31 - 1"));
            }
            stream.wake_writer();
        }
        Ok(())
    }

    pub(super) fn ping(&mut self, head: Head, payload: &[u8]) -> Result<(), Wrong> {
        if head.stream != 0 {
            return Err(Violation::protocol("PING on a stream").into());
        }
        if payload.len() != 8 {
            return Err(Violation::size("PING does not have 8 bytes").into());
        }
        if head.flags & ACK == 0 {
            push(self.out.text(), PING, ACK, 0, payload);
            self.wake_driver();
        } else if self.goodbye == Goodbye::Warned && payload == LAST {
            self.goodbye = Goodbye::Said(self.last);
            self.say_goodbye(self.last, Reason::NO_ERROR);
        }
        Ok(())
    }

    pub(super) fn window_update(&mut self, head: Head, payload: &[u8]) -> Result<(), Wrong> {
        let more = number(four(payload)?);
        if head.stream == 0 {
            if more == 0 {
                return Err(Violation::protocol("a window grows by nothing").into());
            }
            self.room += i64::from(more);
            if self.room > HIGHEST.into() {
                return Err(Violation::new(Reason::FLOW_CONTROL_ERROR, "the window is above 2^31 - 1").into());
            }
            self.wake_waiting();
            return Ok(());
        }
        self.has_begun(head.stream)?;
        let Some(stream) = self.streams.get_mut(&head.stream).filter(|stream| !stream.is_over) else {
            return Ok(());
        };
        if more == 0 {
            return Err(Wrong::Stream(head.stream, Reason::PROTOCOL_ERROR));
        }
        stream.room += i64::from(more);
        stream.wake_writer();
        match stream.room > HIGHEST.into() {
            true => Err(Wrong::Stream(head.stream, Reason::FLOW_CONTROL_ERROR)),
            false => Ok(()),
        }
    }

    /// Whether a stream was begun, of which something is said.
    pub(super) fn has_begun(&self, stream: u32) -> Result<(), Violation> {
        let is_passed_over = self.side == Side::Asked && matches!(self.goodbye, Goodbye::Said(_));
        let is_later = stream > self.last && !is_passed_over;
        match is_later || stream.is_multiple_of(2) {
            true => Err(Violation::protocol("a frame is of a stream that was not begun")),
            false => Ok(()),
        }
    }

    pub(super) fn was_reset(&mut self, head: Head, payload: &[u8]) -> Result<(), Wrong> {
        if head.stream == 0 {
            return Err(Violation::protocol("RST_STREAM on no stream").into());
        }
        let reason = Reason(u32::from_be_bytes(four(payload)?));
        self.has_begun(head.stream)?;
        if let Some(at) = self.fresh.iter().position(|(stream, _)| *stream == head.stream) {
            self.fresh.remove(at);
            self.unseen += 1;
            if self.unseen > MOST_UNSEEN {
                let why = "requests were taken back before anybody could look at them";
                return Err(Violation::new(Reason::ENHANCE_YOUR_CALM, why).into());
            }
        }
        self.over(head.stream, Ended::There, Some(reason));
        Ok(())
    }

    /// Ends a stream from this side, unless it has ended.
    pub(in super::super) fn reset(&mut self, stream: u32, reason: Reason) {
        if self.is_gone {
            return;
        }
        if let Some(open) = self.streams.get_mut(&stream).filter(|stream| !stream.is_over) {
            open.lost = Some(Lost::GivenUp);
            self.refuse(stream, reason);
        }
    }

    /// Tells the other side what was wrong on a stream, which ends with it if it has not.
    pub(super) fn refuse(&mut self, stream: u32, reason: Reason) {
        push(self.out.text(), RST_STREAM, 0, stream, &reason.0.to_be_bytes());
        if let Some(at) = self.fresh.iter().position(|(fresh, _)| *fresh == stream) {
            self.fresh.remove(at);
        }
        match self.streams.contains_key(&stream) {
            true => self.over(stream, Ended::Here, Some(reason)),
            false => self.remember(stream, Ended::Here),
        }
        self.wake_driver();
    }

    /// A stream has ended: it is counted no more, and its handles know.
    pub(super) fn over(&mut self, number: u32, how: Ended, reset: Option<Reason>) {
        let Some(stream) = self.streams.get_mut(&number).filter(|stream| !stream.is_over) else { return };
        stream.is_over = true;
        self.open -= 1;
        stream.waits = false;
        if let Some(reason) = reset {
            stream.reset = Some(reason);
            stream.lost.get_or_insert(match how {
                Ended::There => Lost::Reset(reason),
                Ended::Here | Ended::Whole => Lost::Malformed(reason),
            });
            stream.wake();
            // Of an answer, what came before its end is read.
            if self.side == Side::Asked {
                stream.came.clear();
                let unread = std::mem::take(&mut stream.unread);
                self.make_room(unread);
            }
        }
        self.remember(number, how);
        self.forget_if_unknown(number);
    }

    pub(super) fn remember(&mut self, stream: u32, how: Ended) {
        if self.ended.len() >= REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back((stream, how));
    }

    /// How a stream ended, of those that did so lately.
    pub(super) fn how_ended(&self, stream: u32) -> Option<Ended> {
        self.ended.iter().rev().find(|(number, _)| *number == stream).map(|(_, how)| *how)
    }
}
