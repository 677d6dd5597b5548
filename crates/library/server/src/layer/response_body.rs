//! Response bodies that keep their call counted until they are complete, and add the load report to gRPC trailers.

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

use super::{Call, refusal::Refusal, server_load::CallGuard};
use crate::load_report;
use fairmesh_headers::{CallerProtocol, WRONG_SHARD};
use fairmesh_signals::ServedCall;

/// Time after the headers from which on a response counts as a stream. Unary responses complete at the first poll, so
/// this only determines how long a new stream counts as a call.
const STREAM_AFTER: Duration = Duration::from_secs(1);

pin_project! {
    /// Response body of a service wrapped by the server layer.
    #[derive(Debug)]
    pub struct ServerBody<B> {
        #[pin]
        inner: Option<B>,
        // Text of a response made by the layer.
        text: Option<Bytes>,
        call: Call,
        // Boxed, since only pending responses need a timer.
        timer: Option<Pin<Box<Sleep>>>,
    }
}

impl<B> ServerBody<B> {
    /// Wraps the body of the service's response.
    pub(crate) fn of(inner: B, mut call: Call) -> Self {
        // HTTP clients enforce the deadline of bodies themselves, but gRPC has a status for it.
        call.deadline = call.deadline.filter(|_| call.caller.is_grpc());
        Self { inner: Some(inner), text: None, call, timer: None }
    }

    /// Creates the body of a response made by the layer.
    pub(crate) fn text(text: impl Into<Bytes>) -> Self {
        let text = Some(text.into()).filter(|text| !text.is_empty());
        Self {
            inner: None,
            text,
            call: Call {
                guard: None,
                caller: CallerProtocol::Http,
                deadline: None,
                served: ServedCall::NONE,
                counted: None,
            },
            timer: None,
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
        // Checked first, so that a body that always has a message ready is cut off at its deadline too.
        let frame = match this.call.has_expired() {
            true => Poll::Pending,
            false => {
                let _entered = this.call.served.enter();
                inner.poll_frame(cx)
            }
        };
        let Poll::Ready(frame) = frame else {
            if !this.call.is_past_deadline(this.timer, cx) {
                return Poll::Pending;
            }
            this.inner.set(None);
            if let Some(counted) = &mut this.call.counted {
                counted.end(None);
            }
            let load = this.call.guard.take().map(CallGuard::end);
            let trailers = load.map(|load| Ok(Frame::trailers(Refusal::Late.trailers(&load))));
            return Poll::Ready(trailers);
        };
        if let Some(counted) = &mut this.call.counted {
            match &frame {
                Some(Ok(frame)) => match frame.trailers_ref() {
                    Some(trailers) => counted.end(Some(trailers)),
                    None => counted.record_bytes(frame.data_ref().map_or(0, Bytes::len)),
                },
                None | Some(Err(_)) => counted.end(None),
            }
        }
        let frame = match frame {
            Some(Ok(frame)) if frame.is_trailers() => {
                Some(Ok(with_load_report(frame, this.call.caller.is_grpc(), this.call.guard.take())))
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
    /// Whether the deadline passed before the call ended.
    fn has_expired(&self) -> bool {
        self.guard.is_some() && self.deadline.is_some_and(|deadline| deadline.left().is_zero())
    }

    /// Whether the deadline has passed while the body is pending. After [`STREAM_AFTER`] the call counts as a stream;
    /// this needs a timer, since a silent body is never polled again.
    fn is_past_deadline(&mut self, timer: &mut Option<Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> bool {
        // A call that has ended is not late.
        let Some(guard) = &mut self.guard else { return false };
        let deadline = self.deadline.map(|deadline| Instant::from_std(deadline.instant()));
        if guard.is_stream() && deadline.is_none() {
            return false;
        }
        let timer = timer.get_or_insert_with(|| {
            let a_stream = Instant::now() + STREAM_AFTER;
            Box::pin(sleep_until(deadline.map_or(a_stream, |deadline| deadline.min(a_stream))))
        });
        while timer.as_mut().poll(cx).is_ready() {
            if deadline.is_some_and(|deadline| timer.deadline() >= deadline) {
                return true;
            }
            guard.becomes_stream();
            let Some(deadline) = deadline else { return false };
            timer.as_mut().reset(deadline);
        }
        false
    }
}

/// Adds the load report to the trailers that end a gRPC call. As in headers, a wrong-shard mark of another server is
/// removed.
fn with_load_report(frame: Frame<Bytes>, grpc: bool, guard: Option<CallGuard>) -> Frame<Bytes> {
    let mut trailers = match frame.into_trailers() {
        Ok(trailers) => trailers,
        Err(frame) => return frame,
    };
    trailers.remove(WRONG_SHARD);
    if let Some(guard) = guard.filter(|_| grpc) {
        guard.learn(&trailers, true);
        load_report::add_binary(&mut trailers, guard.report());
    }
    Frame::trailers(trailers)
}
