//! Bodies as they come and are read.

use std::{
    mem,
    task::{Context, Poll},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::StatusCode;

#[cfg(test)]
use super::Planted;
use super::{
    super::{
        Reason, Violation,
        frame::{END_STREAM, Head, PADDED, WINDOW_UPDATE, push},
    },
    Ended, Goodbye, Lost, Piece, SPARE, STREAM_WINDOW, Session, Side, Wrong,
    stream::register,
};

/// Pieces from this length on are not copied out of what was read: they keep all of it, which is 72 KB.
const LARGE: usize = 4 * 1024;
/// Once so much is unread on a connection they are copied, lest small pieces of large memory pile up.
const HELD: i64 = 128 * 1024;
/// Pieces for which memory is kept with that of a stream.
const FEW: usize = 16;
/// Where the window is no larger, the other side is told of every byte that was read.
const LITTLE: i64 = 32 * 1024;
/// Bytes of a body that come although nobody reads it, before its program is told to stop.
const WASTE: u32 = 32 * 1024;

/// The payload of a frame of data, taken out of what came; `None` where there is more padding than frame.
fn cut(head: Head, input: &mut BytesMut, copies: bool) -> Option<Bytes> {
    let (mut length, mut padding) = (head.length, 0);
    if head.has(PADDED) {
        padding = usize::from(*input[..head.length].first()?);
        length = length.checked_sub(1 + padding)?;
        input.advance(1);
    }
    let data = match copies || length < LARGE {
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
    pub(super) fn data(&mut self, head: Head, input: &mut BytesMut) -> Result<(), Wrong> {
        // At most a frame's.
        let size = head.length as u32;
        if head.stream == 0 {
            return Err(Violation::protocol("DATA on no stream").into());
        }
        self.has_begun(head.stream)?;
        self.window -= i64::from(size);
        if self.window < 0 {
            return Err(
                Violation::new(Reason::FLOW_CONTROL_ERROR, "more came than there was room for").into()
            );
        }
        let Some(stream) = self.streams.get_mut(&head.stream).filter(|stream| !stream.is_over) else {
            input.advance(head.length);
            self.make_room(size);
            return self.late_data(head.stream);
        };
        let wrong = match () {
            () if stream.has_ended => Some(Reason::STREAM_CLOSED),
            () if !stream.has_head => Some(Reason::PROTOCOL_ERROR),
            () if stream.window < i64::from(size) => Some(Reason::FLOW_CONTROL_ERROR),
            () => None,
        };
        if let Some(reason) = wrong {
            input.advance(head.length);
            self.make_room(size);
            return Err(Wrong::Stream(head.stream, reason));
        }
        stream.window -= i64::from(size);
        let held = i64::from(self.side.window()) - self.window - i64::from(self.unsaid);
        let data =
            cut(head, input, held > HELD).ok_or(Violation::protocol("there is more padding than data"))?;
        #[cfg(test)]
        let head = match self.planted {
            Some(Planted::AnyStreamsBody) => {
                Head { stream: self.streams.keys().copied().min().unwrap_or(head.stream), ..head }
            }
            Some(Planted::NoEnd) => Head { flags: 0, ..head },
            _ => head,
        };
        self.came(head, size, data)
    }

    /// Data on a stream that has ended, or was never begun.
    fn late_data(&self, stream: u32) -> Result<(), Wrong> {
        let is_refused = matches!(self.goodbye, Goodbye::Said(last) if stream > last);
        match self.how_ended(stream) {
            Some(Ended::Here) => Ok(()),
            None if is_refused => Ok(()),
            // Calls may be given up faster than a server hears of it.
            None | Some(Ended::There) if self.side == Side::Asking => Ok(()),
            _ => Err(Wrong::Stream(stream, Reason::STREAM_CLOSED)),
        }
    }

    /// A piece of a body, from a frame of so many bytes.
    fn came(&mut self, head: Head, size: u32, data: Bytes) -> Result<(), Wrong> {
        let Some(stream) = self.streams.get_mut(&head.stream) else { return Ok(()) };
        let length = data.len() as u32;
        let ends = head.has(END_STREAM);
        let is_as_told = match &mut stream.left {
            None => true,
            Some(left) => match left.checked_sub(length.into()) {
                None => false,
                Some(rest) => {
                    *left = rest;
                    !ends || rest == 0
                }
            },
        };
        stream.unsaid += size - length;
        let mut free = size - length;
        if !is_as_told {
            self.make_room(size);
            return Err(Wrong::Stream(head.stream, Reason::PROTOCOL_ERROR));
        }
        if stream.is_read || stream.handles == 0 {
            if length > 0 {
                stream.unread += length;
                stream.keep(data);
                stream.wake_reader();
            }
        } else {
            free = size;
            stream.wasted += length;
            if stream.wasted > WASTE {
                stream.wake_writer();
            }
        }
        self.make_room(free);
        if ends {
            self.heard_out(head.stream);
        }
        Ok(())
    }

    /// The other side has said all on a stream.
    pub(super) fn heard_out(&mut self, number: u32) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.has_ended = true;
        stream.wake_reader();
        if stream.has_said {
            stream.wake_writer();
            self.over(number, Ended::Whole, None);
        }
    }

    /// So many bytes of all streams are no longer held.
    pub(super) fn make_room(&mut self, size: u32) {
        self.unsaid += size;
        // Half of what is left, as long as that is much: what nobody reads on one stream must not hold up the others.
        let enough = if self.window < LITTLE { 1 } else { self.window / 2 };
        if i64::from(self.unsaid) >= enough && !self.is_gone {
            let more = mem::take(&mut self.unsaid);
            self.window += i64::from(more);
            push(self.out.text(), WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
            self.wake_driver();
        }
    }

    /// So many bytes of a stream were read.
    pub(super) fn read(&mut self, number: u32, size: u32) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.unread = stream.unread.saturating_sub(size);
        stream.unsaid += size;
        if stream.unsaid >= STREAM_WINDOW / 2 && !stream.has_ended && !stream.is_over {
            let more = mem::take(&mut stream.unsaid);
            stream.window += i64::from(more);
            push(self.out.text(), WINDOW_UPDATE, 0, number, &more.to_be_bytes());
            self.wake_driver();
        }
        self.make_room(size);
    }

    /// The next piece of a body; `None` after the last, and the reason where it was reset.
    pub(in super::super) fn poll_piece(
        &mut self,
        number: u32,
        context: &Context<'_>,
    ) -> Poll<Option<Result<Piece, Lost>>> {
        let Some(stream) = self.streams.get_mut(&number) else {
            return Poll::Ready(Some(Err(Lost::Reset(Reason::CANCEL))));
        };
        if self.side == Side::Asked
            && let Some(lost) = stream.lost
        {
            return Poll::Ready(Some(Err(lost)));
        }
        match stream.came.pop_front() {
            Some(piece) => {
                if let Piece::Data(data) = &piece {
                    let size = data.len() as u32;
                    self.read(number, size);
                }
                Poll::Ready(Some(Ok(piece)))
            }
            None if stream.has_ended => Poll::Ready(None),
            None if let Some(lost) = stream.lost => Poll::Ready(Some(Err(lost))),
            None => {
                register(&mut stream.reader, context);
                if mem::take(&mut stream.expects) {
                    self.go_on(number);
                }
                Poll::Pending
            }
        }
    }

    /// Tells a program that waits for it that its body is wanted.
    fn go_on(&mut self, number: u32) {
        self.say_block(number, 0, |block| block.status(StatusCode::CONTINUE));
        self.wake_driver();
    }

    /// Whether all of a body was read, and how much is left of it, where that is known.
    pub(in super::super) fn left(&self, number: u32) -> (bool, Option<u64>) {
        let Some(stream) = self.streams.get(&number) else { return (true, Some(0)) };
        let unread = u64::from(stream.unread);
        // A body that trailers follow is not told to be as long as it is, lest they are left out.
        let is_all = stream.has_ended && !matches!(stream.came.back(), Some(Piece::Trailers(_)));
        let length = if is_all { Some(unread) } else { stream.left.map(|left| left + unread) };
        (stream.has_ended && stream.came.is_empty() && stream.reset.is_none(), length)
    }

    /// Whether nothing is left of a body to read.
    pub(in super::super) fn is_read_out(&self, number: u32) -> bool {
        let Some(stream) = self.streams.get(&number) else { return true };
        stream.has_ended && stream.came.is_empty()
    }

    /// Nobody reads a body any more.
    pub(in super::super) fn unread(&mut self, number: u32) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.is_read = false;
        stream.handles -= 1;
        stream.came.clear();
        stream.reader = None;
        stream.wake_writer();
        let unread = mem::take(&mut stream.unread);
        self.make_room(unread);
        self.forget_if_unknown(number);
    }

    /// Whether so much came of a body that nobody reads that its program is to stop.
    pub(super) fn is_wasted(wasted: u32) -> bool {
        wasted > WASTE
    }

    /// A stream that has ended, and of which nobody knows, is forgotten.
    pub(super) fn forget_if_unknown(&mut self, number: u32) {
        let is_unknown = |stream: &super::Stream| stream.handles == 0 && stream.is_over;
        if self.streams.get(&number).is_some_and(|stream| is_unknown(stream))
            && let Some(mut stream) = self.streams.remove(&number)
            && self.spare.len() < SPARE
            && stream.came.capacity() <= FEW
        {
            stream.rest();
            self.spare.push(stream);
        }
        if self.streams.is_empty() && (self.is_left || self.goodbye != Goodbye::Unsaid) {
            self.wake_driver();
        }
    }
}
