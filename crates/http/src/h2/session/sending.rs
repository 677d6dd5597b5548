//! Messages on their way out, and what drives the connection.

use std::{
    io, mem,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, response};
use tokio::io::AsyncWrite;

#[cfg(test)]
use super::Planted;
use super::{
    super::{
        Reason,
        frame::{DATA, END_STREAM, Head, USUAL},
    },
    BUFFERED, CROWDED, Ended, Session, WOKEN,
    stream::register,
};

/// What is left of a request when it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Rest {
    /// Nothing, or nothing that matters any more.
    Nothing,
    /// Its program still sends, and nobody reads.
    Unread,
}

impl Session {
    /// Says the head of an answer, and nothing else if it `ends`, or an informational response.
    pub(in super::super) fn say_head(&mut self, number: u32, head: &response::Parts, ends: bool) {
        let Some(stream) = self.streams.get_mut(&number).filter(|stream| stream.reset.is_none()) else {
            return;
        };
        stream.expects &= head.status.is_informational();
        self.say_block(number, if ends { END_STREAM } else { 0 }, |block| {
            block.status(head.status);
            block.headers(&head.headers);
        });
        self.said(number, ends);
    }

    /// Says the fields after a body, which ends with them.
    pub(in super::super) fn say_trailers(&mut self, number: u32, trailers: &HeaderMap) {
        if self.streams.get(&number).is_none_or(|stream| stream.reset.is_some()) {
            return;
        }
        self.say_block(number, END_STREAM, |block| block.headers(trailers));
        self.said(number, true);
    }

    /// Something was said, which brings the other side what makes up for frames that ask for nothing.
    pub(super) fn said(&mut self, number: u32, ends: bool) {
        self.allowance.earn();
        if ends && let Some(stream) = self.streams.get_mut(&number) {
            stream.has_said = true;
            if stream.has_ended {
                self.over(number, Ended::Whole, None);
            }
        }
        self.wake_driver();
    }

    /// Says as much of this as there is room for, and that nothing follows if it `ends`; ready when all of it is said.
    ///
    /// # Errors
    /// The reason where the stream was reset.
    pub(in super::super) fn poll_say(
        &mut self,
        number: u32,
        data: &mut Bytes,
        ends: bool,
        context: &Context<'_>,
    ) -> Poll<Result<(), Reason>> {
        loop {
            let Some(stream) = self.streams.get_mut(&number) else { return Poll::Ready(Err(Reason::CANCEL)) };
            if let Some(reason) = stream.reset {
                return Poll::Ready(Err(reason));
            }
            let room = stream.room.min(self.room).min(data.len().min(USUAL) as i64).max(0);
            #[cfg(test)]
            let room = match self.planted {
                Some(Planted::NoWindow) => data.len().min(USUAL) as i64,
                _ => room,
            };
            let is_shut = room == 0 && !data.is_empty();
            // The mere end of a body needs no room.
            if is_shut || !data.is_empty() && self.out.len() >= BUFFERED {
                register(&mut stream.writer, context);
                let is_own = is_shut && stream.room <= 0;
                if !is_own && !mem::replace(&mut stream.waits, true) {
                    self.waiting.push_back(number);
                }
                return Poll::Pending;
            }
            let piece =
                if room == data.len() as i64 { mem::take(data) } else { data.split_to(room as usize) };
            stream.room -= room;
            // Who says something waits no more, whoever is woken next.
            stream.waits = false;
            self.room -= room;
            let is_last = data.is_empty();
            let flags = if ends && is_last { END_STREAM } else { 0 };
            if !piece.is_empty() || flags != 0 {
                Head { length: piece.len(), kind: DATA, flags, stream: number }.write(self.out.text());
                self.out.follow(piece);
            }
            self.said(number, ends && is_last);
            if is_last {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Ready when a stream is reset; until then whoever asks is woken by whatever happens to it.
    pub(in super::super) fn poll_reset(&mut self, number: u32, context: &Context<'_>) -> Poll<Reason> {
        match self.streams.get_mut(&number) {
            None => Poll::Ready(Reason::CANCEL),
            Some(stream) => match stream.reset {
                Some(reason) => Poll::Ready(reason),
                None => {
                    register(&mut stream.writer, context);
                    Poll::Pending
                }
            },
        }
    }

    /// What is left of a request, once nobody reads it.
    pub(in super::super) fn poll_rest(&mut self, number: u32, context: &Context<'_>) -> Poll<Rest> {
        let Some(stream) = self.streams.get_mut(&number) else { return Poll::Ready(Rest::Nothing) };
        if stream.is_over || Self::is_wasted(stream.wasted) {
            return Poll::Ready(Rest::Nothing);
        }
        if !stream.is_read {
            return Poll::Ready(Rest::Unread);
        }
        register(&mut stream.writer, context);
        Poll::Pending
    }

    /// Ready when a request that nobody reads has ended, or is too long to be waited for.
    pub(in super::super) fn poll_wasted(&mut self, number: u32, context: &Context<'_>) -> Poll<()> {
        match self
            .streams
            .get_mut(&number)
            .filter(|stream| !stream.is_over && !Self::is_wasted(stream.wasted))
        {
            None => Poll::Ready(()),
            Some(stream) => {
                register(&mut stream.writer, context);
                Poll::Pending
            }
        }
    }

    /// Nobody answers on a stream any more.
    pub(in super::super) fn unanswered(&mut self, number: u32) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.handles -= 1;
        stream.writer = None;
        if !stream.is_over {
            // A program that has its answer may be told to send no more (RFC 9113 8.1).
            let reason = if stream.has_said { Reason::NO_ERROR } else { Reason::INTERNAL_ERROR };
            self.reset(number, reason);
        }
        self.forget_if_unknown(number);
    }

    /// Whoever drives the connection begins a turn, at whose end it sends what there is.
    pub fn begin_turn(&mut self) {
        self.is_driven = true;
    }

    /// Sends what there is, and has the driver woken when there is more.
    ///
    /// # Errors
    /// Where the other side takes nothing any more.
    pub fn poll_end_turn<W>(&mut self, io: &mut W, context: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        W: AsyncWrite + Unpin,
    {
        let flushed = self.out.poll_flush(io, context);
        self.is_blocked = flushed.is_pending();
        self.wake_waiting();
        self.is_driven = false;
        register(&mut self.driver, context);
        ready!(flushed)?;
        Poll::Ready(Ok(()))
    }

    /// Has some of the streams woken that wait for room on the connection, where there is. It is asked for at the end of each
    /// turn, so that those that have nothing to say take it from nobody.
    pub(super) fn wake_waiting(&mut self) {
        let mut woken = 0;
        while woken < WOKEN && self.room > 0 && self.out.len() < BUFFERED {
            let Some(number) = self.waiting.pop_front() else { return };
            if let Some(stream) = self.streams.get_mut(&number).filter(|stream| stream.waits) {
                stream.waits = false;
                // One that cannot speak for want of its own room must not stand in for one that can.
                woken += usize::from(stream.room > 0);
                stream.wake_writer();
            }
        }
    }

    /// Whether nothing waits to be sent.
    pub fn is_sent(&self) -> bool {
        self.out.is_empty()
    }

    /// Whether so much waits to be sent that nothing more is to be read.
    pub fn is_crowded(&self) -> bool {
        self.out.len() >= CROWDED
    }
}
