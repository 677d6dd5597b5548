//! What only the side of a connection does that asks.

use std::{
    mem,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode, uri::Authority};

use super::{
    super::{
        Lost, Reason, Violation,
        frame::{END_STREAM, HIGHEST},
        message::{Answered, Fields, Made},
    },
    Ended, Goodbye, Piece, STREAM_WINDOW, Session, Wrong,
    stream::register,
};

/// What waits to be sent at most, in bytes: far more than calls have to say that the other side does not read.
const MOST_UNSENT: usize = 1 << 20;

/// Whether a connection takes another call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It does.
    Free,
    /// Not before another one has ended.
    Taken,
    /// Much waits to be sent already, and the other side takes nothing.
    Blocked,
    /// It takes no more.
    None,
}

/// The head of a request.
#[derive(Debug)]
pub struct Ask<'a> {
    /// What is to be done.
    pub method: &'a Method,
    /// The host that is asked.
    pub authority: &'a Authority,
    /// Path and query, or an asterisk.
    pub path: &'a str,
    /// Without any that HTTP/2 has no place for.
    pub headers: &'a HeaderMap,
}

/// What comes after the head of an answer, as far as it has come with it.
#[derive(Debug)]
pub(in super::super) enum Early {
    /// All of it: nobody needs the stream any more.
    Whole(Option<Bytes>, Option<Box<HeaderMap>>),
    /// It is to be read.
    Coming,
}

impl Session {
    /// Whether another call may begin.
    pub fn place(&self) -> Place {
        if self.is_gone || self.is_left || self.goodbye != Goodbye::Unsaid || self.last >= HIGHEST - 1 {
            Place::None
        } else if self.is_blocked && self.is_crowded() {
            Place::Blocked
        } else if self.open >= self.limit {
            Place::Taken
        } else {
            Place::Free
        }
    }

    /// How many calls the other side allows at a time.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Begins a stream, for which there must be a place, with the head of a request, which is all of it if it `ends`.
    pub(in super::super) fn ask(&mut self, ask: &Ask<'_>, ends: bool) -> u32 {
        let number = if self.last == 0 { 1 } else { self.last + 2 };
        self.last = number;
        let mut begun = self.spare.pop().unwrap_or_default();
        begun.begin(STREAM_WINDOW, self.first_room, None, false);
        begun.is_bodiless = ask.method == Method::HEAD;
        begun.is_read = true;
        begun.handles = 1;
        self.streams.insert(number, begun);
        self.open += 1;
        self.say_block(number, if ends { END_STREAM } else { 0 }, |block| {
            block.method(ask.method);
            // A tunnel is asked for by the name of its host alone (RFC 9113 8.5).
            if ask.method != Method::CONNECT {
                block.scheme("http");
                block.path(ask.path);
            }
            block.authority(ask.authority.as_str());
            block.headers(ask.headers);
        });
        self.said(number, ends);
        number
    }

    /// The head of an answer, or an informational response before it.
    pub(super) fn answer(&mut self, number: u32, ends: bool, fields: Fields) -> Result<(), Wrong> {
        let malformed = |why| {
            tracing::debug!(why, "an answer was refused");
            Wrong::Stream(number, Reason::PROTOCOL_ERROR)
        };
        let Some(stream) = self.streams.get_mut(&number) else { return Ok(()) };
        let size = fields.length();
        let Answered { answer, length } = match fields.answer() {
            Made::Whole(answered) => answered,
            Made::Malformed(why) => return Err(malformed(why)),
            Made::TooLarge => {
                stream.lost = Some(Lost::TooLarge);
                return Err(malformed("its head is too large"));
            }
        };
        let status = answer.status();
        if status.is_informational() {
            if ends || status == StatusCode::SWITCHING_PROTOCOLS {
                return Err(malformed("an answer ends before it begins, or switches protocols"));
            }
            if !stream.before.admits(size) {
                return Err(malformed("too many informational responses came"));
            }
            if status != StatusCode::CONTINUE {
                stream.informational.push(answer);
                stream.wake_reader();
            }
            return Ok(());
        }
        let is_bodiless =
            stream.is_bodiless || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        stream.left = if is_bodiless { Some(0) } else { length };
        if ends && stream.left.is_some_and(|left| left > 0) {
            return Err(malformed("the body is shorter than was said"));
        }
        stream.has_head = true;
        stream.answer = Some(answer);
        stream.wake_reader();
        if ends {
            self.heard_out(number);
        }
        Ok(())
    }

