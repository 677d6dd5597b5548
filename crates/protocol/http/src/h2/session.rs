//! The protocol state of one side of a connection: streams, flow control, and frames to send.
//!
//! A session uses no sockets, and reads the clock only to record since when a window is shut. The driver of the
//! connection passes it the received bytes, serves the requests that the session returns or opens streams itself, and
//! sends the buffered frames.

mod client;
mod control_frames;
mod goaway;
mod header_blocks;
mod receive;
mod receive_windows;
mod role;
mod send;
mod stream;
mod stream_id_hash;
mod unread_bytes;

use std::{
    collections::{HashMap, VecDeque},
    fmt, mem,
    task::Waker,
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use http::Request;
use tokio::time::Instant;

use self::{
    goaway::GoAwayState,
    header_blocks::PartialHeaders,
    receive_windows::{CONNECTION_WINDOW, GROWTH_BUDGET, INITIAL_WINDOW},
    role::Role,
    stream::Stream,
    stream_id_hash::StreamIdHash,
    unread_bytes::UnreadBytes,
};
use super::{
    PREFACE, Reason, RequestBody, Responder, Shared, StreamError, Violation,
    flood_limit::FloodLimit,
    frame::{
        CONTINUATION, DATA, DEFAULT_FRAME_SIZE, END_STREAM, FrameHeader, GOAWAY, HEADER_LEN, HEADERS, PING,
        PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, push,
    },
    lock,
    write_buffer::WriteBuffer,
};
use crate::hpack::{Decoder, Encoder};

pub(super) use client::EarlyBody;
pub use client::{Capacity, RequestHead};
pub(super) use send::RequestRemainder;
pub(super) use stream::{Piece, StreamEnd};

/// Maximum number of concurrent requests of a client.
const MAX_STREAMS: u32 = 256;
/// Maximum number of streams in memory: open, or closed and still in use.
const MAX_TRACKED_STREAMS: usize = 2 * MAX_STREAMS as usize;
/// Maximum number of stream errors that a client may cause in a [`STREAM_ERROR_PERIOD`] before the connection is
/// closed. No other limit counts the streams that are reset for these errors (CVE-2025-8671).
const MAX_STREAM_ERRORS: u32 = 1024;
/// The count of stream errors restarts after this time, so that rare errors never end a connection that lasts for days.
const STREAM_ERROR_PERIOD: Duration = Duration::from_secs(60);
/// Number of requests of one read that may be reset before they are dispatched (CVE-2023-44487).
const MAX_EARLY_RESETS: u32 = 64;
/// Initial window of the connection and of streams, in bytes (RFC 9113 6.9.2).
const DEFAULT_WINDOW: u32 = 65_535;
/// Number of unsent bytes above which streams wait.
const SEND_BUFFER: usize = 64 * 1024;
/// Number of unsent bytes above which nothing more is read from a client.
const MAX_SEND_BACKLOG: usize = 2 * SEND_BUFFER;
/// Number of streams woken at a time when the window opens. A peer that opens it byte by byte must not wake every
/// stream each time.
const MAX_WOKEN: usize = 8;
/// Number of closed streams whose end is remembered.
const MAX_REMEMBERED_ENDS: usize = 256;
/// Number of stream states kept for reuse.
const MAX_SPARE_STREAMS: usize = 64;
/// Payload of keep-alive PINGs.
const KEEPALIVE_PING: [u8; 8] = *b"are you?";
/// Payload of the PING after the first GOAWAY.
const GOAWAY_PING: [u8; 8] = *b"last one";

/// State while the send window of the connection is used up.
#[derive(Debug)]
struct Shut {
    since: Instant,
    /// Number of bytes by which the peer has opened the window since then.
    opened: u32,
}

/// One side of a connection.
pub struct Session {
    role: Role,
    out: WriteBuffer,
    decoder: Decoder,
    encoder: Encoder,
    /// A header block whose CONTINUATION frames are still to come.
    partial_headers: Option<PartialHeaders>,
    /// Number of header blocks the peer has begun.
    header_blocks: u64,
    /// Initial send window of a stream, in bytes.
    initial_send_window: i64,
    /// Send window and receive window of the connection, in bytes.
    send_window: i64,
    receive_window: u32,
    /// Bytes by which the receive windows of streams may still grow together.
    growth_left: u32,
    /// Received bytes of all streams that are still unread.
    unread: UnreadBytes,
    streams: HashMap<u32, Box<Stream>, StreamIdHash>,
    #[allow(clippy::vec_box, reason = "they go in and out of the map as they are")]
    spare: Vec<Box<Stream>>,
    /// Number of open streams, as the peer counts them.
    open: u32,
    /// Identifier of the last stream opened.
    last_stream: u32,
    /// Number of concurrent streams that the server allows.
    stream_limit: u32,
    recently_ended: VecDeque<(u32, StreamEnd)>,
    /// Identifier of the newest closed stream whose end is no longer remembered; 0 at first.
    last_forgotten: u32,
    /// Received requests that are not yet dispatched.
    pending_requests: VecDeque<(u32, Request<()>)>,
    early_resets: u32,
    /// Number of stream errors caused by the peer in the current period, and the start of the period.
    stream_errors: u32,
    stream_errors_since: Instant,
    /// Streams that wait for the connection's window or send buffer. Some may no longer wait.
    waiting: VecDeque<u32>,
    /// Set while a stream waits for the connection's window.
    shut: Option<Shut>,
    driver: Option<Waker>,
    /// Whether the driver is in a turn, at whose end it sends the buffered frames.
    is_driven: bool,
    /// Whether the transport accepted only a part of the last write.
    is_blocked: bool,
    settings_received: bool,
    goaway: GoAwayState,
    /// Whether the peer has sent GOAWAY.
    goaway_received: bool,
    flood_limit: FloodLimit,
    /// Whether data was received since the last check.
    has_activity: bool,
    is_closed: bool,
    #[cfg(test)]
    pub(super) mutant: Option<Mutant>,
}

/// A deliberate bug that a test must detect.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutant {
    MisroutesBody,
    DropsTrailers,
    IgnoresWindow,
    DropsEndStream,
    DropsField,
}

