//! What goes out next on a connection that many streams share.

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

/// Pieces of a body from this length on are sent where they lie: a copy costs more than another part of a write.
const LARGE: usize = 8 * 1024;
/// The most parts of one write.
const PARTS: usize = 16;
/// Memory of so many bytes is kept for the next connection.
const KEPT: usize = 256 * 1024;

thread_local! {
    /// Lent to the connection that has something to write: those that wait hold no memory.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Frames in their order: most as one text, between which large pieces of bodies stand.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    text: Vec<u8>,
    /// How much of the text is sent.
    sent: usize,
    /// Each with where in the text it stands.
    large: VecDeque<(usize, Bytes)>,
    /// Bytes of these.
    large_left: usize,
}

impl Outbox {
    /// To write frames to.
    pub(super) fn text(&mut self) -> &mut Vec<u8> {
        if self.text.capacity() == 0 {
            self.text = SPARE.take();
        }
        &mut self.text
    }

    /// Adds what a frame carries.
    pub(super) fn follow(&mut self, data: Bytes) {
        if data.len() < LARGE {
            return self.text().extend_from_slice(&data);
        }
        self.large_left += data.len();
        self.large.push_back((self.text.len(), data));
    }

    /// Bytes that are not sent.
    pub(super) fn len(&self) -> usize {
        self.text.len() - self.sent + self.large_left
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends what is there.
    pub(super) fn poll_flush<W>(&mut self, io: &mut W, context: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        W: AsyncWrite + Unpin,
    {
        while !self.is_empty() {
            let written = match self.poll_write(io, context) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                Poll::Ready(written) => written?,
                Poll::Pending => {
                    self.forget_sent();
                    return Poll::Pending;
                }
            };
            self.advance(written);
        }
        self.rest();
        // A socket has nothing to flush; TLS keeps what the socket below did not take.
        Pin::new(io).poll_flush(context)
    }

    fn poll_write<W>(&self, io: &mut W, context: &mut Context<'_>) -> Poll<io::Result<usize>>
    where
        W: AsyncWrite + Unpin,
    {
        if self.large.is_empty() {
            return Pin::new(io).poll_write(context, &self.text[self.sent..]);
        }
        let (mut parts, mut count, mut at) = ([IoSlice::new(&[]); PARTS], 0, self.sent);
        for (before, data) in &self.large {
            // Room for the text before it, itself, and the text behind the last one.
            if count + 3 > PARTS {
                return Pin::new(io).poll_write_vectored(context, &parts[..count]);
            }
            for part in [&self.text[at..*before], data] {
                parts[count] = IoSlice::new(part);
                count += 1;
            }
            at = *before;
        }
        parts[count] = IoSlice::new(&self.text[at..]);
        Poll::Ready(Ok(ready!(Pin::new(io).poll_write_vectored(context, &parts[..=count]))?))
    }

    fn advance(&mut self, mut written: usize) {
        while written > 0 {
            let until = self.large.front().map_or(self.text.len(), |(before, _)| *before);
            let text = written.min(until - self.sent);
            self.sent += text;
            written -= text;
            // Where the text is not sent up to one, nothing else was written.
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

    /// Everything is sent: the memory is for whoever writes next.
    fn rest(&mut self) {
        if self.text.capacity() == 0 {
            return;
        }
        self.text.clear();
        self.sent = 0;
        if self.text.capacity() <= KEPT {
            SPARE.set(mem::take(&mut self.text));
        } else {
            self.text = Vec::new();
        }
    }

    /// Where the other side takes little at a time, what it has taken is not kept.
    fn forget_sent(&mut self) {
        if self.sent > self.text.len() / 2 {
            self.text.drain(..self.sent);
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

    /// Takes so many bytes at a time, and then nothing for once.
    struct Slow {
        taken: Vec<u8>,
        sizes: VecDeque<usize>,
    }

    impl AsyncWrite for Slow {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
            let Some(size) = self.sizes.pop_front().filter(|size| *size > 0) else { return Poll::Pending };
            let size = size.min(data.len());
            self.taken.extend_from_slice(&data[..size]);
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
            self.taken.extend_from_slice(&all[..size]);
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
        fn what_goes_in_comes_out_in_order_however_little_is_taken_at_once(
            pieces in prop::collection::vec((0..3 * LARGE, any::<bool>()), 1..40),
            sizes in prop::collection::vec(0..4 * LARGE, 1..60),
        ) {
            let (mut outbox, mut expected) = (Outbox::default(), Vec::new());
            let mut slow = Slow { taken: Vec::new(), sizes: sizes.into() };
            let mut context = Context::from_waker(Waker::noop());
            for (n, (size, flushes)) in pieces.into_iter().enumerate() {
                let data = vec![n as u8; size];
                outbox.text().extend_from_slice(&[0xff, n as u8]);
                outbox.follow(data.clone().into());
                expected.extend_from_slice(&[0xff, n as u8]);
                expected.extend_from_slice(&data);
                if flushes {
                    let _ = outbox.poll_flush(&mut slow, &mut context).map(Result::unwrap);
                }
                prop_assert_eq!(outbox.len(), expected.len() - slow.taken.len());
            }
            while outbox.poll_flush(&mut slow, &mut context).map(Result::unwrap).is_pending() {
                slow.sizes.push_back(LARGE);
            }
            prop_assert!(outbox.is_empty() && slow.taken == expected);
        }
    }
}
