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
        // Looked for before each request: a predecessor may have had the maps when the connection was accepted.
        if let Some(link) = self.unlinked.as_mut().and_then(|caller| caller.link()) {
            (self.kernel, self.unlinked) = (Some(link), None);
        }
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
        kernel.poll_none_in_flight(context)
    }

    /// Lets the kernel send the next request, if the client has sent none to the proxy: the response is about to be sent, of this length
    /// if it is known.
    pub(crate) fn note_served(&mut self, length: Option<u64>) {
        if let (Some(kernel), ReadState::Owned(read_side)) = (&mut self.kernel, &self.source)
            && read_side.input.is_empty()
        {
            kernel.set_served(read_side.read_bytes, length);
        }
    }

    /// The write buffer is about to be sent, or as much of it as this.
    pub(crate) fn note_sent(&mut self, bytes: Option<usize>) {
        match (&mut self.kernel, &mut self.unlinked) {
            (Some(kernel), _) => kernel.note_sent(bytes),
            (None, Some(caller)) => caller.note_sent(bytes),
            (None, None) => {}
        }
    }

    /// Whether the connection is idle for the proxy alone, since the kernel has sent requests and their responses; then the deadline is
    /// moved.
    pub(crate) fn is_used_past_the_proxy(&mut self) -> bool {
        let last = self.kernel.as_ref().and_then(|kernel| kernel.last_completed());
        let idle_at = last.map(|last| last + self.idle_timeout).filter(|idle_at| *idle_at > Instant::now());
        if let Some(idle_at) = idle_at {
            self.move_deadline(idle_at);
        }
        idle_at.is_some()
    }

    /// Whether the connection may be closed although the client has not; else the deadline is moved.
    pub(crate) fn may_close(&mut self) -> bool {
        let may_close = self.kernel.as_mut().is_none_or(|kernel| kernel.may_close());
        if !may_close {
            self.move_deadline(Instant::now() + WITHDRAWAL);
        }
        may_close
    }

    fn move_deadline(&mut self, to: Instant) {
        self.deadline = to;
        self.timer.as_mut().reset(to);
    }
}
