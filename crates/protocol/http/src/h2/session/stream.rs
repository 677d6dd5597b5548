//! The state of one stream.

use std::{
    collections::VecDeque,
    task::{Context, Waker},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response};
use http_body::Frame;

use super::super::{Reason, StreamError};
use crate::informational::Budget;

/// Maximum length of waiting body pieces that are merged, in bytes: each piece takes more memory than it carries.
const MERGE_BELOW: usize = 1024;
/// Maximum length of a merged piece, in bytes.
const MAX_MERGED: usize = 16 * 1024;

/// Maximum length of a body that is delivered with its headers, in bytes.
const MAX_EARLY_BODY: u32 = 16 * 1024;

/// A piece of a body.
#[derive(Debug)]
pub(in super::super) enum Piece {
    Data(Bytes),
    /// Boxed, since pieces are moved often and trailers are rare.
    Trailers(Box<HeaderMap>),
}

impl From<Piece> for Frame<Bytes> {
    fn from(piece: Piece) -> Self {
        match piece {
            Piece::Data(data) => Self::data(data),
            Piece::Trailers(trailers) => Self::trailers(*trailers),
        }
    }
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum StreamEnd {
    /// Both sides sent END_STREAM.
    Complete,
    /// The stream was reset by this side; frames from the peer may still be in flight.
    ResetLocally,
    /// The peer reset the stream.
    ResetRemotely,
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Whether headers were received. The headers of a response wait for the caller.
    pub(super) has_head: bool,
    pub(super) response: Option<Response<()>>,
    /// Informational responses that are not yet delivered, and their limit.
    pub(super) informational: Vec<Response<()>>,
    pub(super) informational_budget: Budget,
    /// Whether the response has no body, regardless of its headers.
    pub(super) is_bodiless: bool,
    /// Whether the headers of the request had no END_STREAM, so that DATA or trailers end it.
    pub(super) has_body: bool,
    /// Received pieces that are not yet read.
    pub(super) received: VecDeque<Piece>,
    /// Received bytes that are not yet read.
    pub(super) unread: u32,
    /// Whether the peer sent END_STREAM.
    pub(super) remote_closed: bool,
    /// Whether END_STREAM was sent.
    pub(super) local_closed: bool,
    pub(super) reset: Option<Reason>,
    /// Why the message is incomplete.
    pub(super) error: Option<StreamError>,
    /// Whether the stream is closed and no longer counts as open.
    pub(super) is_closed: bool,
    /// Receive window: maximum bytes in flight and unread together.
    pub(super) window: u32,
    /// Rest of the receive window as the peer knows it, followed by the send window.
    pub(super) receive_window: u32,
    pub(super) send_window: i64,
    /// Bytes consumed and not yet returned by WINDOW_UPDATE.
    pub(super) unreleased: u32,
    /// Remaining bytes of the body, if it has a `content-length`.
    pub(super) content_left: Option<u64>,
    /// Whether the body has a reader.
    pub(super) has_reader: bool,
    /// Bytes received while the body had no reader.
    pub(super) discarded: u32,
    /// Whether the client waits for 100 (Continue).
    pub(super) expects_continue: bool,
    /// Whether the stream waits for the connection's window or send buffer.
    pub(super) is_waiting: bool,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
    /// Number of references from users of the stream: bodies, calls, responders.
    pub(super) handles: u8,
}

impl Stream {
    pub(super) fn begin(&mut self, window: u32, send_window: i64, left: Option<u64>, remote_closed: bool) {
        (self.window, self.receive_window) = (window, window);
        self.send_window = send_window;
        self.content_left = left;
        self.remote_closed = remote_closed;
    }

    /// Resets the state for another stream, and keeps only the allocated memory.
    pub(super) fn recycle(&mut self) {
        let mut received = std::mem::take(&mut self.received);
        received.clear();
        *self = Self { received, ..Self::default() };
    }

    /// Takes the body if it was received completely and has no trailers; an absent body is empty. Large bodies are
    /// not taken, since flow control must apply until they are read.
    pub(super) fn take_complete(&mut self) -> Option<Bytes> {
        if !self.remote_closed
            || self.reset.is_some()
            || self.received.len() > 1
            || self.unread > MAX_EARLY_BODY
        {
            return None;
        }
        match self.received.pop_front() {
            None => Some(Bytes::new()),
            Some(Piece::Data(data)) => Some(data),
            Some(trailers) => {
                self.received.push_front(trailers);
                None
            }
        }
    }

    /// Queues a piece of the body for its reader.
    pub(super) fn push_data(&mut self, data: Bytes) {
        if data.len() <= MERGE_BELOW
            && let Some(Piece::Data(last)) = self.received.back_mut()
            && last.len() <= MAX_MERGED
        {
            let mut both = BytesMut::from(std::mem::take(last));
            both.extend_from_slice(&data);
            *last = both.freeze();
        } else {
            self.received.push_back(Piece::Data(data));
        }
    }

    pub(super) fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }

    pub(super) fn wake_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    pub(super) fn wake_writer(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }
}

/// Stores the waker of the task in `slot`.
pub(super) fn register(slot: &mut Option<Waker>, context: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(context.waker()),
        None => *slot = Some(context.waker().clone()),
    }
}
