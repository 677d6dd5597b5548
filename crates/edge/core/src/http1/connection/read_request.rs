//! Waits for the next request.

use std::{
    future::poll_fn,
    mem,
    task::{Context, Poll},
};

use fairmesh_http::h1::{REMAINDER_WAIT, RequestError};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

#[cfg(test)]
use crate::http1::connection::Mutation;
use crate::{
    http1::{
        connection::{Connection, NextRequest, ReadState},
        connection_end::ConnectionError,
        request_offload::Offload,
    },
    shutdown::Shutdown,
};

impl<R, W, O> Connection<R, W, O>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    O: Offload,
{
    /// Waits for the headers of the next request. If a nearly complete request may take the fast path, waits
    /// briefly for the rest of it.
    pub(crate) async fn next_request(&mut self, has_fast_path: bool, shutdown: &Shutdown) -> NextRequest {
        if self.unparsed {
            self.deadline = Instant::now() + self.idle_timeout;
            self.rest_deadline = None;
        }
        let begun = poll_fn(|context| self.poll_next_request(has_fast_path, shutdown, context)).await;
        begun.unwrap_or_else(NextRequest::Failed)
    }

    fn poll_next_request(
        &mut self,
        has_fast_path: bool,
        shutdown: &Shutdown,
        context: &mut Context<'_>,
    ) -> Poll<Result<NextRequest, ConnectionError>> {
        let rest_is_late = has_fast_path && self.rest_timed_out(context);
        loop {
            if self.unparsed && self.poll_offloaded(context).is_pending() {
                break;
            }
            let ReadState::Owned(read_side) = &mut self.source else {
                return Poll::Ready(Ok(NextRequest::Idle));
            };
            let waits = has_fast_path && !rest_is_late && self.unparsed && read_side.is_nearly_complete();
            if !read_side.input.is_empty() && !waits && mem::replace(&mut self.unparsed, false) {
                read_side.started();
                return Poll::Ready(Ok(NextRequest::Started));
            }
            let read = if self.unparsed { Ok(None) } else { self.requests.read(&mut read_side.input) };
            match read {
                Ok(Some(received)) => {
                    read_side.read_short_body(&received.body, context);
                    #[cfg(test)]
                    if self.mutation == Some(Mutation::OneMessageARead)
                        && let Some(left) = received.body.left()
                    {
                        read_side.input.truncate(left as usize);
                    }
                    return Poll::Ready(Ok(NextRequest::Request(Box::new(received))));
                }
                Ok(None) => {}
                Err(RequestError::Http2) => return Poll::Ready(Ok(NextRequest::Http2)),
                Err(RequestError::Refused { status, why }) => {
                    return Poll::Ready(Ok(NextRequest::Refused(status, why)));
                }
            }
            match read_side.poll_head(context)? {
                Poll::Ready(0) if read_side.input.is_empty() => return Poll::Ready(Ok(NextRequest::Idle)),
                Poll::Ready(0) => return Poll::Ready(Err(ConnectionError::UnexpectedEof)),
                Poll::Ready(_) => {}
                Poll::Pending if waits && self.rest_deadline.is_none() => {
                    self.rest_deadline = Some(Instant::now() + REMAINDER_WAIT);
                    return self.poll_next_request(has_fast_path, shutdown, context);
                }
                Poll::Pending => break,
            }
        }
        self.poll_idle(shutdown, context)
    }

    /// Ends a connection whose client has been idle for too long.
    fn poll_idle(
        &mut self,
        shutdown: &Shutdown,
        context: &mut Context<'_>,
    ) -> Poll<Result<NextRequest, ConnectionError>> {
        let is_empty = self.input().is_empty();
        if is_empty && shutdown.is_idle_grace_over() && self.may_close() {
            return Poll::Ready(Ok(NextRequest::Idle));
        }
        let begun = !is_empty || !self.requests.has_begun();
        while self.timed_out(context) {
            match begun {
                // The timer is polled again, for the moved deadline.
                false if self.is_used_past_the_proxy() => {}
                false if self.may_close() => return Poll::Ready(Ok(NextRequest::Idle)),
                false => {}
                true => return Poll::Ready(Err(ConnectionError::Timeout)),
            }
        }
        Poll::Pending
    }

    /// Whether the client has exceeded its deadline.
    pub(crate) fn timed_out(&mut self, context: &mut Context<'_>) -> bool {
        let due = self.deadline;
        self.timer_elapsed(due, context)
    }

    /// Whether the wait for the rest of a nearly complete request is over.
    pub(crate) fn rest_timed_out(&mut self, context: &mut Context<'_>) -> bool {
        let Some(by) = self.rest_deadline else { return false };
        if self.timer.deadline() > by {
            self.timer.as_mut().reset(by);
        }
        self.timer_elapsed(by, context)
    }

    /// Whether `due` has passed. The timer may fire earlier.
    pub(crate) fn timer_elapsed(&mut self, due: Instant, context: &mut Context<'_>) -> bool {
        while self.timer.as_mut().poll(context).is_ready() {
            if due <= Instant::now() {
                return true;
            }
            self.timer.as_mut().reset(due);
        }
        false
    }
}
