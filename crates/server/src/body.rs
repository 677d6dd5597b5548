//! A response body that keeps its call counted until it is complete, and adds the load report to gRPC trailers.

use std::{
    future::Future as _,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};

use super::{layer::Call, load::CallGuard, refusal::Refusal, report};
use fairmesh_headers::{Caller, WRONG_SHARD};

/// A call whose answer has begun and is not complete after this time is a stream. Unary answers are complete with their
/// first poll; the exact value only decides for how long a young stream weighs as a call.
const STREAM_AFTER: Duration = Duration::from_secs(1);

pin_project! {
    /// The body of an answer that went through the server layer.
    #[derive(Debug)]
    pub struct ServerBody<B> {
        #[pin]
        inner: Option<B>,
        // What the layer itself answers with, where it does.
        text: Option<Bytes>,
        call: Call,
        // Boxed, since only answers that make their callers wait need one.
        alarm: Option<Pin<Box<Sleep>>>,
    }
}

impl<B> ServerBody<B> {
    /// The service's own answer.
    pub(super) fn of(inner: B, mut call: Call) -> Self {
        // Whoever reads an answer of HTTP cuts it off by itself; gRPC has a word for it.
        call.deadline = call.deadline.filter(|_| call.caller.is_grpc());
        Self { inner: Some(inner), text: None, call, alarm: None }
    }

    /// An answer of the layer.
    pub(super) fn text(text: impl Into<Bytes>) -> Self {
        let text = Some(text.into()).filter(|text| !text.is_empty());
        Self {
            inner: None,
            text,
            call: Call { guard: None, caller: Caller::Http, deadline: None },
            alarm: None,
        }
    }
}

impl<B: Body<Data = Bytes>> Body for ServerBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        let Some(inner) = this.inner.as_mut().as_pin_mut() else {
            return Poll::Ready(this.text.take().map(|text| Ok(Frame::data(text))));
        };
        // One that always has a message is late as well.
        let frame = if this.call.is_over() { Poll::Pending } else { inner.poll_frame(cx) };
        let Poll::Ready(frame) = frame else {
            if !this.call.is_late(this.alarm, cx) {
                return Poll::Pending;
            }
            this.inner.set(None);
            let load = this.call.guard.take().map(CallGuard::end);
            let trailers = load.map(|load| Ok(Frame::trailers(Refusal::Late.trailers(&load))));
            return Poll::Ready(trailers);
        };
        let frame = match frame {
            Some(Ok(frame)) if frame.is_trailers() => {
                Some(Ok(report_in(frame, this.call.caller.is_grpc(), this.call.guard.take())))
            }
            None | Some(Err(_)) => {
                this.call.guard = None;
                frame
            }
            frame => frame,
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Some(inner) => inner.is_end_stream(),
            None => self.text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.inner, &self.text) {
            (Some(inner), _) => inner.size_hint(),
            (None, Some(text)) => SizeHint::with_exact(text.len() as u64),
            (None, None) => SizeHint::with_exact(0),
        }
    }
}

impl Call {
    /// Whether its deadline has passed before it has ended.
    fn is_over(&self) -> bool {
        self.guard.is_some() && self.deadline.is_some_and(|deadline| deadline.0 <= Instant::now())
    }

    /// Whether its deadline has passed while the body keeps its reader waiting. From a while on it counts as a stream, by a
    /// timer, since one that stays silent is never read again.
    fn is_late(&mut self, alarm: &mut Option<Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> bool {
        // One that has ended is not late.
        let Some(guard) = &mut self.guard else { return false };
        let deadline = self.deadline.map(|deadline| deadline.0);
        if guard.is_stream() && deadline.is_none() {
            return false;
        }
        let alarm = alarm.get_or_insert_with(|| {
            let a_stream = Instant::now() + STREAM_AFTER;
            Box::pin(sleep_until(deadline.map_or(a_stream, |deadline| deadline.min(a_stream))))
        });
        while alarm.as_mut().poll(cx).is_ready() {
            if deadline.is_some_and(|deadline| alarm.deadline() >= deadline) {
                return true;
            }
            guard.becomes_stream();
            let Some(deadline) = deadline else { return false };
            alarm.as_mut().reset(deadline);
        }
        false
    }
}

/// Trailers end the call; those of a gRPC call also say what is left to do here. As in the head, that some other server
/// does not hold a shard is nothing to say of this one.
fn report_in(frame: Frame<Bytes>, grpc: bool, guard: Option<CallGuard>) -> Frame<Bytes> {
    let mut trailers = match frame.into_trailers() {
        Ok(trailers) => trailers,
        Err(frame) => return frame,
    };
    trailers.remove(WRONG_SHARD);
    if let Some(guard) = guard.filter(|_| grpc) {
        report::add_binary(&mut trailers, guard.report());
    }
    Frame::trailers(trailers)
}
