//! One connection, as one of its sides sees it: what came, what goes out, and what both sides have room for.
//!
//! It reads no socket and no clock. Whoever drives it hands it what came, answers the requests that it gives out or asks for
//! something itself, and sends what it has to say.

mod asking;
mod blocks;
mod control;
mod ending;
mod numbers;
mod receiving;
mod sending;
mod side;
mod stream;

use std::{
    collections::{HashMap, VecDeque},
    fmt, mem,
    task::Waker,
};

use bytes::{Buf as _, BytesMut};
use http::Request;
use tokio::time::Instant;

use self::{blocks::Beginning, ending::Goodbye, numbers::Numbers, side::Side, stream::Stream};
use super::{
    Lost, PREFACE, Reason, RequestBody, Responder, Shared, Violation,
    allowance::Allowance,
    frame::{
        CONTINUATION, DATA, END_STREAM, GOAWAY, HEAD, HEADERS, Head, PING, PRIORITY, PUSH_PROMISE,
        RST_STREAM, SETTINGS, USUAL, WINDOW_UPDATE, push,
    },
    lock,
    outbox::Outbox,
};
use crate::hpack::{Decoder, Encoder};

pub(super) use asking::Early;
pub use asking::{Ask, Place};
pub(super) use sending::Rest;
pub(super) use stream::{Ended, Piece};

/// Requests under way on one connection.
const MOST_STREAMS: u32 = 256;
/// Streams that have ended, or not, and of which somebody knows.
const MOST_KNOWN: usize = 2 * MOST_STREAMS as usize;
/// Streams on which programs may do what the protocol forbids, before they are cut off: each is refused and counts for nothing
/// else (CVE-2025-8671).
const MOST_WRONG: u32 = 1024;
/// Requests that may be taken back, of those that came at once, before anybody looked at them (CVE-2023-44487).
const MOST_UNSEEN: u32 = 64;
/// What may be sent ahead on one stream, in bytes: with HTTP/2's own 64 KB, one answer over 100 ms gets 640 KB/s.
const STREAM_WINDOW: u32 = 1 << 20;
/// The window of both that nobody has enlarged (RFC 9113 6.9.2).
const FIRST_WINDOW: u32 = 65_535;
/// Bytes that wait to be sent before streams have to wait, and before nothing is read any more.
const BUFFERED: usize = 64 * 1024;
const CROWDED: usize = 2 * BUFFERED;
/// Streams that are woken at a time when there is room: who makes it byte by byte must not have all of them look at each.
const WOKEN: usize = 8;
/// Streams that have ended, of which it is known how.
const REMEMBERED: usize = 256;
/// What memory of streams is kept.
const SPARE: usize = 64;
/// By what the answers to pings are known.
const PROBE: [u8; 8] = *b"are you?";
const LAST: [u8; 8] = *b"last one";

/// One side of a connection.
pub struct Session {
    side: Side,
    out: Outbox,
    decoder: Decoder,
    encoder: Encoder,
    /// A head of which more frames are to come.
    beginning: Option<Beginning>,
    /// The window of a stream that begins, on the other side.
    first_room: i64,
    /// Bytes of bodies that the other side has room for, and that are taken here.
    room: i64,
    window: i64,
    /// Bytes that were read and of which the other side was not told.
    unsaid: u32,
    streams: HashMap<u32, Box<Stream>, Numbers>,
    #[allow(clippy::vec_box, reason = "they go in and out of the map as they are")]
    spare: Vec<Box<Stream>>,
    /// Streams that have not ended, as the other side counts them.
    open: u32,
    /// The last stream that was begun.
    last: u32,
    /// Streams that the side that is asked allows at a time.
    limit: u32,
    ended: VecDeque<(u32, Ended)>,
    /// Requests that nobody has taken.
    fresh: VecDeque<(u32, Request<()>)>,
    unseen: u32,
    /// Streams on which something was wrong.
    wrong: u32,
    /// Streams that wait until there is room on the connection, or have waited.
    waiting: VecDeque<u32>,
    driver: Option<Waker>,
    /// Whoever drives it is about to send what is there.
    is_driven: bool,
    /// The other side did not take all of what was sent last.
    is_blocked: bool,
    is_settled: bool,
    goodbye: Goodbye,
    /// The other side has said goodbye.
    is_left: bool,
    allowance: Allowance,
    /// Something came since it was last asked.
    was_heard: bool,
    is_gone: bool,
    #[cfg(test)]
    pub(super) planted: Option<Planted>,
}

/// A mistake, for a test that must find it.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    AnyStreamsBody,
    NoTrailers,
    NoWindow,
    NoEnd,
    OneFieldLess,
}

/// A request that came, and who answers it.
#[derive(Debug)]
pub struct Came {
    /// With its body, whole or on its way.
    pub request: Request<RequestBody>,
    /// The other direction.
    pub responder: Responder,
}

/// What is wrong with a frame: with its stream alone, or with the connection.
enum Wrong {
    Stream(u32, Reason),
    Connection(Violation),
}

impl From<Violation> for Wrong {
    fn from(violation: Violation) -> Self {
        Self::Connection(violation)
    }
}

impl Session {
    /// The side of a connection that is asked, whose other side has sent its preface.
    pub fn asked(now: Instant) -> Self {
        Self::new(Side::Asked, now)
    }

    /// The side of a connection that asks.
    pub fn asking(now: Instant) -> Self {
        let mut session = Self::new(Side::Asking, now);
        session.out.text().splice(..0, PREFACE.iter().copied());
        session
    }