/// A received request and its responder.
#[derive(Debug)]
pub struct IncomingRequest {
    /// The request with its body, complete or streamed.
    pub request: Request<RequestBody>,
    /// Sends the response.
    pub responder: Responder,
}

/// An error in a frame, which affects its stream or the whole connection.
enum FrameError {
    Stream(u32, Reason),
    Connection(Violation),
}

impl From<Violation> for FrameError {
    fn from(violation: Violation) -> Self {
        Self::Connection(violation)
    }
}

impl Session {
    /// Creates the server side, after the client preface.
    pub fn server(now: Instant) -> Self {
        Self::new(Role::Server, now)
    }

    /// Creates the client side.
    pub fn client(now: Instant) -> Self {
        let mut session = Self::new(Role::Client, now);
        session.out.buffer().splice(..0, PREFACE.iter().copied());
        session
    }

    fn new(role: Role, now: Instant) -> Self {
        let mut out = WriteBuffer::default();
        control_frames::write_initial_settings(role, out.buffer());
        Self {
            role,
            out,
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            partial_headers: None,
            header_blocks: 0,
            initial_send_window: DEFAULT_WINDOW.into(),
            send_window: DEFAULT_WINDOW.into(),
            receive_window: CONNECTION_WINDOW,
            growth_left: GROWTH_BUDGET,
            unread: UnreadBytes::default(),
            streams: HashMap::default(),
            spare: Vec::new(),
            open: 0,
            last_stream: 0,
            stream_limit: control_frames::INITIAL_MAX_STREAMS,
            recently_ended: VecDeque::new(),
            last_forgotten: 0,
            pending_requests: VecDeque::new(),
            early_resets: 0,
            stream_errors: 0,
            stream_errors_since: now,
            waiting: VecDeque::new(),
            shut: None,
            driver: None,
            is_driven: false,
            is_blocked: false,
            settings_received: false,
            goaway: GoAwayState::NotSent,
            goaway_received: false,
            flood_limit: FloodLimit::new(now),
            has_activity: false,
            is_closed: false,
            #[cfg(test)]
            mutant: None,
        }
    }

    /// Parses the complete frames in `input`. `now` is called only when the flood limit is reached, or at a stream
    /// error.
    ///
    /// # Errors
    /// The peer violated the protocol. GOAWAY is buffered, and nothing is sent after it.
    pub fn receive(&mut self, input: &mut BytesMut, now: impl Fn() -> Instant) -> Result<(), Violation> {
        self.has_activity |= !input.is_empty();
        self.early_resets = 0;
        while let Some(head) = FrameHeader::parse(input) {
            if head.length > DEFAULT_FRAME_SIZE {
                return Err(self.terminate(Violation::size("a frame exceeds SETTINGS_MAX_FRAME_SIZE")));
            }
            if input.len() < HEADER_LEN + head.length {
                break;
            }
            if let Err(violation) = self.take(head, input, &now) {
                return Err(self.terminate(violation));
            }
        }
        Ok(())
    }

