//! Requests of the client that the kernel has sent: they are handled in order with those that the proxy reads.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

use crate::http1::connection::{Connection, ReadState};

/// How long an idle connection stays open after the kernel was asked to send no request of it.
const WITHDRAWAL: Duration = Duration::from_millis(10);

impl<R, W> Connection<R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    /// Puts a request that the kernel sent before the bytes read; pending while the kernel has sent one whose bytes are not here,
    /// before which none may be parsed.
    pub(crate) fn poll_kernel_request(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (Some(kernel), ReadState::Owned(read_side)) = (&mut self.kernel, &mut self.source) else {
            return Poll::Ready(());
        };
        if let Poll::Ready(request) = kernel.poll_request(context) {
            read_side.prepend(&request);
            return Poll::Ready(());
        }
        if read_side.input.is_empty() {
            kernel.note_idle(read_side.read_bytes);
            return Poll::Ready(());
        }
        if kernel.is_in_flight() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Lets the kernel send the next request, if the client has sent none to the proxy: the response is about to be sent.
    pub(crate) fn note_served(&mut self) {
        if let (Some(kernel), ReadState::Owned(read_side)) = (&mut self.kernel, &self.source)
            && read_side.input.is_empty()
        {
            kernel.set_served(read_side.read_bytes);
        }
    }

    /// Whether the connection may be closed although the client has not; else the deadline is moved.
    pub(crate) fn may_close(&mut self) -> bool {
        let may_close = self.kernel.as_mut().is_none_or(|kernel| kernel.may_close());
        if !may_close {
            self.deadline = Instant::now() + WITHDRAWAL;
            self.timer.as_mut().reset(self.deadline);
        }
        may_close
    }
}