    fn new(side: Side, now: Instant) -> Self {
        let mut out = Outbox::default();
        control::settle(side, out.text());
        Self {
            side,
            out,
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            beginning: None,
            first_room: FIRST_WINDOW.into(),
            room: FIRST_WINDOW.into(),
            window: side.window().into(),
            unsaid: 0,
            streams: HashMap::default(),
            spare: Vec::new(),
            open: 0,
            last: 0,
            limit: control::FIRST_STREAMS,
            ended: VecDeque::new(),
            fresh: VecDeque::new(),
            unseen: 0,
            wrong: 0,
            waiting: VecDeque::new(),
            driver: None,
            is_driven: false,
            is_blocked: false,
            is_settled: false,
            goodbye: Goodbye::Unsaid,
            is_left: false,
            allowance: Allowance::new(now),
            was_heard: false,
            is_gone: false,
            #[cfg(test)]
            planted: None,
        }
    }

    /// Takes the frames that have come whole out of `input`. `now` is asked only where too much may have come.
    ///
    /// # Errors
    /// Where the other side does what the protocol forbids: it is told as soon as what there is to say is sent, after which
    /// nothing is.
    pub fn receive(&mut self, input: &mut BytesMut, now: impl Fn() -> Instant) -> Result<(), Violation> {
        self.was_heard |= !input.is_empty();
        self.unseen = 0;
        while let Some(head) = Head::first(input) {
            if head.length > USUAL {
                return Err(self.end(Violation::size("a frame is longer than those that are taken")));
            }
            if input.len() < HEAD + head.length {
                break;
            }
            if let Err(violation) = self.take(head, input, &now) {
                return Err(self.end(violation));
            }
        }
        Ok(())
    }

    /// Takes the frame at the beginning of `input`, which is whole.
    fn take(
        &mut self,
        head: Head,
        input: &mut BytesMut,
        now: &impl Fn() -> Instant,
    ) -> Result<(), Violation> {
        if head.kind == HEADERS || head.kind == DATA && (head.length > 0 || head.has(END_STREAM)) {
            self.allowance.earn();
        } else if !self.allowance.pay(now) {
            return Err(Violation::FLOOD);
        }
        input.advance(HEAD);
        let taken = self.dispatch(head, input);
        match taken {
            Ok(()) => Ok(()),
            Err(Wrong::Connection(violation)) => Err(violation),
            Err(Wrong::Stream(stream, reason)) => {
                self.refuse(stream, reason);
                self.wrong += u32::from(reason != Reason::REFUSED_STREAM);
                match self.side == Side::Asked && self.wrong > MOST_WRONG {
                    true => {
                        Err(Violation::new(Reason::ENHANCE_YOUR_CALM, "too many streams had something wrong"))
                    }
                    false => Ok(()),
                }
            }
        }
    }

    /// Sees to a frame whose payload `input` begins with, and takes that away.
    fn dispatch(&mut self, head: Head, input: &mut BytesMut) -> Result<(), Wrong> {
        if self.beginning.is_some() && head.kind != CONTINUATION {
            return Err(Violation::protocol("another frame came within a head").into());
        }
        if !self.is_settled && head.kind != SETTINGS {
            return Err(Violation::protocol("the first frame is not SETTINGS").into());
        }
        if head.kind == DATA {
            return self.data(head, input);
        }
        let payload = &input[..head.length];
        let seen = match head.kind {
            HEADERS => self.headers(head, payload),
            CONTINUATION => self.continuation(head, payload),
            PRIORITY => self.priority(head, payload),
            RST_STREAM => self.was_reset(head, payload),
            SETTINGS => self.settings(head, payload),
            PUSH_PROMISE => Err(Violation::protocol("nobody wants promises").into()),
            PING => self.ping(head, payload),
            GOAWAY => self.was_left(head, payload),
            WINDOW_UPDATE => self.window_update(head, payload),
            // What nobody has given a meaning is passed over (RFC 9113 5.5).
            _ => Ok(()),
        };
        input.advance(head.length);
        seen
    }

    /// The next request that came.
    pub fn next(shared: &Shared) -> Option<Came> {
        let mut session = lock(shared);
        let (stream, request) = session.fresh.pop_front()?;
        let state = session.streams.get_mut(&stream)?;
        let body = match state.whole() {
            Some(_) if !state.has_body => RequestBody::absent(),
            Some(bytes) => RequestBody::whole(bytes),
            None => {
                state.handles += 1;
                state.is_read = true;
                RequestBody::coming(shared.clone(), stream)
            }
        };
        state.handles += 1;
        if let Some(size) = body.taken() {
            session.read(stream, size);
        }
        Some(Came { request: request.map(|()| body), responder: Responder::new(shared.clone(), stream) })
    }

    /// Whether nobody knows of any stream.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// Whether something came since this was last asked.
    pub fn was_heard(&mut self) -> bool {
        mem::take(&mut self.was_heard)
    }

    /// Asks the other side whether it is there.
    pub fn probe(&mut self) {
        push(self.out.text(), PING, 0, 0, &PROBE);
        self.wake_driver();
    }

    /// Who sends what there is to send is not there, unless it is about to.
    fn wake_driver(&mut self) {
        if !self.is_driven
            && let Some(driver) = self.driver.take()
        {
            driver.wake();
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { open, last, room, window, goodbye, .. } = self;
        f.debug_struct("Session")
            .field("open", open)
            .field("last", last)
            .field("room", room)
            .field("window", window)
            .field("goodbye", goodbye)
            .finish_non_exhaustive()
    }
}
