//! The client role: opens streams and receives responses.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode, uri::Authority};

use super::{
    super::{
        Reason, StreamError, Violation,
        frame::{END_STREAM, MAX_31_BIT},
        message::{Checked, DecodedResponse, Fields},
    },
    FrameError, GoAwayState, INITIAL_WINDOW, Piece, Session, StreamEnd,
    stream::register,
};

/// Maximum number of unsent bytes before the connection is closed. Control frames need far less, unless the server does
/// not read.
const MAX_UNSENT: usize = 1 << 20;

/// Time for which the connection's send window may stay shut before other calls avoid the connection: longer than a
/// round trip.
const HELD_BACK_AFTER: Duration = Duration::from_millis(300);

/// Whether a connection accepts another call, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// Another call can begin.
    Available,
    /// No call can begin until another stream ends.
    Full,
    /// The server reads too slowly: the send buffer is full.
    Blocked,
    /// The server has kept the connection's window shut for some time, and streams wait for it.
    HeldBack,
    /// The connection accepts no more calls.
    Closed,
}

/// The headers of a request.
#[derive(Debug)]
pub struct RequestHead<'a> {
    /// Method of the request.
    pub method: &'a Method,
    /// Host, with an optional port.
    pub authority: &'a Authority,
    /// Path and query, or an asterisk.
    pub path: &'a str,
    /// Headers, without the ones that HTTP/2 forbids.
    pub headers: &'a HeaderMap,
}

/// The part of a response body that arrived with the headers.
#[derive(Debug)]
pub(in super::super) enum EarlyBody {
    /// The complete body with its trailers: the stream is no longer needed.
    Complete(Option<Bytes>, Option<Box<HeaderMap>>),
    /// The body must be read from the stream.
    Streaming,
}

/// # Client role
impl Session {
    /// Whether another call may begin.
    pub fn capacity(&self) -> Capacity {
        if self.is_closed
            || self.goaway_received
            || self.goaway != GoAwayState::NotSent
            || self.last_stream >= MAX_31_BIT - 1
        {
            Capacity::Closed
        } else if self.is_blocked && self.is_backlogged() {
            Capacity::Blocked
        } else if self.open >= self.stream_limit {
            Capacity::Full
        } else if self.shut.as_ref().is_some_and(|shut| shut.since.elapsed() >= HELD_BACK_AFTER) {
            Capacity::HeldBack
        } else {
            Capacity::Available
        }
    }

    /// Number of concurrent streams that the server allows.
    pub fn stream_limit(&self) -> u32 {
        self.stream_limit
    }

    /// Opens a stream with the headers of a request, and END_STREAM if the request `ends`. The session must have
    /// capacity.
    pub(in super::super) fn open_stream(&mut self, head: &RequestHead<'_>, ends: bool) -> u32 {
        let id = if self.last_stream == 0 { 1 } else { self.last_stream + 2 };
        self.last_stream = id;
        let mut begun = self.spare.pop().unwrap_or_default();
        begun.begin(INITIAL_WINDOW, self.initial_send_window, None, false);
        begun.is_bodiless = head.method == Method::HEAD;
        begun.has_reader = true;
        begun.handles = 1;
        self.streams.insert(id, begun);
        self.open += 1;
        self.send_header_block(id, if ends { END_STREAM } else { 0 }, |block| {
            block.method(head.method);
            // CONNECT has only :authority (RFC 9113 8.5).
            if head.method != Method::CONNECT {
                block.scheme("http");
                block.path(head.path);
            }
            block.authority(head.authority.as_str());
            block.headers(head.headers);
        });
        self.note_sent(id, ends);
        id
    }

