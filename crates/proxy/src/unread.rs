//! What is left of a request over HTTP/2 that was answered before it was read to its end.
//!
//! Dropped at once, its stream would be reset while its program is still sending, and some programs then take the answer for
//! lost, whatever RFC 9113 8.1 says of a reset without an error; curl is one, and may do so for three bytes. So what comes soon is read and
//! thrown away, as it is over HTTP/1.1, and what does not come soon, or is much, is reset.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::{runtime::Handle, time::timeout};

/// How long what is left may take, and how many bytes it may be: less than a window.
const PATIENCE: Duration = Duration::from_secs(1);
const MOST: usize = 32 * 1024;

/// The body of a request, which is heard out when it is dropped early.
#[derive(Debug)]
pub(crate) struct Unread(State);

#[derive(Debug)]
enum State {
    /// Of HTTP/2.
    HeardOut(Incoming),
    /// Whatever becomes of it, somebody else sees to it.
    Plain(Incoming),
    Over,
}

impl Unread {
    /// Of a request of HTTP/2, or of another.
    pub(crate) fn new(body: Incoming, is_http2: bool) -> Self {
        Self(if is_http2 { State::HeardOut(body) } else { State::Plain(body) })
    }

    fn body(&mut self) -> Option<&mut Incoming> {
        match &mut self.0 {
            State::HeardOut(body) | State::Plain(body) => Some(body),
            State::Over => None,
        }
    }
}

impl Body for Unread {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.body() {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            State::HeardOut(body) | State::Plain(body) => body.is_end_stream(),
            State::Over => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            State::HeardOut(body) | State::Plain(body) => body.size_hint(),
            State::Over => SizeHint::with_exact(0),
        }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let State::HeardOut(body) = mem::replace(&mut self.0, State::Over) else { return };
        // Bounded by the streams that a connection may have.
        if !body.is_end_stream()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                let _ = timeout(PATIENCE, hear_out(body)).await;
            });
        }
    }
}

async fn hear_out(mut body: Incoming) {
    let mut heard = 0;
    while heard <= MOST {
        match std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            Some(Ok(frame)) => heard += frame.data_ref().map_or(0, Bytes::len),
            _ => return,
        }
    }
}
