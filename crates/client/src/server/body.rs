//! A response body that keeps its call counted until it is complete, and adds the load report to gRPC trailers.

use std::{
    future::Future as _,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::Sleep;

use super::{load::CallGuard, report};
use crate::headers::WRONG_SHARD;

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
        grpc: bool,
        // Until when the call counts.
        guard: Option<CallGuard>,
        // Boxed, since only answers that make their callers wait need one.
        patience: Option<Pin<Box<Sleep>>>,
    }
}

impl<B> ServerBody<B> {
    /// The service's own answer.
    pub(super) fn of(inner: B, grpc: bool, guard: Option<CallGuard>) -> Self {
        Self { inner: Some(inner), text: None, grpc, guard, patience: None }
    }

    /// An answer of the layer.
    pub(super) fn text(text: impl Into<Bytes>) -> Self {
        let text = Some(text.into()).filter(|text| !text.is_empty());
        Self { inner: None, text, grpc: false, guard: None, patience: None }
    }
}

impl<B: Body<Data = Bytes>> Body for ServerBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let Some(inner) = this.inner.as_pin_mut() else {
            return Poll::Ready(this.text.take().map(|text| Ok(Frame::data(text))));
        };
        let Poll::Ready(frame) = inner.poll_frame(cx) else {
            if let Some(guard) = this.guard.as_mut().filter(|guard| !guard.is_stream()) {
                let patience =
                    this.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(STREAM_AFTER)));
                ready!(patience.as_mut().poll(cx));
                guard.becomes_stream();
            }
            return Poll::Pending;
        };
        let frame = match frame {
            Some(Ok(frame)) if frame.is_trailers() => {
                Some(Ok(report_in(frame, *this.grpc, this.guard.take())))
            }
            None | Some(Err(_)) => {
                *this.guard = None;
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
