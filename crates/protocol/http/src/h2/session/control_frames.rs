//! Handles connection-level frames and RST_STREAM.

use super::{
    super::{
        Reason, Violation,
        frame::{
            ACK, DEFAULT_FRAME_SIZE, FrameHeader, MAX_31_BIT, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE,
            push, u31,
        },
        message::HEADER_LIST_LIMIT,
    },
    CONNECTION_WINDOW, DEFAULT_WINDOW, FrameError, GOAWAY_PING, GoAwayState, INITIAL_WINDOW,
    MAX_EARLY_RESETS, MAX_REMEMBERED_ENDS, MAX_STREAMS, Role, Session, Shut, StreamEnd, StreamError,
};

// Identifiers of settings (RFC 9113 6.5.2).
const HEADER_TABLE_SIZE: u16 = 0x1;
const ENABLE_PUSH: u16 = 0x2;
const MAX_CONCURRENT_STREAMS: u16 = 0x3;
const INITIAL_WINDOW_SIZE: u16 = 0x4;
const MAX_FRAME_SIZE: u16 = 0x5;
const MAX_HEADER_LIST_SIZE: u16 = 0x6;

/// Minimum number of bytes by which a peer must open the connection's window before it counts as open.
const OPENED: u32 = 1 << 10;

/// Limit of concurrent streams before the server's SETTINGS arrive: the minimum that RFC 9113 6.5.2 recommends.
/// Without a limit, all calls of the first round trip would be sent at once, and most of them refused.
pub(super) const INITIAL_MAX_STREAMS: u32 = 100;

/// Writes the initial SETTINGS and WINDOW_UPDATE.
pub(super) fn write_initial_settings(role: Role, out: &mut Vec<u8>) {
    let settings = [
        match role {
            Role::Server => (MAX_CONCURRENT_STREAMS, MAX_STREAMS),
            Role::Client => (ENABLE_PUSH, 0),
        },
        (INITIAL_WINDOW_SIZE, INITIAL_WINDOW),
        (MAX_HEADER_LIST_SIZE, HEADER_LIST_LIMIT as u32),
    ];
    let payload: Vec<u8> = settings
        .iter()
        .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    push(out, SETTINGS, 0, 0, &payload);
    push(out, WINDOW_UPDATE, 0, 0, &(CONNECTION_WINDOW - DEFAULT_WINDOW).to_be_bytes());
}

/// Checks that a payload has exactly four bytes, and returns them.
fn exactly_four(payload: &[u8]) -> Result<[u8; 4], Violation> {
    payload.try_into().map_err(|_| Violation::size("the payload of a frame is not 4 bytes"))
}

impl Session {
    /// Checks a PRIORITY frame and otherwise ignores it (RFC 9113 5.3).
    pub(super) fn priority(&self, head: FrameHeader, payload: &[u8]) -> Result<(), FrameError> {
        if head.stream == 0 {
            return Err(Violation::protocol("PRIORITY on stream 0").into());
        }
        let (reason, why) = match payload.first_chunk::<4>() {
            Some(after) if payload.len() == 5 && u31(*after) != head.stream => return Ok(()),
            Some(_) if payload.len() == 5 => (Reason::PROTOCOL_ERROR, "a stream depends on itself"),
            _ => (Reason::FRAME_SIZE_ERROR, "the payload of PRIORITY is not 5 bytes"),
        };
        // PRIORITY may precede its stream, but an idle stream cannot be reset.
        self.check_opened(head.stream).map_err(|_| Violation::new(reason, why))?;
        Err(FrameError::Stream(head.stream, reason))
    }

    /// Handles GOAWAY: the peer opens or accepts no more streams, and waits for the open ones to end.
    pub(super) fn on_goaway(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), FrameError> {
        if head.stream != 0 {
            return Err(Violation::protocol("GOAWAY on a stream").into());
        }
        let ([last, reason, ..], _) = payload.as_chunks::<4>() else {
            return Err(Violation::size("the payload of GOAWAY is shorter than 8 bytes").into());
        };
        self.goaway_received = true;
        if self.role == Role::Client {
            self.fail_unprocessed(u31(*last), Reason(u32::from_be_bytes(*reason)));
        }
        Ok(())
    }

