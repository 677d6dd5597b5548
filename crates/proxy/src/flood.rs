//! Frames of HTTP/2 that ask for nothing (CVE-2019-9512, -9515 and the like).
//!
//! A ping, a setting or an empty piece of a body costs who sends it next to nothing, and has to be looked at and sometimes
//! answered here. No program needs many: each is paid for, out of an allowance that comes back with time and with each frame
//! that carries something. h2 answers one before it reads the next, so that they never pile up, but it does so for ever; and
//! it shows nobody what it reads, so that frames are told apart on the connection beneath it.

mod scan;

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use scan::{Frame, Scan};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// What a connection begins with, and the most that it ever has.
const ALLOWANCE: u32 = 10_000;
/// What comes back in a second: far more than programs need that ask whether the other side is there.
const REFILL: u32 = 100;
/// What a frame with a head or a body in it brings: programs measure their way, and make room for more, with every few
/// that they get.
const WORTH: u32 = 10;

/// Rings when a connection has sent too many.
#[derive(Debug, Default)]
pub(crate) struct Flood(CancellationToken);

impl Flood {
    /// Waits until there were too many.
    pub(crate) async fn enough(&self) {
        self.0.cancelled().await;
    }
}

/// A connection of a program whose frames are counted as they are read and written.
#[derive(Debug)]
pub(crate) struct Counted<I> {
    io: I,
    came: Scan,
    went: Scan,
    left: Allowance,
    flood: Arc<Flood>,
}

#[derive(Debug)]
struct Allowance {
    left: u32,
    refilled: Instant,
}

impl Allowance {
    fn earn(&mut self, worth: u32) {
        self.left = (self.left + worth).min(ALLOWANCE);
    }

    /// Whether there was anything left to pay with. The clock is read only when there is not.
    fn pay(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.left == 0 {
            let now = now();
            let came_back = now.saturating_duration_since(self.refilled).as_secs_f64() * f64::from(REFILL);
            self.left = (came_back as u32).min(ALLOWANCE);
            if self.left > 0 {
                self.refilled = now;
            }
        }
        let paid = self.left > 0;
        self.left = self.left.saturating_sub(1);
        paid
    }
}

impl<I> Counted<I> {
    pub(crate) fn new(io: I, flood: Arc<Flood>) -> Self {
        let left = Allowance { left: ALLOWANCE, refilled: Instant::now() };
        Self { io, came: Scan::of_client(), went: Scan::of_server(), left, flood }
    }

    fn came(&mut self, bytes: &[u8]) {
        let Self { came, left, flood, .. } = self;
        came.pass(bytes, |frame| match frame {
            Frame::Carries => left.earn(WORTH),
            Frame::AsksNothing if !left.pay(Instant::now) => flood.0.cancel(),
            Frame::AsksNothing => {}
        });
    }

    fn went(&mut self, bytes: &[u8]) {
        let left = &mut self.left;
        self.went.pass(bytes, |frame| match frame {
            Frame::Carries => left.earn(WORTH),
            Frame::AsksNothing => {}
        });
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Counted<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(context, buffer);
        self.came(&buffer.filled()[before..]);
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Counted<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(context, data);
        if let Poll::Ready(Ok(size)) = polled {
            self.went(&data[..size]);
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(context, parts);
        if let Poll::Ready(Ok(mut size)) = polled {
            for part in parts {
                let taken = size.min(part.len());
                self.went(&part[..taken]);
                size -= taken;
            }
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_allowance_comes_back_with_time_and_with_what_is_carried() {
        let begun = Instant::now();
        let mut left = Allowance { left: ALLOWANCE, refilled: begun };
        let mut spend = |at: Duration| (0..).take_while(|_| left.pay(|| begun + at)).count() as u32;
        assert_eq!(spend(Duration::ZERO), ALLOWANCE);
        assert_eq!(spend(Duration::from_secs(2)), 2 * REFILL);
        assert_eq!(spend(Duration::from_secs(2)), 0);
        assert_eq!(spend(Duration::from_secs(3600)), ALLOWANCE);
        left.earn(WORTH);
        assert_eq!((0..).take_while(|_| left.pay(|| begun)).count() as u32, WORTH);
        (0..ALLOWANCE).for_each(|_| left.earn(WORTH));
        assert_eq!(left.left, ALLOWANCE);
    }
}
