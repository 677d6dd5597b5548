//! One request and its answer.

use std::{
    collections::VecDeque,
    task::{Context, Waker},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response};
use http_body::Frame;

use super::super::{Lost, Reason};
use crate::informational::Budget;

/// Pieces of a body up to this length are put together while nobody reads them: each were more to keep than it carries.
const SMALL: usize = 1024;
/// Up to this length they are added to.
const TOGETHER: usize = 16 * 1024;

/// Bodies up to this length are handed on with their requests.
const WHOLE: u32 = 16 * 1024;

/// What came of a body.
#[derive(Debug)]
pub(in super::super) enum Piece {
    Data(Bytes),
    /// Boxed, since pieces are kept and moved, and next to none are these.
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
pub(in super::super) enum Ended {
    /// Both sides have said all.
    Whole,
    /// It was reset here: the other side may not know yet.
    Here,
    /// The other side has reset it.
    There,
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    /// The head of what comes has come, and that of an answer waits for whoever asked.
    pub(super) has_head: bool,
    pub(super) answer: Option<Response<()>>,
    /// What came before that and was not taken, and how much that was so far.
    pub(super) informational: Vec<Response<()>>,
    pub(super) before: Budget,
    /// Its answer has no body, whatever its head says.
    pub(super) is_bodiless: bool,
    /// The headers of the request had no END_STREAM, so that DATA or trailers end it.
    pub(super) has_body: bool,
    /// What came and was not read.
    pub(super) came: VecDeque<Piece>,
    /// Bytes that came and were not read.
    pub(super) unread: u32,
    /// Nothing more comes.
    pub(super) has_ended: bool,
    /// Everything is said.
    pub(super) has_said: bool,
    pub(super) reset: Option<Reason>,
    /// Why nothing more comes, where not all has.
    pub(super) lost: Option<Lost>,
    /// The other side counts it no more.
    pub(super) is_over: bool,
    /// Bytes that are taken here, and that the other side has room for.
    pub(super) window: i64,
    pub(super) room: i64,
    /// Bytes that were read and of which the other side was not told.
    pub(super) unsaid: u32,
    /// How much is to come of a body whose length was told.
    pub(super) left: Option<u64>,
    /// Somebody may read the body.
    pub(super) is_read: bool,
    /// Bytes that came for nobody.
    pub(super) wasted: u32,
    /// The program waits to be told that its body is wanted.
    pub(super) expects: bool,
    /// It waits until there is room on the connection.
    pub(super) waits: bool,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
    /// Who knows of it.
    pub(super) handles: u8,
}

impl Stream {
    pub(super) fn begin(&mut self, window: u32, room: i64, left: Option<u64>, has_ended: bool) {
        self.window = window.into();
        self.room = room;
        self.left = left;
        self.has_ended = has_ended;
    }

    /// Becomes one that may begin, and keeps nothing of what it was but memory.
    pub(super) fn rest(&mut self) {
        let mut came = std::mem::take(&mut self.came);
        came.clear();
        *self = Self { came, ..Self::default() };
    }

    /// The body, where all of it is here and nothing else: `Some` without bytes where it has none. Not a large one, which the
    /// other side must have read before it sends others.
    pub(super) fn whole(&mut self) -> Option<Bytes> {
        if !self.has_ended || self.reset.is_some() || self.came.len() > 1 || self.unread > WHOLE {
            return None;
        }
        match self.came.pop_front() {
            None => Some(Bytes::new()),
            Some(Piece::Data(data)) => Some(data),
            Some(trailers) => {
                self.came.push_front(trailers);
                None
            }
        }
    }

    /// Keeps a piece of the body for its reader.
    pub(super) fn keep(&mut self, data: Bytes) {
        if data.len() <= SMALL
            && let Some(Piece::Data(last)) = self.came.back_mut()
            && last.len() <= TOGETHER
        {
            let mut both = BytesMut::from(std::mem::take(last));
            both.extend_from_slice(&data);
            *last = both.freeze();
        } else {
            self.came.push_back(Piece::Data(data));
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

/// Has this task woken.
pub(super) fn register(place: &mut Option<Waker>, context: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(context.waker()),
        None => *place = Some(context.waker().clone()),
    }
}
