//! A connection that is read and written once in a turn of its event loop.
//!
//! h2 writes each body of 256 bytes or more by itself, without a copy: right for large ones, but a system call, a segment and a
//! wake of the other end for each of the small ones that most calls have. So what is written is kept while the connection is
//! polled and goes out when it has been, in one piece. Rejected: letting h2 hold back its flush, which it has no setting for.

mod ahead;

use std::{
    cell::Cell,
    fmt, io,
    io::IoSlice,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::ahead::Ahead;

/// The most that is kept, in bytes: what the kernel takes as one piece.
const ROOM: usize = 64 * 1024;
/// What is not worth a copy, in bytes.
const LARGE: usize = 16 * 1024;
/// Slices of one write.
const SLICES: usize = 16;

thread_local! {
    /// Lent to the connection that is polled: those that wait have nothing to keep, and so hold no memory.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A connection that keeps what is written until its [`Outlet`] lets it out.
pub struct Gathered<I>(Arc<Mutex<Kept<I>>>);

/// Lets out what was written.
pub struct Outlet<I>(Arc<Mutex<Kept<I>>>);

struct Kept<I> {
    ahead: Ahead<I>,
    bytes: Vec<u8>,
    /// How many of the bytes have gone out.
    gone: usize,
    /// Something may have been written that is not flushed.
    unflushed: bool,
    /// What the connection is yet to be told.
    failed: Option<io::Error>,
    /// Nobody lets out what is kept any more.
    direct: bool,
}

/// Polls a connection and lets out what it has written.
#[must_use = "futures do nothing unless polled"]
pub struct Driven<'a, F, I> {
    connection: Pin<&'a mut F>,
    outlet: &'a Outlet<I>,
}

/// A connection for one who writes in small pieces, and what its driver polls it by.
pub fn gathered<I>(io: I) -> (Gathered<I>, Outlet<I>) {
    let kept = Kept {
        ahead: Ahead::new(io),
        bytes: Vec::new(),
        gone: 0,
        unflushed: false,
        failed: None,
        direct: false,
    };
    let kept = Arc::new(Mutex::new(kept));
    (Gathered(Arc::clone(&kept)), Outlet(kept))
}

impl<I> Outlet<I> {
    /// Polls what reads and writes the connection. It must not be polled otherwise until it is done; from then on
    /// everything is written at once.
    pub fn drive<'a, F>(&'a self, connection: Pin<&'a mut F>) -> Driven<'a, F, I> {
        Driven { connection, outlet: self }
    }
}

impl<F, I> Future for Driven<'_, F, I>
where
    F: Future,
    I: AsyncWrite + Unpin,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        let polled = this.connection.as_mut().poll(context);
        let mut kept = lock(&this.outlet.0);
        kept.direct |= polled.is_ready();
        kept.let_out(context);
        polled
    }
}

fn lock<I>(kept: &Mutex<Kept<I>>) -> MutexGuard<'_, Kept<I>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<I: AsyncWrite + Unpin> Kept<I> {
    fn let_out(&mut self, context: &mut Context<'_>) {
        if self.failed.is_none()
            && self.unflushed
            && let Poll::Ready(Err(error)) = self.poll_out(context)
        {
            self.failed = Some(error);
            // So that the connection hears of it.
            context.waker().wake_by_ref();
        }
    }

    fn poll_out(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.gone < self.bytes.len() {
            ready!(self.poll_write_with(context, &[]))?;
        }
        ready!(Pin::new(&mut self.ahead.io).poll_flush(context))?;
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }

    fn poll_take(&mut self, context: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        self.unflushed = true;
        let size = parts.iter().map(|part| part.len()).sum::<usize>();
        if !self.direct && size < LARGE && self.bytes.len() + size <= ROOM {
            self.keep(parts);
            return Poll::Ready(Ok(size));
        }
        while self.gone < self.bytes.len() {
            let beyond = ready!(self.poll_write_with(context, parts))?;
            if beyond > 0 {
                return Poll::Ready(Ok(beyond));
            }
        }
        Pin::new(&mut self.ahead.io).poll_write_vectored(context, parts)
    }

    fn keep(&mut self, parts: &[IoSlice<'_>]) {
        if self.bytes.capacity() == 0 {
            self.bytes = SPARE.take();
            self.bytes.reserve(ROOM);
        }
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
    }

    /// Writes what is kept, and these after it; how much of these was written.
    fn poll_write_with(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let waiting = &self.bytes[self.gone..];
        let mut slices = [IoSlice::new(&[]); SLICES];
        slices[0] = IoSlice::new(waiting);
        let count = parts.len().min(SLICES - 1);
        slices[1..=count].copy_from_slice(&parts[..count]);
        let written = match parts.is_empty() {
            true => ready!(Pin::new(&mut self.ahead.io).poll_write(context, waiting))?,
            false => ready!(Pin::new(&mut self.ahead.io).poll_write_vectored(context, &slices[..=count]))?,
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        let own = written.min(waiting.len());
        self.gone += own;
        if self.gone == self.bytes.len() {
            self.gone = 0;
            self.bytes.clear();
            SPARE.set(std::mem::take(&mut self.bytes));
        }
        Poll::Ready(Ok(written - own))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Gathered<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut kept = lock(&self.0);
        // Whoever goes on with the connection reads as much as there is room for.
        if kept.direct && kept.ahead.is_empty() {
            return Pin::new(&mut kept.ahead.io).poll_read(context, buffer);
        }
        kept.ahead.poll_read(context, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Gathered<I> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        lock(&self.0).poll_take(context, &[IoSlice::new(data)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        lock(&self.0).poll_take(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Done at once, unless everything is written at once: the outlet does it.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut kept = lock(&self.0);
        if let Some(error) = kept.failed.take() {
            return Poll::Ready(Err(error));
        }
        kept.unflushed = true;
        if kept.direct { kept.poll_out(context) } else { Poll::Ready(Ok(())) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut kept = lock(&self.0);
        ready!(kept.poll_out(context))?;
        Pin::new(&mut kept.ahead.io).poll_shutdown(context)
    }
}

impl<I> fmt::Debug for Gathered<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gathered").finish_non_exhaustive()
    }
}

impl<I> fmt::Debug for Outlet<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet").finish_non_exhaustive()
    }
}

impl<F, I> fmt::Debug for Driven<'_, F, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driven").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
