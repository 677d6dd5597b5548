use std::{
    error::Error,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
#[cfg(feature = "http")]
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::{RequestGuard, unread_responses::MAX_PIECE};

type BoxError = Box<dyn Error + Send + Sync>;

/// The next frame of a body; `None` at its end.
type NextFrame = Option<Result<Frame<Bytes>, BoxError>>;

pin_project! {
    /// The body of a response. Its request is in flight until the body ends. If the listener limits unread responses,
    /// the body's unread bytes are counted.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        inner: Option<B>,
        // Text that replaces the handler's body.
        text: Option<Bytes>,
        counted: Option<CountedBody<B>>,
        guard: Option<RequestGuard>,
    }
}

/// A body whose first frame is produced before the connection polls for it. With a closed HTTP/2 window the
/// connection may never poll, although the source of the frame also takes memory.
#[derive(Debug)]
struct CountedBody<B> {
    inner: Pin<Box<B>>,
    /// The first frame, until it is polled.
    first: Option<NextFrame>,
    /// The part of the last frame that was not yet polled.
    rest: Bytes,
}

impl<B> ResponseBody<B> {
    pub(crate) const fn text(text: &'static str) -> Self {
        let text = Some(Bytes::from_static(text.as_bytes()));
        Self { inner: None, text, counted: None, guard: None }
    }

    /// The response to health checks, 403.
    #[cfg(feature = "http")]
    pub(crate) fn forbidden() -> Response<Self> {
        let mut response = Response::new(Self::text("health checks do not reach the mesh's own ports\n"));
        *response.status_mut() = StatusCode::FORBIDDEN;
        response
    }
}

impl<B> Default for ResponseBody<B> {
    /// An empty body.
    fn default() -> Self {
        Self { inner: None, text: None, counted: None, guard: None }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>>> ResponseBody<B> {
    pub(crate) fn new(inner: B, guard: Option<RequestGuard>, cx: &mut Context<'_>) -> Self {
        match &guard {
            Some(guard) if guard.connection().bounds_responses() => {
                let counted = CountedBody::begin(inner, guard, cx);
                Self { counted: Some(counted), guard: Some(guard.clone()), ..Self::default() }
            }
            _ => Self { inner: Some(inner), guard, ..Self::default() },
        }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>>> CountedBody<B> {
    fn begin(inner: B, guard: &RequestGuard, cx: &mut Context<'_>) -> Self {
        let mut counted = Self { inner: Box::pin(inner), first: None, rest: Bytes::new() };
        counted.first = match counted.poll_inner(guard, cx) {
            Poll::Ready(next) => Some(next),
            Poll::Pending => None,
        };
        counted
    }

    /// Returns the next frame, whose bytes are counted as unread.
    fn poll_inner(&mut self, guard: &RequestGuard, cx: &mut Context<'_>) -> Poll<NextFrame> {
        self.inner.as_mut().poll_frame(cx).map(|next| {
            next.map(|frame| {
                let count = |data| guard.connection().count_unread(data);
                frame.map(|frame| frame.map_data(count)).map_err(Into::into)
            })
        })
    }

    /// Returns the next part of a frame.
    fn poll_frame(&mut self, guard: &RequestGuard, cx: &mut Context<'_>) -> Poll<NextFrame> {
        if self.rest.is_empty() {
            let next = match self.first.take() {
                Some(next) => next,
                None => ready!(self.poll_inner(guard, cx)),
            };
            match next.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(other))) => return Poll::Ready(Some(Ok(other))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        // The connection polls for more only once the peer has room for it, so the peer has read something.
        guard.connection().record_read();
        let piece = self.rest.len().min(MAX_PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        let is_over = match &self.first {
            Some(next) => next.is_none(),
            None => self.inner.is_end_stream(),
        };
        is_over && self.rest.is_empty()
    }

    /// Remaining size: bytes buffered here plus what the inner body has left.
    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().and_then(|next| next.as_ref()?.as_ref().ok()?.data_ref());
        let made = (self.rest.len() + first.map_or(0, Bytes::len)) as u64;
        let (inner, mut hint) = (self.inner.size_hint(), SizeHint::new());
        hint.set_lower(inner.lower() + made);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + made);
        }
        hint
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextFrame> {
        let this = self.project();
        match (this.counted, this.guard, this.inner.as_pin_mut()) {
            (Some(counted), Some(guard), _) => counted.poll_frame(guard, cx),
            (_, _, Some(inner)) => {
                inner.poll_frame(cx).map(|next| next.map(|frame| frame.map_err(Into::into)))
            }
            _ => Poll::Ready(this.text.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match (&self.counted, &self.inner) {
            (Some(counted), _) => counted.is_end_stream(),
            (_, Some(inner)) => inner.is_end_stream(),
            _ => self.text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.counted, &self.inner) {
            (Some(counted), _) => counted.size_hint(),
            (_, Some(inner)) => inner.size_hint(),
            _ => SizeHint::with_exact(self.text.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use http_body_util::{BodyExt as _, Full};
    use tokio::io::duplex;

    use super::*;
    use crate::{Acceptor, Limits, Memory};

    #[tokio::test]
    async fn response_memory_counts_as_unread_from_creation_until_fully_sent() {
        let acceptor = Acceptor::new("test", Limits::calls(), Memory::default());
        let stream = acceptor.accept(|_| Poll::Ready(Ok(duplex(1).0))).await;
        let connection = stream.connection().unwrap();
        let guard = Some(RequestGuard::new(connection));
        let length = 3 * MAX_PIECE + 1;
        let mut body = poll_fn(|cx| {
            let inner = Full::new(Bytes::from(vec![7; length]));
            Poll::Ready(ResponseBody::new(inner, guard.clone(), cx))
        })
        .await;
        assert!(connection.unread().bytes() > length);
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(length as u64), false));
        let mut pieces = Vec::new();
        while let Some(frame) = body.frame().await {
            pieces.push(frame.unwrap().into_data().unwrap());
        }
        assert_eq!(pieces.iter().map(Bytes::len).collect::<Vec<_>>(), [MAX_PIECE, MAX_PIECE, MAX_PIECE, 1]);
        assert!(body.is_end_stream());
        pieces.truncate(1);
        assert!(connection.unread().bytes() > length);
        drop(pieces);
        assert_eq!(connection.unread().bytes(), 0);
    }
}
