//! One connection, as the side that serves it sees it: what came, what goes out, and what both sides have room for.
//!
//! It reads no socket and no clock. Whoever drives it hands it what came, answers the requests that it gives out, and sends
//! what it has to say.

mod blocks;
mod control;
mod receiving;
mod sending;
mod stream;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    hash::{BuildHasherDefault, Hasher},
    mem,
    task::Waker,
};

use bytes::{Buf as _, BytesMut};
use http::Request;
use tokio::time::Instant;

use self::{blocks::Beginning, stream::Stream};
use super::{
    Reason, RequestBody, Responder, Shared, Violation,
    allowance::Allowance,
    frame::{
        CONTINUATION, DATA, END_STREAM, GOAWAY, HEAD, HEADERS, HIGHEST, Head, PING, PRIORITY, PUSH_PROMISE,
        RST_STREAM, SETTINGS, USUAL, WINDOW_UPDATE, push,
    },
    hpack::{Decoder, Encoder},
    lock,
    outbox::Outbox,
};

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
/// What programs may send ahead on one request, and on all together, in bytes.
const STREAM_WINDOW: u32 = 1 << 20;
const WINDOW: u32 = 1 << 20;
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
    /// The last stream that the other side began.
    last: u32,
    ended: VecDeque<(u32, Ended)>,
    /// Requests that nobody has taken.
    fresh: VecDeque<(u32, Request<()>)>,
    unseen: u32,
    /// Streams on which something was wrong.
    wrong: u32,
    /// Streams that wait until there is room on the connection, each once.
    waiting: VecDeque<u32>,
    driver: Option<Waker>,
    /// Whoever drives it is about to send what is there.
    is_driven: bool,
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

/// How far the end of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goodbye {
    Unsaid,
    /// The other side was told, and asked whether it has heard.
    Warned,
    /// Nothing is taken after this stream.
    Said(u32),
}

/// A request that came, and who answers it.
#[derive(Debug)]
pub struct Came {
    /// With its body, whole or on its way.
    pub request: Request<RequestBody>,
    /// The other direction.
    pub responder: Responder,
}

/// Hashes numbers of streams, which are chosen in their order and not by anybody's wish.
#[derive(Default)]
struct Number(u64);

type Numbers = BuildHasherDefault<Number>;

impl Hasher for Number {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u32(&mut self, number: u32) {
        // The table takes its place from some bits and a mark from others.
        self.0 = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
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
    pub fn new(now: Instant) -> Self {
        let mut out = Outbox::default();
        control::settle(out.text());
        Self {
            out,
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            beginning: None,
            first_room: FIRST_WINDOW.into(),
            room: FIRST_WINDOW.into(),
            window: WINDOW.into(),
            unsaid: 0,
            streams: HashMap::default(),
            spare: Vec::new(),
            open: 0,
            last: 0,
            ended: VecDeque::new(),
            fresh: VecDeque::new(),
            unseen: 0,
            wrong: 0,
            waiting: VecDeque::new(),
            driver: None,
            is_driven: false,
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
                match self.wrong > MOST_WRONG {
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
            PUSH_PROMISE => Err(Violation::protocol("programs promise nothing").into()),
            PING => self.ping(head, payload),
            GOAWAY => self.was_left(head),
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

    /// Ends the connection for what the other side has done, which it is told.
    pub fn end(&mut self, violation: Violation) -> Violation {
        self.say_goodbye(self.last, violation.reason);
        self.gone();
        violation
    }

    /// The connection has broken, or ends: nothing comes any more, and nobody takes an answer.
    pub fn gone(&mut self) {
        self.is_gone = true;
        self.fresh.clear();
        for stream in self.streams.values_mut() {
            stream.reset.get_or_insert(Reason::CANCEL);
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

    fn say_goodbye(&mut self, last: u32, reason: Reason) {
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