    /// Handles the complete frame at the beginning of `input`.
    fn take(
        &mut self,
        head: FrameHeader,
        input: &mut BytesMut,
        now: &impl Fn() -> Instant,
    ) -> Result<(), Violation> {
        if head.kind == HEADERS || head.kind == DATA && (head.length > 0 || head.has(END_STREAM)) {
            self.flood_limit.credit();
        } else if !self.flood_limit.charge(now) {
            return Err(Violation::FLOOD);
        }
        input.advance(HEADER_LEN);
        let taken = self.dispatch(head, input);
        match taken {
            Ok(()) => Ok(()),
            Err(FrameError::Connection(violation)) => Err(violation),
            Err(FrameError::Stream(stream, reason)) => {
                self.refuse(stream, reason);
                match reason != Reason::REFUSED_STREAM && self.exceeds_stream_errors(now()) {
                    true => Err(Violation::new(Reason::ENHANCE_YOUR_CALM, "too many stream errors")),
                    false => Ok(()),
                }
            }
        }
    }

    /// Counts a stream error. Returns whether the client has caused too many in this period.
    fn exceeds_stream_errors(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.stream_errors_since) >= STREAM_ERROR_PERIOD {
            (self.stream_errors, self.stream_errors_since) = (0, now);
        }
        self.stream_errors = self.stream_errors.saturating_add(1);
        self.role == Role::Server && self.stream_errors > MAX_STREAM_ERRORS
    }

    /// Handles and removes the frame whose payload begins `input`.
    fn dispatch(&mut self, head: FrameHeader, input: &mut BytesMut) -> Result<(), FrameError> {
        if self.partial_headers.is_some() && head.kind != CONTINUATION {
            return Err(Violation::protocol("a header block is interrupted by another frame").into());
        }
        if !self.settings_received && head.kind != SETTINGS {
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
            RST_STREAM => self.on_rst_stream(head, payload),
            SETTINGS => self.settings(head, payload),
            PUSH_PROMISE => Err(Violation::protocol("PUSH_PROMISE, although push is disabled").into()),
            PING => self.ping(head, payload),
            GOAWAY => self.on_goaway(head, payload),
            WINDOW_UPDATE => self.window_update(head, payload),
            // Unknown frame types are ignored (RFC 9113 5.5).
            _ => Ok(()),
        };
        input.advance(head.length);
        seen
    }

    /// Returns the next received request.
    pub fn next_request(shared: &Shared) -> Option<IncomingRequest> {
        let mut session = lock(shared);
        let (stream, request) = session.pending_requests.pop_front()?;
        let state = session.streams.get_mut(&stream)?;
        let body = match state.take_complete() {
            Some(_) if !state.has_body => RequestBody::absent(),
            Some(bytes) => RequestBody::complete(bytes),
            None => {
                state.handles += 1;
                state.has_reader = true;
                RequestBody::streaming(shared.clone(), stream)
            }
        };
        state.handles += 1;
        if let Some(size) = body.taken() {
            session.release_stream_window(stream, size);
        }
        Some(IncomingRequest {
            request: request.map(|()| body),
            responder: Responder::new(shared.clone(), stream),
        })
    }

    /// Whether the session holds no stream in memory.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// Whether data was received since the last call.
    pub fn take_activity(&mut self) -> bool {
        mem::take(&mut self.has_activity)
    }

    /// Number of header blocks the peer has begun.
    pub fn header_blocks(&self) -> u64 {
        self.header_blocks
    }

    /// Whether the last header block is incomplete.
    pub fn is_in_header_block(&self) -> bool {
        self.partial_headers.is_some()
    }

    /// Whether no stream is open.
    pub fn has_no_streams(&self) -> bool {
        self.open == 0
    }

    /// Sends a PING to check whether the connection is alive.
    pub fn send_ping(&mut self) {
        push(self.out.buffer(), PING, 0, 0, &KEEPALIVE_PING);
        self.wake_driver();
    }

    /// Wakes the driver to send the buffered frames, unless it is in a turn already.
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
        let Self { open, last_stream, send_window, receive_window, goaway, .. } = self;
        f.debug_struct("Session")
            .field("open", open)
            .field("last_stream", last_stream)
            .field("send_window", send_window)
            .field("receive_window", receive_window)
            .field("goaway", goaway)
            .finish_non_exhaustive()
    }
}