    /// Handles the headers of a response, or an informational response.
    pub(super) fn on_response(&mut self, id: u32, ends: bool, fields: Fields) -> Result<(), FrameError> {
        let malformed = |why| {
            tracing::debug!(why, "rejected a response");
            FrameError::Stream(id, Reason::PROTOCOL_ERROR)
        };
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        let size = fields.length();
        let DecodedResponse { response, length } = match fields.response() {
            Checked::Valid(response) => response,
            Checked::Malformed(why) => return Err(malformed(why)),
            Checked::TooLarge => {
                stream.error = Some(StreamError::TooLarge);
                return Err(malformed("the headers are too large"));
            }
        };
        let status = response.status();
        if status.is_informational() {
            if ends || status == StatusCode::SWITCHING_PROTOCOLS {
                return Err(malformed("an informational response with END_STREAM, or 101"));
            }
            if !stream.informational_budget.admits(size) {
                return Err(malformed("too many informational responses"));
            }
            if status != StatusCode::CONTINUE {
                stream.informational.push(response);
                stream.wake_reader();
            }
            return Ok(());
        }
        let is_bodiless =
            stream.is_bodiless || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        stream.content_left = if is_bodiless { Some(0) } else { length };
        if ends && stream.content_left.is_some_and(|left| left > 0) {
            return Err(malformed("the body is shorter than its content-length"));
        }
        stream.has_head = true;
        stream.response = Some(response);
        stream.wake_reader();
        if ends {
            self.on_remote_closed(id);
        }
        Ok(())
    }

    /// Returns the headers of the response, and the part of its body that was received. If the body is complete, the
    /// stream is closed. Earlier informational responses are appended to `informational`.
    pub(in super::super) fn poll_response(
        &mut self,
        id: u32,
        informational: &mut Vec<Response<()>>,
        context: &Context<'_>,
    ) -> Poll<Result<(Response<()>, EarlyBody), StreamError>> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Poll::Ready(Err(StreamError::Reset(Reason::CANCEL)));
        };
        if !stream.informational.is_empty() {
            informational.append(&mut stream.informational);
        }
        let Some(response) = stream.response.take() else {
            if let Some(error) = stream.error {
                return Poll::Ready(Err(error));
            }
            register(&mut stream.reader, context);
            return Poll::Pending;
        };
        let early = self.early(id);
        Poll::Ready(Ok((response, early)))
    }

    fn early(&mut self, id: u32) -> EarlyBody {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.is_closed) else {
            return EarlyBody::Streaming;
        };
        let trailers = match stream.received.pop_back() {
            Some(Piece::Trailers(trailers)) => Some(trailers),
            Some(data) => {
                stream.received.push_back(data);
                None
            }
            None => None,
        };
        let Some(data) = stream.take_complete() else {
            stream.received.extend(trailers.map(Piece::Trailers));
            return EarlyBody::Streaming;
        };
        self.release_stream_window(id, data.len() as u32);
        self.abandon(id);
        EarlyBody::Complete(Some(data).filter(|data| !data.is_empty()), trailers)
    }

    /// Resets the stream of a call that the caller dropped, unless the stream is complete.
    pub(in super::super) fn abandon(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.handles = 0;
        stream.has_reader = false;
        stream.reader = None;
        self.discard_unread(id);
        self.reset(id, Reason::CANCEL);
        self.remove_if_unused(id);
    }

    /// Fails the streams after `last`, which the server will not process (RFC 9113 6.8).
    pub(super) fn fail_unprocessed(&mut self, last: u32, reason: Reason) {
        let is_unprocessed = |id: &u32| *id > last;
        let unprocessed: Vec<u32> = self.streams.keys().copied().filter(is_unprocessed).collect();
        for id in unprocessed {
            if let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.is_closed) {
                stream.error = Some(StreamError::Unprocessed(reason));
            }
            self.close_stream(id, StreamEnd::ResetRemotely, Some(reason));
        }
        self.wake_driver();
    }

    /// Closes the connection if the send backlog shows that the server provokes frames without reading them.
    pub(in super::super) fn check_backlog(&mut self) -> Option<Violation> {
        let is_overrun = self.is_blocked && self.out.len() >= MAX_UNSENT;
        let why = "the peer does not read the frames that it provokes";
        is_overrun.then(|| self.terminate(Violation::new(Reason::ENHANCE_YOUR_CALM, why)))
    }

    /// Accepts no further calls. The connection closes when the last call ends.
    pub fn retire(&mut self) {
        if self.goaway == GoAwayState::NotSent && !self.is_closed {
            self.goaway = GoAwayState::Sent(0);
            self.send_goaway(0, Reason::NO_ERROR);
        }
    }
}
