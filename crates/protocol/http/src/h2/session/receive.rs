//! Receives DATA frames, and passes bodies to their readers.

use std::{
    mem,
    task::{Context, Poll},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::StatusCode;

#[cfg(test)]
use super::Mutant;
use super::{
    super::{
        Reason, Violation,
        frame::{END_STREAM, FrameHeader, PADDED},
    },
    FrameError, GoAwayState, MAX_SPARE_STREAMS, Piece, Role, Session, StreamEnd, StreamError,
    stream::register,
};

/// Minimum size of a payload that is not copied out of the read buffer, in bytes. Such a payload keeps the whole
/// buffer of 72 KB alive.
const MIN_UNCOPIED: usize = 4 * 1024;
/// Number of a connection's unread bytes above which all payloads are copied, so that small payloads do not keep many
/// large buffers alive.
const COPY_ABOVE: u64 = 128 * 1024;
/// Maximum capacity, in pieces, that a stream state keeps for reuse.
const MAX_SPARE_PIECES: usize = 16;
/// Number of body bytes that are discarded without a reader before the client is asked to stop.
const MAX_DISCARDED: u32 = 32 * 1024;

/// Takes the payload of a DATA frame out of `input`. Returns `None` if the padding exceeds the frame.
fn cut(head: FrameHeader, input: &mut BytesMut, copies: bool) -> Option<Bytes> {
    let (mut length, mut padding) = (head.length, 0);
    if head.has(PADDED) {
        padding = usize::from(*input[..head.length].first()?);
        length = length.checked_sub(1 + padding)?;
        input.advance(1);
    }
    let data = match copies || length < MIN_UNCOPIED {
        true => {
            let copied = Bytes::copy_from_slice(&input[..length]);
            input.advance(length);
            copied
        }
        false => input.split_to(length).freeze(),
    };
    input.advance(padding);
    Some(data)
}

impl Session {
    pub(super) fn data(&mut self, head: FrameHeader, input: &mut BytesMut) -> Result<(), FrameError> {
        // The size fits, since a payload is at most one frame.
        let size = head.length as u32;
        if head.stream == 0 {
            return Err(Violation::protocol("DATA on stream 0").into());
        }
        self.check_opened(head.stream)?;
        self.charge_connection(size);
        let Some(stream) = self.streams.get_mut(&head.stream).filter(|stream| !stream.is_closed) else {
            input.advance(head.length);
            return self.late_data(head.stream);
        };
        let wrong = match () {
            () if stream.remote_closed => Some(Reason::STREAM_CLOSED),
            () if !stream.has_head => Some(Reason::PROTOCOL_ERROR),
            () if stream.receive_window < size => Some(Reason::FLOW_CONTROL_ERROR),
            () => None,
        };
        if let Some(reason) = wrong {
            input.advance(head.length);
            return Err(FrameError::Stream(head.stream, reason));
        }
        stream.receive_window -= size;
        let data = cut(head, input, self.unread.get() > COPY_ABOVE)
            .ok_or(Violation::protocol("the padding exceeds the DATA frame"))?;
        #[cfg(test)]
        let head = match self.mutant {
            Some(Mutant::MisroutesBody) => {
                FrameHeader { stream: self.streams.keys().copied().min().unwrap_or(head.stream), ..head }
            }
            Some(Mutant::DropsEndStream) => FrameHeader { flags: 0, ..head },
            _ => head,
        };
        self.accept_data(head, size, data)
    }

    /// Handles DATA on a closed or idle stream.
    fn late_data(&self, stream: u32) -> Result<(), FrameError> {
        let is_refused = matches!(self.goaway, GoAwayState::Sent(last) if stream > last);
        match self.how_ended(stream) {
            Some(StreamEnd::ResetLocally) => Ok(()),
            None if is_refused => Ok(()),
            // Calls may be cancelled faster than the server notices.
            None | Some(StreamEnd::ResetRemotely) if self.role == Role::Client => Ok(()),
            _ => Err(FrameError::Stream(stream, Reason::STREAM_CLOSED)),
        }
    }

    /// Handles a piece of a body from a frame whose payload, with padding, has `size` bytes.
    fn accept_data(&mut self, head: FrameHeader, size: u32, data: Bytes) -> Result<(), FrameError> {
        let Some(stream) = self.streams.get_mut(&head.stream) else { return Ok(()) };
        let length = data.len() as u32;
        let ends = head.has(END_STREAM);
        let is_as_told = match &mut stream.content_left {
            None => true,
            Some(left) => match left.checked_sub(length.into()) {
                None => false,
                Some(rest) => {
                    *left = rest;
                    !ends || rest == 0
                }
            },
        };
        if !is_as_told {
            return Err(FrameError::Stream(head.stream, Reason::PROTOCOL_ERROR));
        }
        if stream.has_reader || stream.handles == 0 {
            if length > 0 && self.unread.exceeds_its_part() {
                return Err(FrameError::Stream(head.stream, Reason::ENHANCE_YOUR_CALM));
            }
            if length > 0 {
                self.unread.add(length);
                stream.unread += length;
                stream.push_data(data);
                stream.wake_reader();
            }
            if size > length {
                // Padding is never read, so its part of the window is returned at once.
                self.return_stream_window(head.stream, size - length);
            }
        } else {
            stream.discarded += length;
            if stream.discarded > MAX_DISCARDED {
                stream.wake_writer();
            }
        }
        if ends {
            self.on_remote_closed(head.stream);
        }
        Ok(())
    }

    /// Handles END_STREAM from the peer.
    pub(super) fn on_remote_closed(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.remote_closed = true;
        stream.wake_reader();
        if stream.local_closed {
            stream.wake_writer();
            self.close_stream(id, StreamEnd::Complete, None);
        } else {
            self.growth_left += stream.take_growth();
        }
    }

    /// Returns the next piece of a body: `None` after the last piece, or the error if the stream failed.
    pub(in super::super) fn poll_piece(
        &mut self,
        id: u32,
        context: &Context<'_>,
    ) -> Poll<Option<Result<Piece, StreamError>>> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Poll::Ready(Some(Err(StreamError::Reset(Reason::CANCEL))));
        };
        if self.role == Role::Server
            && let Some(error) = stream.error
        {
            return Poll::Ready(Some(Err(error)));
        }
        match stream.received.pop_front() {
            Some(piece) => {
                if let Piece::Data(data) = &piece {
                    let size = data.len() as u32;
                    self.release_stream_window(id, size);
                }
                Poll::Ready(Some(Ok(piece)))
            }
            None if stream.remote_closed => Poll::Ready(None),
            None if let Some(error) = stream.error => Poll::Ready(Some(Err(error))),
            None => {
                register(&mut stream.reader, context);
                if mem::take(&mut stream.expects_continue) {
                    self.send_continue(id);
                }
                Poll::Pending
            }
        }
    }

    /// Sends 100 (Continue) if the client waits for it.
    fn send_continue(&mut self, id: u32) {
        self.send_header_block(id, 0, |block| block.status(StatusCode::CONTINUE));
        self.wake_driver();
    }

    /// Returns whether the whole body was received, and the number of bytes left to read, if known.
    pub(in super::super) fn remaining_body(&self, id: u32) -> (bool, Option<u64>) {
        let Some(stream) = self.streams.get(&id) else { return (true, Some(0)) };
        let unread = u64::from(stream.unread);
        // A body with trailers gets no exact length, since the trailers would be dropped.
        let is_all = stream.remote_closed && !matches!(stream.received.back(), Some(Piece::Trailers(_)));
        let length = if is_all { Some(unread) } else { stream.content_left.map(|left| left + unread) };
        (stream.remote_closed && stream.received.is_empty() && stream.reset.is_none(), length)
    }

    /// Whether a body was read to its end.
    pub(in super::super) fn is_fully_read(&self, id: u32) -> bool {
        let Some(stream) = self.streams.get(&id) else { return true };
        stream.remote_closed && stream.received.is_empty()
    }

    /// Handles the drop of a body's reader.
    pub(in super::super) fn drop_reader(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.has_reader = false;
        stream.handles -= 1;
        stream.reader = None;
        // The window of these bytes is never returned, so they count like the bytes that arrive later.
        stream.discarded += stream.unread;
        stream.wake_writer();
        self.discard_unread(id);
        self.remove_if_unused(id);
    }

    /// Whether so much of a body was discarded that the client must be stopped.
    pub(super) fn exceeds_discard_limit(discarded: u32) -> bool {
        discarded > MAX_DISCARDED
    }

    /// Removes a closed stream that is no longer in use.
    pub(super) fn remove_if_unused(&mut self, id: u32) {
        let is_unused = |stream: &super::Stream| stream.handles == 0 && stream.is_closed;
        if self.streams.get(&id).is_some_and(|stream| is_unused(stream))
            && let Some(mut stream) = self.streams.remove(&id)
            && self.spare.len() < MAX_SPARE_STREAMS
            && stream.received.capacity() <= MAX_SPARE_PIECES
        {
            stream.recycle();
            self.spare.push(stream);
        }
        if self.streams.is_empty() && (self.goaway_received || self.goaway != GoAwayState::NotSent) {
            self.wake_driver();
        }
    }
}