    /// The head of the answer on a stream, and what came of its body. Where that is all, the stream is over. `informational` gets the
    /// responses that came before it.
    pub(in super::super) fn poll_answer(
        &mut self,
        number: u32,
        informational: &mut Vec<Response<()>>,
        context: &Context<'_>,
    ) -> Poll<Result<(Response<()>, Early), Lost>> {
        let Some(stream) = self.streams.get_mut(&number) else {
            return Poll::Ready(Err(Lost::Reset(Reason::CANCEL)));
        };
        if !stream.informational.is_empty() {
            informational.append(&mut stream.informational);
        }
        let Some(answer) = stream.answer.take() else {
            if let Some(lost) = stream.lost {
                return Poll::Ready(Err(lost));
            }
            register(&mut stream.reader, context);
            return Poll::Pending;
        };
        let early = self.early(number);
        Poll::Ready(Ok((answer, early)))
    }

    fn early(&mut self, number: u32) -> Early {
        let Some(stream) = self.streams.get_mut(&number).filter(|stream| stream.is_over) else {
            return Early::Coming;
        };
        let trailers = match stream.came.pop_back() {
            Some(Piece::Trailers(trailers)) => Some(trailers),
            Some(data) => {
                stream.came.push_back(data);
                None
            }
            None => None,
        };
        let Some(data) = stream.whole() else {
            stream.came.extend(trailers.map(Piece::Trailers));
            return Early::Coming;
        };
        self.read(number, data.len() as u32);
        self.abandon(number);
        Early::Whole(Some(data).filter(|data| !data.is_empty()), trailers)
    }

    /// Nobody waits for an answer any more: the other side is told, if it is not through with it.
    pub(in super::super) fn abandon(&mut self, number: u32) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.handles = 0;
        stream.is_read = false;
        stream.reader = None;
        stream.came.clear();
        let unread = mem::take(&mut stream.unread);
        self.make_room(unread);
        self.reset(number, Reason::CANCEL);
        self.forget_if_unknown(number);
    }

    /// The other side has not seen the streams after this one, and will not look at them.
    pub(super) fn unseen_after(&mut self, last: u32, reason: Reason) {
        let is_unseen = |number: &u32| *number > last;
        let unseen: Vec<u32> = self.streams.keys().copied().filter(is_unseen).collect();
        for number in unseen {
            if let Some(stream) = self.streams.get_mut(&number).filter(|stream| !stream.is_over) {
                stream.lost = Some(Lost::Unseen(reason));
            }
            self.over(number, Ended::There, Some(reason));
        }
        self.wake_driver();
    }

    /// Ends the connection where so much waits to be sent that the other side must be asking for answers that it does not take.
    pub(in super::super) fn overrun(&mut self) -> Option<Violation> {
        let is_overrun = self.is_blocked && self.out.len() >= MOST_UNSENT;
        let why = "much was asked for that is not taken";
        is_overrun.then(|| self.end(Violation::new(Reason::ENHANCE_YOUR_CALM, why)))
    }

    /// Nobody asks for anything more: the connection may end.
    pub fn retire(&mut self) {
        if self.goodbye == Goodbye::Unsaid && !self.is_gone {
            self.goodbye = Goodbye::Said(0);
            self.say_goodbye(0, Reason::NO_ERROR);
        }
    }
}
