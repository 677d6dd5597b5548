use std::{
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::{
    Framing, RequestGuard,
    request_memory::{MIN_CLAIM, PendingBody, WaitingClaim},
};

/// Time that a handler may wait for a body before the body must claim memory.
const CLAIM_DELAY: Duration = Duration::from_secs(1);

/// Why a body failed.
#[derive(Debug)]
pub enum BodyError {
    /// The body was not complete within this time.
    Timeout(Duration),
    /// No memory was available for the body, or it was revoked for another request.
    NoMemory,
    /// More bytes follow the single message of a call.
    ExtraMessage,
    /// The connection failed, or its protocol was violated.
    Transport(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout(limit) => {
                write!(
                    f,
                    "the request was not complete within {limit:?}; send its message and end its stream"
                )
            }
            Self::NoMemory => f.write_str("too many large requests are in flight; retry later"),
            Self::ExtraMessage => {
                f.write_str("the call has more than one message; send one and end the stream")
            }
            Self::Transport(error) => error.fmt(f),
        }
    }
}

impl Error for BodyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Transport(error) => Some(&**error),
            _ => None,
        }
    }
}

pin_project! {
    /// The body of a request, limited in time and memory.
    #[derive(Debug)]
    pub struct RequestBody<B> {
        #[pin]
        inner: B,
        guard: RequestGuard,
        framing: Framing,
        began: Instant,
        // A frame that was read, but is not passed on before its memory is claimed.
        held: Option<(Frame<Bytes>, usize)>,
        waiting: Option<WaitingClaim>,
        timer: Option<Pin<Box<Sleep>>>,
        // Counted as pending from the headers on, since the stream and its handler take memory from then on.
        pending: Option<PendingBody>,
        has_received: bool,
        has_claimed: bool,
        is_refused: bool,
    }
}

impl<B: Body> RequestBody<B> {
    pub(crate) fn new(inner: B, guard: RequestGuard, framing: Framing) -> Self {
        let (mut pending, mut has_claimed, mut is_refused) = (None, false, false);
        if !inner.is_end_stream() {
            let (counted, are_many) = guard.memory().pending_body();
            pending = Some(counted);
            if are_many {
                let claim = guard.memory().claim_wait(guard.connection().holder(), MIN_CLAIM);
                (has_claimed, is_refused) = (claim.is_some(), claim.is_none());
                claim.into_iter().for_each(|claim| guard.hold(claim));
            }
        }
        let (began, held) = (Instant::now(), None);
        let (waiting, timer, has_received) = (None, None, false);
        Self {
            inner,
            guard,
            framing,
            began,
            held,
            waiting,
            timer,
            pending,
            has_received,
            has_claimed,
            is_refused,
        }
    }

    /// Called when nothing can be passed on: fails the body after a timeout.
    fn poll_timeout(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<BodyError> {
        let this = self.project();
        let began = *this.began;
        if this.timer.is_none() {
            *this.timer = Some(Box::pin(sleep_until(began + CLAIM_DELAY)));
        }
        let limit = this.guard.connection().shared().limits().body;
        loop {
            // The timer was set above.
            let Some(timer) = this.timer.as_mut() else { return Poll::Pending };
            ready!(timer.as_mut().poll(cx));
            if began.elapsed() >= limit {
                this.guard.set_timed_out();
                return Poll::Ready(BodyError::Timeout(limit));
            }
            timer.as_mut().reset(began + limit);
            if !*this.has_claimed && this.waiting.is_none() {
                let holder = this.guard.connection().holder();
                let claimed = this.guard.memory().poll_claim(holder, MIN_CLAIM, &mut None, cx);
                if let Poll::Ready(Ok(claim)) = claimed {
                    this.guard.hold(claim);
                    *this.has_claimed = true;
                }
                if !*this.has_claimed || this.guard.poll_revoked(cx) {
                    this.guard.set_out_of_memory(*this.has_received);
                    return Poll::Ready(BodyError::NoMemory);
                }
            }
        }
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.as_mut().project();
        if *this.is_refused || this.guard.poll_revoked(cx) {
            this.guard.set_out_of_memory(*this.has_received);
            return Poll::Ready(Some(Err(BodyError::NoMemory)));
        }
        if this.held.is_none() {
            match this.inner.poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    *this.has_received = true;
                    match this.framing.read(frame.data_ref().map_or(&[], |data| data)) {
                        Some(claimed) => *this.held = Some((frame, claimed)),
                        None => return Poll::Ready(Some(Err(BodyError::ExtraMessage))),
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Some(Err(BodyError::Transport(error.into()))));
                }
                Poll::Ready(None) => {
                    this.guard.complete();
                    *this.pending = None;
                    return Poll::Ready(None);
                }
                Poll::Pending => return self.poll_timeout(cx).map(|error| Some(Err(error))),
            }
        }
        let this = self.as_mut().project();
        if let Some((_, bytes @ 1..)) = this.held {
            let holder = this.guard.connection().holder();
            match this.guard.memory().poll_claim(holder, *bytes, this.waiting, cx) {
                Poll::Ready(Ok(claim)) => {
                    this.guard.hold(claim);
                    *bytes = 0;
                    *this.has_claimed = true;
                }
                Poll::Ready(Err(_)) => {
                    this.guard.set_out_of_memory(true);
                    return Poll::Ready(Some(Err(BodyError::NoMemory)));
                }
                Poll::Pending => return self.poll_timeout(cx).map(|error| Some(Err(error))),
            }
        }
        Poll::Ready(this.held.take().map(|(frame, _)| Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.held.is_some() { SizeHint::default() } else { self.inner.size_hint() }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use futures_util::stream::{iter, pending};
    use http::Request;
    use http_body_util::{BodyExt as _, StreamBody};
    use tokio::io::duplex;

    use super::*;
    use crate::{Acceptor, Limits, Memory, guard_request};

    /// Reads a body that yields these pieces and then stays pending.
    async fn read(framing: Framing, pieces: &[&'static [u8]]) -> (Vec<usize>, BodyError, Duration) {
        let acceptor = Acceptor::new("test", Limits::calls(), Memory::default());
        let stream = acceptor.accept(|_| Poll::Ready(Ok(duplex(1).0))).await;
        let frames = pieces.iter().map(|piece| Ok::<_, BodyError>(Frame::data(Bytes::from_static(piece))));
        let body = StreamBody::new(iter(frames.collect::<Vec<_>>()).chain(pending()));
        let (request, _guard) = guard_request(stream.connection().unwrap(), Request::new(body), framing);
        let (mut body, mut came, began) = (request.into_body(), Vec::new(), Instant::now());
        loop {
            match body.frame().await.unwrap() {
                Ok(frame) => came.push(frame.data_ref().unwrap().len()),
                Err(error) => return (came, error, began.elapsed()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn incomplete_request_message_times_out() {
        let (came, error, after) = read(Framing::message(100), &[&[0, 0, 0], &[0, 9, 1, 2]]).await;
        assert_eq!(came, [3, 4]);
        assert!(matches!(error, BodyError::Timeout(_)), "{error}");
        assert_eq!(after.as_secs(), 30);
        let (came, error, _) = read(Framing::message(100), &[]).await;
        assert!(came.is_empty() && matches!(error, BodyError::Timeout(_)), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn second_message_of_unary_request_is_refused_immediately() {
        let (came, error, after) =
            read(Framing::message(100), &[&[0, 0, 0, 0, 1, 7], &[0, 0, 0, 0, 0]]).await;
        assert_eq!((came, after), (vec![6], Duration::ZERO));
        assert!(matches!(error, BodyError::ExtraMessage), "{error}");
    }
}