    pub(super) fn settings(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), FrameError> {
        if head.stream != 0 {
            return Err(Violation::protocol("SETTINGS on a stream").into());
        }
        if head.flags & ACK != 0 {
            let is_empty = payload.is_empty();
            return if is_empty {
                Ok(())
            } else {
                Err(Violation::size("SETTINGS with ACK have a payload").into())
            };
        }
        let (settings, []) = payload.as_chunks::<6>() else {
            return Err(Violation::size("the payload of SETTINGS is not a multiple of 6 bytes").into());
        };
        let (mut window, mut limit) = (None, None);
        for [n0, n1, value @ ..] in settings {
            let (name, value) = (u16::from_be_bytes([*n0, *n1]), u32::from_be_bytes(*value));
            self.apply_setting(name, value)?;
            window = (name == INITIAL_WINDOW_SIZE).then_some(value).or(window);
            limit = (name == MAX_CONCURRENT_STREAMS).then_some(value).or(limit);
        }
        // Only the last value applies, even if the setting occurs several times.
        if let Some(window) = window {
            self.set_initial_window(window)?;
        }
        // If the first SETTINGS contain no limit, any number of streams is allowed.
        self.stream_limit =
            limit.unwrap_or(if self.settings_received { self.stream_limit } else { u32::MAX });
        self.settings_received = true;
        push(self.out.buffer(), SETTINGS, ACK, 0, &[]);
        self.wake_driver();
        Ok(())
    }

