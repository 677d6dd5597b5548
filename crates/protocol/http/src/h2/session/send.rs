//! Sends headers, data and trailers, and drives the connection.

use std::{
    io, mem,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, response};
use tokio::{io::AsyncWrite, time::Instant};

#[cfg(test)]
use super::Mutant;
use super::{
    super::{
        Reason,
        frame::{DATA, DEFAULT_FRAME_SIZE, END_STREAM, FrameHeader},
    },
    MAX_SEND_BACKLOG, MAX_WOKEN, SEND_BUFFER, Session, Shut, StreamEnd,
    stream::register,
};

/// State of a request after its response was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum RequestRemainder {
    /// The request is complete, or its rest no longer matters.
    Done,
    /// The client is still sending, and the body has no reader.
    Unread,
}

impl Session {
    /// Sends the headers of a response, with END_STREAM if the response `ends`, or an informational response.
    pub(in super::super) fn send_headers(&mut self, id: u32, head: &response::Parts, ends: bool) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.reset.is_none()) else {
            return;
        };
        stream.expects_continue &= head.status.is_informational();
        self.send_header_block(id, if ends { END_STREAM } else { 0 }, |block| {
            block.status(head.status);
            block.headers(&head.headers);
        });
        self.note_sent(id, ends);
    }

    /// Sends trailers.
    pub(in super::super) fn send_trailers(&mut self, id: u32, trailers: &HeaderMap) {
        if self.streams.get(&id).is_none_or(|stream| stream.reset.is_some()) {
            return;
        }
        self.send_header_block(id, END_STREAM, |block| block.headers(trailers));
        self.note_sent(id, true);
    }

    /// Records that a header block or DATA frame was buffered.
    pub(super) fn note_sent(&mut self, id: u32, ends: bool) {
        self.flood_limit.credit();
        if ends && let Some(stream) = self.streams.get_mut(&id) {
            stream.local_closed = true;
            if stream.remote_closed {
                self.close_stream(id, StreamEnd::Complete, None);
            }
        }
        self.wake_driver();
    }

    /// Sends as much data as flow control allows, with END_STREAM if the data `ends` the body. Ready when everything is
    /// sent.
    ///
    /// # Errors
    /// The error code, if the stream was reset.
    pub(in super::super) fn poll_send_data(
        &mut self,
        id: u32,
        data: &mut Bytes,
        ends: bool,
        context: &Context<'_>,
    ) -> Poll<Result<(), Reason>> {
        loop {
            let Some(stream) = self.streams.get_mut(&id) else { return Poll::Ready(Err(Reason::CANCEL)) };
            if let Some(reason) = stream.reset {
                return Poll::Ready(Err(reason));
            }
            let allowed = stream
                .send_window
                .min(self.send_window)
                .min(data.len().min(DEFAULT_FRAME_SIZE) as i64)
                .max(0);
            #[cfg(test)]
            let allowed = match self.mutant {
                Some(Mutant::IgnoresWindow) => data.len().min(DEFAULT_FRAME_SIZE) as i64,
                _ => allowed,
            };
            let is_shut = allowed == 0 && !data.is_empty();
            // An empty DATA frame with END_STREAM needs no window.
            if is_shut || !data.is_empty() && self.out.len() >= SEND_BUFFER {
                register(&mut stream.writer, context);
                let is_own = is_shut && stream.send_window <= 0;
                if !is_own && !mem::replace(&mut stream.is_waiting, true) {
                    self.waiting.push_back(id);
                }
                if is_shut && self.send_window <= 0 {
                    self.shut.get_or_insert_with(|| Shut { since: Instant::now(), opened: 0 });
                }
                return Poll::Pending;
            }
            let piece =
                if allowed == data.len() as i64 { mem::take(data) } else { data.split_to(allowed as usize) };
            stream.send_window -= allowed;
            // A stream that sends is no longer waiting, regardless of which stream is woken next.
            stream.is_waiting = false;
            self.send_window -= allowed;
            let is_last = data.is_empty();
            let flags = if ends && is_last { END_STREAM } else { 0 };
            if !piece.is_empty() || flags != 0 {
                FrameHeader { length: piece.len(), kind: DATA, flags, stream: id }.write(self.out.buffer());
                self.out.append(piece);
            }
            self.note_sent(id, ends && is_last);
            if is_last {
                if self.waiting.is_empty() {
                    self.shut = None;
                }
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Ready when a stream is reset. Until then, every event of the stream wakes the task.
    pub(in super::super) fn poll_reset(&mut self, id: u32, context: &Context<'_>) -> Poll<Reason> {
        match self.streams.get_mut(&id) {
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

    /// Returns the state of a request, once its body is dropped.
    pub(in super::super) fn poll_remainder(
        &mut self,
        id: u32,
        context: &Context<'_>,
    ) -> Poll<RequestRemainder> {
        let Some(stream) = self.streams.get_mut(&id) else { return Poll::Ready(RequestRemainder::Done) };
        if stream.is_closed || Self::exceeds_discard_limit(stream.discarded) {
            return Poll::Ready(RequestRemainder::Done);
        }
        if !stream.has_reader {
            return Poll::Ready(RequestRemainder::Unread);
        }
        register(&mut stream.writer, context);
        Poll::Pending
    }

    /// Ready when a discarded request has ended, or exceeds its limit.
    pub(in super::super) fn poll_discarded(&mut self, id: u32, context: &Context<'_>) -> Poll<()> {
        match self
            .streams
            .get_mut(&id)
            .filter(|stream| !stream.is_closed && !Self::exceeds_discard_limit(stream.discarded))
        {
            None => Poll::Ready(()),
            Some(stream) => {
                register(&mut stream.writer, context);
                Poll::Pending
            }
        }
    }

    /// Handles the drop of a stream's responder.
    pub(in super::super) fn drop_responder(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.handles -= 1;
        stream.writer = None;
        if !stream.is_closed {
            // After a complete response the client may be asked to stop sending (RFC 9113 8.1).
            let reason = if stream.local_closed { Reason::NO_ERROR } else { Reason::INTERNAL_ERROR };
            self.reset(id, reason);
        }
        self.remove_if_unused(id);
    }

    /// Begins a turn of the driver. At its end the driver sends the buffered frames.
    pub fn begin_turn(&mut self) {
        self.is_driven = true;
    }

    /// Sends the buffered frames, and registers the driver to be woken for more.
    ///
    /// # Errors
    /// The transport failed.
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

    /// Wakes some of the streams that are waiting for the connection's window or send buffer. This runs at the end of
    /// each turn, so that a woken stream with nothing to send does not hold up the others.
    pub(super) fn wake_waiting(&mut self) {
        let mut woken = 0;
        while woken < MAX_WOKEN && self.send_window > 0 && self.out.len() < SEND_BUFFER {
            let Some(id) = self.waiting.pop_front() else { return };
            if let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.is_waiting) {
                stream.is_waiting = false;
                // A stream whose own window is shut must not count as woken, since it cannot send.
                woken += usize::from(stream.send_window > 0);
                stream.wake_writer();
            }
        }
    }

    /// Whether all buffered frames are sent.
    pub fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    /// Whether the send backlog is so large that reading must pause.
    pub fn is_backlogged(&self) -> bool {
        self.out.len() >= MAX_SEND_BACKLOG
    }
}
