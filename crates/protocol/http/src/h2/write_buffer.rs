//! Frames that are waiting to be sent on a connection.

use std::{
    cell::Cell,
    collections::VecDeque,
    io::{self, ErrorKind, IoSlice},
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use tokio::io::AsyncWrite;

/// Minimum length of a body piece that is not copied, in bytes: a copy costs more than another part of a vectored
/// write.
const MIN_UNCOPIED: usize = 8 * 1024;
/// Maximum number of parts in one vectored write.
const MAX_PARTS: usize = 16;
/// Maximum size in bytes of a buffer that is kept for the next connection.
const MAX_KEPT: usize = 256 * 1024;

thread_local! {
    /// Buffer that is lent to the connection that is writing. Idle connections hold no buffer.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Frames in order: most in one buffer, with large body pieces in between.
#[derive(Debug, Default)]
pub(super) struct WriteBuffer {
    buffer: Vec<u8>,
    /// Bytes of the buffer that were already sent.
    sent: usize,
    /// Large pieces, each with its position in the buffer.
    large: VecDeque<(usize, Bytes)>,
    /// Unsent bytes of the large pieces.
    large_left: usize,
}

impl WriteBuffer {
    /// Returns the buffer to which frames are written.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        if self.buffer.capacity() == 0 {
            self.buffer = SPARE.take();
        }
        &mut self.buffer
    }

    /// Adds the payload of a DATA frame.
    pub(super) fn append(&mut self, data: Bytes) {
        if data.len() < MIN_UNCOPIED {
            return self.buffer().extend_from_slice(&data);
        }
        self.large_left += data.len();
        self.large.push_back((self.buffer.len(), data));
    }

    /// Number of unsent bytes.
    pub(super) fn len(&self) -> usize {
        self.buffer.len() - self.sent + self.large_left
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends everything that is buffered.
    pub(super) fn poll_flush<W>(&mut self, io: &mut W, context: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        W: AsyncWrite + Unpin,
    {
        while !self.is_empty() {
            let written = match self.poll_write(io, context) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                Poll::Ready(written) => written?,
                Poll::Pending => {
                    self.compact();
                    return Poll::Pending;
                }
            };
            self.advance(written);
        }
        self.recycle();
        // A socket has nothing to flush, but TLS buffers what the socket did not accept.
        Pin::new(io).poll_flush(context)
    }

    fn poll_write<W>(&self, io: &mut W, context: &mut Context<'_>) -> Poll<io::Result<usize>>
    where
        W: AsyncWrite + Unpin,
    {
        if self.large.is_empty() {
            return Pin::new(io).poll_write(context, &self.buffer[self.sent..]);
        }
        let (mut parts, mut count, mut at) = ([IoSlice::new(&[]); MAX_PARTS], 0, self.sent);
        for (before, data) in &self.large {
            // Space is needed for the bytes before the piece, the piece, and the bytes after the last piece.
            if count + 3 > MAX_PARTS {
                return Pin::new(io).poll_write_vectored(context, &parts[..count]);
            }
            for part in [&self.buffer[at..*before], data] {
                parts[count] = IoSlice::new(part);
                count += 1;
            }
            at = *before;
        }
        parts[count] = IoSlice::new(&self.buffer[at..]);
        Poll::Ready(Ok(ready!(Pin::new(io).poll_write_vectored(context, &parts[..=count]))?))
    }

    fn advance(&mut self, mut written: usize) {
        while written > 0 {
            let until = self.large.front().map_or(self.buffer.len(), |(before, _)| *before);
            let copied = written.min(until - self.sent);
            self.sent += copied;
            written -= copied;
            // A partial write of the buffer ends before the piece.
            let Some((_, data)) = self.large.front_mut().filter(|(before, _)| *before == self.sent) else {
                return;
            };
            let size = written.min(data.len());
            data.advance(size);
            self.large_left -= size;
            written -= size;
            if data.is_empty() {
                self.large.pop_front();
            }
        }
    }

    /// Returns the buffer to the thread after everything is sent.
    fn recycle(&mut self) {
        if self.buffer.capacity() == 0 {
            return;
        }
        self.buffer.clear();
        self.sent = 0;
        if self.buffer.capacity() <= MAX_KEPT {
            SPARE.set(mem::take(&mut self.buffer));
        } else {
            self.buffer = Vec::new();
        }
    }

    /// Drops sent bytes from the buffer, for a peer that reads slowly.
    fn compact(&mut self) {
        if self.sent > self.buffer.len() / 2 {
            self.buffer.drain(..self.sent);
            self.large.iter_mut().for_each(|(before, _)| *before -= self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use proptest::prelude::*;

    use super::*;

    /// A writer that accepts these numbers of bytes in turn; 0 means `Pending` once.
    struct Slow {
        accepted: Vec<u8>,
        sizes: VecDeque<usize>,
    }

    impl AsyncWrite for Slow {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
            let Some(size) = self.sizes.pop_front().filter(|size| *size > 0) else { return Poll::Pending };
            let size = size.min(data.len());
            self.accepted.extend_from_slice(&data[..size]);
            Poll::Ready(Ok(size))
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            parts: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let Some(size) = self.sizes.pop_front().filter(|size| *size > 0) else { return Poll::Pending };
            let all: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
            let size = size.min(all.len());
            self.accepted.extend_from_slice(&all[..size]);
            Poll::Ready(Ok(size))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    proptest! {
        #[test]
        fn write_buffer_writes_bytes_in_order_at_any_write_size(
            pieces in prop::collection::vec((0..3 * MIN_UNCOPIED, any::<bool>()), 1..40),
            sizes in prop::collection::vec(0..4 * MIN_UNCOPIED, 1..60),
        ) {
            let (mut output, mut expected) = (WriteBuffer::default(), Vec::new());
            let mut slow = Slow { accepted: Vec::new(), sizes: sizes.into() };
            let mut context = Context::from_waker(Waker::noop());
            for (n, (size, flushes)) in pieces.into_iter().enumerate() {
                let data = vec![n as u8; size];
                output.buffer().extend_from_slice(&[0xff, n as u8]);
                output.append(data.clone().into());
                expected.extend_from_slice(&[0xff, n as u8]);
                expected.extend_from_slice(&data);
                if flushes {
                    let _ = output.poll_flush(&mut slow, &mut context).map(Result::unwrap);
                }
                prop_assert_eq!(output.len(), expected.len() - slow.accepted.len());
            }
            while output.poll_flush(&mut slow, &mut context).map(Result::unwrap).is_pending() {
                slow.sizes.push_back(MIN_UNCOPIED);
            }
            prop_assert!(output.is_empty() && slow.accepted == expected);
        }
    }
}