    fn apply_setting(&mut self, name: u16, value: u32) -> Result<(), Violation> {
        match name {
            HEADER_TABLE_SIZE => self.encoder.limit(value),
            ENABLE_PUSH if value > 1 || value == 1 && self.role == Role::Client => {
                return Err(Violation::protocol("ENABLE_PUSH has an invalid value"));
            }
            INITIAL_WINDOW_SIZE if value > MAX_31_BIT => {
                return Err(Violation::new(
                    Reason::FLOW_CONTROL_ERROR,
                    "INITIAL_WINDOW_SIZE is above 2^31 - 1",
                ));
            }
            // Larger frames are allowed but not used: frames of the minimum size let streams that share a connection
            // take turns.
            MAX_FRAME_SIZE if !(DEFAULT_FRAME_SIZE..1 << 24).contains(&(value as usize)) => {
                return Err(Violation::protocol("MAX_FRAME_SIZE is not within 2^14 to 2^24 - 1"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Changes the send window of every stream; a window may become negative (RFC 9113 6.9.2).
    fn set_initial_window(&mut self, value: u32) -> Result<(), Violation> {
        let more = i64::from(value) - self.initial_send_window;
        self.initial_send_window = value.into();
        for stream in self.streams.values_mut().filter(|stream| !stream.is_closed) {
            stream.send_window += more;
            if stream.send_window > MAX_31_BIT.into() {
                return Err(Violation::new(Reason::FLOW_CONTROL_ERROR, "a send window exceeds 2^31 - 1"));
            }
            stream.wake_writer();
        }
        Ok(())
    }

    pub(super) fn ping(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), FrameError> {
        if head.stream != 0 {
            return Err(Violation::protocol("PING on a stream").into());
        }
        if payload.len() != 8 {
            return Err(Violation::size("the payload of PING is not 8 bytes").into());
        }
        if head.flags & ACK == 0 {
            push(self.out.buffer(), PING, ACK, 0, payload);
            self.wake_driver();
        } else if self.goaway == GoAwayState::Warned && payload == GOAWAY_PING {
            self.goaway = GoAwayState::Sent(self.last_stream);
            self.send_goaway(self.last_stream, Reason::NO_ERROR);
        }
        Ok(())
    }

    pub(super) fn window_update(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), FrameError> {
        let more = u31(exactly_four(payload)?);
        if head.stream == 0 {
            if more == 0 {
                return Err(Violation::protocol("WINDOW_UPDATE with an increment of 0").into());
            }
            self.send_window += i64::from(more);
            if self.send_window > MAX_31_BIT.into() {
                return Err(
                    Violation::new(Reason::FLOW_CONTROL_ERROR, "the send window exceeds 2^31 - 1").into()
                );
            }
            self.shut = self.shut.take().and_then(|Shut { since, opened }| {
                let opened = opened.saturating_add(more);
                (opened < OPENED).then_some(Shut { since, opened })
            });
            self.wake_waiting();
            return Ok(());
        }
        self.check_opened(head.stream)?;
        let Some(stream) = self.streams.get_mut(&head.stream).filter(|stream| !stream.is_closed) else {
            return Ok(());
        };
        if more == 0 {
            return Err(FrameError::Stream(head.stream, Reason::PROTOCOL_ERROR));
        }
        stream.send_window += i64::from(more);
        stream.wake_writer();
        match stream.send_window > MAX_31_BIT.into() {
            true => Err(FrameError::Stream(head.stream, Reason::FLOW_CONTROL_ERROR)),
            false => Ok(()),
        }
    }

    /// Checks that the stream to which a frame refers was opened.
    pub(super) fn check_opened(&self, stream: u32) -> Result<(), Violation> {
        let is_passed_over = self.role == Role::Server && matches!(self.goaway, GoAwayState::Sent(_));
        let is_later = stream > self.last_stream && !is_passed_over;
        match is_later || stream.is_multiple_of(2) {
            true => Err(Violation::protocol("a frame on an idle stream")),
            false => Ok(()),
        }
    }

    pub(super) fn on_rst_stream(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), FrameError> {
        if head.stream == 0 {
            return Err(Violation::protocol("RST_STREAM on stream 0").into());
        }
        let reason = Reason(u32::from_be_bytes(exactly_four(payload)?));
        self.check_opened(head.stream)?;
        if let Some(at) = self.pending_requests.iter().position(|(stream, _)| *stream == head.stream) {
            self.pending_requests.remove(at);
            self.early_resets += 1;
            if self.early_resets > MAX_EARLY_RESETS {
                let why = "too many requests were cancelled before they were dispatched";
                return Err(Violation::new(Reason::ENHANCE_YOUR_CALM, why).into());
            }
        }
        self.close_stream(head.stream, StreamEnd::ResetRemotely, Some(reason));
        Ok(())
    }

    /// Resets a stream, unless it is closed.
    pub(in super::super) fn reset(&mut self, stream: u32, reason: Reason) {
        if self.is_closed {
            return;
        }
        if let Some(open) = self.streams.get_mut(&stream).filter(|stream| !stream.is_closed) {
            open.error = Some(StreamError::Cancelled);
            self.refuse(stream, reason);
        }
    }

    /// Sends RST_STREAM, and closes the stream if it is open.
    pub(super) fn refuse(&mut self, stream: u32, reason: Reason) {
        push(self.out.buffer(), RST_STREAM, 0, stream, &reason.0.to_be_bytes());
        if let Some(at) = self.pending_requests.iter().position(|(fresh, _)| *fresh == stream) {
            self.pending_requests.remove(at);
        }
        match self.streams.contains_key(&stream) {
            true => self.close_stream(stream, StreamEnd::ResetLocally, Some(reason)),
            false => self.record_end(stream, StreamEnd::ResetLocally),
        }
        self.wake_driver();
    }

    /// Closes a stream: it no longer counts as open, and its tasks are woken.
    pub(super) fn close_stream(&mut self, id: u32, how: StreamEnd, reset: Option<Reason>) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.is_closed) else { return };
        stream.is_closed = true;
        self.open -= 1;
        stream.is_waiting = false;
        self.growth_left += stream.take_growth();
        if let Some(reason) = reset {
            stream.reset = Some(reason);
            stream.error.get_or_insert(match how {
                StreamEnd::ResetRemotely => StreamError::Reset(reason),
                StreamEnd::ResetLocally | StreamEnd::Complete => StreamError::Malformed(reason),
            });
            stream.wake();
            // A client still delivers the part of the response that was received before the reset.
            if self.role == Role::Server {
                self.discard_unread(id);
            }
        }
        self.record_end(id, how);
        self.remove_if_unused(id);
    }

    pub(super) fn record_end(&mut self, stream: u32, how: StreamEnd) {
        if self.recently_ended.len() >= MAX_REMEMBERED_ENDS
            && let Some((forgotten, _)) = self.recently_ended.pop_front()
        {
            self.last_forgotten = self.last_forgotten.max(forgotten);
        }
        self.recently_ended.push_back((stream, how));
    }

    /// Returns how a closed stream ended; `None` for a stream that was never opened. A stream that is no longer
    /// remembered counts as reset by this side: the peer may have sent frames before it received the reset, and such
    /// frames are ignored (RFC 9113 5.1).
    pub(super) fn how_ended(&self, stream: u32) -> Option<StreamEnd> {
        let remembered = self.recently_ended.iter().rev().find(|(id, _)| *id == stream);
        let forgotten = (stream <= self.last_forgotten).then_some(StreamEnd::ResetLocally);
        remembered.map(|(_, how)| *how).or(forgotten)
    }
}
