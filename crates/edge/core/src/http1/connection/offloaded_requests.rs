//! Requests that another sender took from the client's connection. The proxy handles returned requests in
//! order with those it reads.

use std::{
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

use crate::http1::{
    connection::{Connection, ReadState},
    request_offload::Offload,
};

/// Time for which an idle connection stays open after the sender was asked to stop taking its requests.
const WITHDRAWAL: Duration = Duration::from_millis(10);

impl<R, W, O> Connection<R, W, O>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    O: Offload,
{
    /// Inserts a request that the sender returns before the bytes already read. Pending while the sender still holds
    /// a request, since no later request may be parsed before it.
    pub(crate) fn poll_offloaded(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let (Some(offload), ReadState::Owned(read_side)) = (&mut self.offload, &mut self.source) {
            let has_input = !read_side.input.is_empty();
            if let Some(request) = ready!(offload.poll_request(read_side.read_bytes, has_input, context)) {
                read_side.prepend(&request);
            }
        }
        Poll::Ready(())
    }

    /// Allows the sender to take the next request, unless the proxy has already read bytes of it. The
    /// response, of this length if known, is about to be sent.
    pub(crate) fn note_served(&mut self, length: Option<u64>) {
        if let (Some(offload), ReadState::Owned(read_side)) = (&mut self.offload, &self.source)
            && read_side.input.is_empty()
        {
            offload.note_served(read_side.read_bytes, length);
        }
    }

    /// Notes that the write buffer, or the first `bytes` bytes of it, is about to be sent.
    pub(crate) fn note_sent(&mut self, bytes: Option<usize>) {
        if let Some(offload) = &mut self.offload {
            offload.note_sent(bytes);
        }
    }

    /// Whether the connection only seems idle, because the sender has sent requests and responses without the proxy.
    /// If so, moves the idle deadline.
    pub(crate) fn is_used_past_the_proxy(&mut self) -> bool {
        let last = self.offload.as_ref().and_then(Offload::last_completed);
        let idle_at = last.map(|last| last + self.idle_timeout).filter(|idle_at| *idle_at > Instant::now());
        if let Some(idle_at) = idle_at {
            self.move_deadline(idle_at);
        }
        idle_at.is_some()
    }

    /// Whether the proxy may close the idle connection. If not, moves the idle deadline.
    pub(crate) fn may_close(&mut self) -> bool {
        let may_close = self.offload.as_mut().is_none_or(Offload::may_close);
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
