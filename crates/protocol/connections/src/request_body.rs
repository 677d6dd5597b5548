use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::recorded_body::RecordedBody;
use fairmesh_http::BoxError;

/// Number of bytes that are buffered first of a body in pieces. A body of at most this length can be sent again from
/// the buffer. The first piece of a larger body is taken regardless of its size, so a body of one piece can be sent
/// again without a copy.
pub(super) const MAX_BUFFERED: usize = 64 * 1024;

/// The part of a body that is not buffered.
pub(super) type UnbufferedBody = Pin<Box<dyn Body<Data = Bytes, Error = BoxError> + Send>>;

/// The body of a request to send.
pub struct RequestBody {
    pub(super) buffered: Chunks,
    pub(super) rest: Option<UnbufferedBody>,
    /// The length that the caller declared.
    pub(super) declared: Option<u64>,
    /// Whether the body was not at its end from the beginning. Over HTTP/2, DATA then ends the request, even if the
    /// body is empty.
    pub(super) has_body: bool,
}

/// The buffered part of a body. Usually one chunk, so that a list is needed only rarely. Clones share the bytes.
#[derive(Clone, Default)]
pub(crate) struct Chunks {
    first: Option<Bytes>,
    /// Parts that almost no request has. Boxed, since requests are moved several times.
    rare: Option<Box<Rare>>,
}

#[derive(Clone, Default)]
struct Rare {
    more: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
}

/// A copy of a body for another attempt.
pub struct Replay {
    chunks: Chunks,
    /// The part that was not buffered.
    pub(super) rest: Option<RecordedBody>,
    declared: Option<u64>,
    has_body: bool,
}

impl RequestBody {
    /// Returns an absent body.
    pub fn empty() -> Self {
        Self { buffered: Chunks::default(), rest: None, declared: Some(0), has_body: false }
    }

    /// Takes ownership of a body and buffers what is ready. A body that is ready as a whole is then sent without
    /// chunking and can be sent again without a copy. Never waits for the body.
    ///
    /// # Errors
    /// The body's error, if it fails at once.
    pub async fn take<B>(body: B) -> Result<Self, BoxError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let mut this = Self::for_body(&body);
        if !this.has_body {
            return Ok(this);
        }
        let mut body = Box::pin(body);
        let ended =
            poll_fn(|context| Poll::Ready(buffer_ready(body.as_mut(), &mut this.buffered, context))).await?;
        if !ended {
            this.rest = Some(Box::pin(Erased(body)));
        }
        Ok(this)
    }

    /// Like [`take`](Self::take), for a body that is `Unpin`: it is boxed only if a part of it is not ready.
    ///
    /// # Errors
    /// As for [`take`](Self::take).
    pub async fn take_unpin<B>(mut body: B) -> Result<Self, BoxError>
    where
        B: Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let mut this = Self::for_body(&body);
        if !this.has_body {
            return Ok(this);
        }
        let ended =
            poll_fn(|context| Poll::Ready(buffer_ready(Pin::new(&mut body), &mut this.buffered, context)))
                .await?;
        if !ended {
            this.rest = Some(Box::pin(Erased(Box::pin(body))));
        }
        Ok(this)
    }

    /// Wraps this body, which is not buffered at all yet.
    fn for_body<B: Body>(body: &B) -> Self {
        let (declared, has_body) = (body.size_hint().exact(), !body.is_end_stream());
        Self { buffered: Chunks::default(), rest: None, declared, has_body }
    }

    /// Number of buffered bytes.
    pub fn buffered_len(&self) -> u64 {
        self.buffered.len()
    }

    /// Calls `count` with the number of bytes of each piece of the unbuffered part, if any, as the caller sends it.
    pub fn count_rest(&mut self, count: impl Fn(u64) + Unpin + Send + 'static) {
        self.rest =
            self.rest.take().map(|source| -> UnbufferedBody { Box::pin(CountedRest { source, count }) });
    }

    /// Whether a part of the body is not buffered.
    pub fn has_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// Returns a copy to send again, if the whole body is buffered.
    pub fn replay(&self) -> Option<Replay> {
        let Self { buffered, rest, declared, has_body } = self;
        let copy =
            || Replay { chunks: buffered.clone(), rest: None, declared: *declared, has_body: *has_body };
        rest.is_none().then(copy)
    }

    /// Returns a copy to send again. The unbuffered part is recorded while it is sent.
    pub fn record_replay(&mut self) -> Replay {
        // Nothing above the bound is ever kept.
        let buffered = usize::try_from(self.buffered_len()).unwrap_or(usize::MAX);
        let rest = self.rest.take().map(|source| RecordedBody::new(source, buffered));
        self.rest =
            rest.as_ref().and_then(RecordedBody::reader).map(|rest| -> UnbufferedBody { Box::pin(rest) });
        let Self { buffered, declared, has_body, .. } = self;
        Replay { chunks: buffered.clone(), rest, declared: *declared, has_body: *has_body }
    }
}

impl Replay {
    /// Returns the body for another attempt; `None` if it is no longer available. Any other copy that is being sent
    /// fails.
    pub fn to_body(&self) -> Option<RequestBody> {
        let Self { chunks, rest, declared, has_body } = self;
        let rest = match rest {
            Some(rest) => Some(Box::pin(rest.reader()?) as UnbufferedBody),
            None => None,
        };
        Some(RequestBody { buffered: chunks.clone(), rest, declared: *declared, has_body: *has_body })
    }

    /// Whether the body can still be sent again.
    pub fn is_available(&self) -> bool {
        self.rest.as_ref().is_none_or(RecordedBody::is_whole)
    }

    /// Whether the whole body was available before it was sent. Several copies may then be sent at once.
    pub fn is_complete(&self) -> bool {
        self.rest.is_none()
    }
}

/// Buffers the pieces that are ready. Returns whether the body has ended.
fn buffer_ready<B>(
    mut body: Pin<&mut B>,
    chunks: &mut Chunks,
    context: &mut Context<'_>,
) -> Result<bool, BoxError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut taken = 0;
    while taken <= MAX_BUFFERED {
        match body.as_mut().poll_frame(context) {
            Poll::Ready(Some(frame)) => {
                let frame = frame.map_err(Into::into)?;
                taken += frame.data_ref().map_or(0, Bytes::len);
                chunks.push(frame);
            }
            Poll::Ready(None) => return Ok(true),
            Poll::Pending => return Ok(false),
        }
        if body.is_end_stream() {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Chunks {
    fn push(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) if self.first.is_none() && self.rare.is_none() => self.first = Some(data),
            Ok(data) => self.rare.get_or_insert_default().more.push_back(data),
            Err(frame) => self.rare.get_or_insert_default().trailers = frame.into_trailers().ok(),
        }
    }

    /// Returns the next chunk without removing it.
    pub(super) fn first(&self) -> Option<&Bytes> {
        self.first.as_ref().or_else(|| self.rare.as_ref()?.more.front())
    }

    /// Removes the next chunk.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        self.first.take().or_else(|| self.rare.as_mut()?.more.pop_front())
    }

    /// Removes the trailers. Call this once every chunk was removed.
    pub(super) fn pop_trailers(&mut self) -> Option<HeaderMap> {
        self.rare.as_mut()?.trailers.take()
    }

    /// The trailers.
    pub(super) fn trailers(&self) -> Option<&HeaderMap> {
        self.rare.as_ref()?.trailers.as_ref()
    }

    /// Whether nothing is left, including trailers.
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
            && self.rare.as_ref().is_none_or(|rare| rare.more.is_empty() && rare.trailers.is_none())
    }

    fn len(&self) -> u64 {
        self.first
            .iter()
            .chain(self.rare.iter().flat_map(|rare| &rare.more))
            .map(|chunk| chunk.len() as u64)
            .sum()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(chunk) = self.buffered.pop() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        if let Some(trailers) = self.buffered.pop_trailers() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        match &mut self.rest {
            Some(rest) => rest.as_mut().poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.buffered.is_empty() && self.rest.as_ref().is_none_or(|rest| rest.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let buffered = self.buffered.len();
        let Some(rest) = &self.rest else {
            // In HTTP/1.1, trailers need a chunked body, so no length may be declared.
            return if self.buffered.trailers().is_none() {
                SizeHint::with_exact(buffered)
            } else {
                SizeHint::new()
            };
        };
        let rest = rest.size_hint();
        let mut hint = SizeHint::new();
        // The upper bound of a body may be `u64::MAX`.
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(buffered)) {
            hint.set_upper(upper);
            hint.set_lower(buffered + rest.lower());
        } else {
            hint.set_lower(buffered.saturating_add(rest.lower()));
        }
        hint
    }
}

/// The unbuffered part of a body, whose bytes are counted.
struct CountedRest<F> {
    source: UnbufferedBody,
    count: F,
}

impl<F: Fn(u64) + Unpin> Body for CountedRest<F> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(self.source.as_mut().poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            (self.count)(data.len() as u64);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }
}

/// A body whose error is boxed.
struct Erased<B>(Pin<Box<B>>);

impl<B> Body for Erased<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(self.0.as_mut().poll_frame(context));
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body with one chunk ready and an upper bound of `u64::MAX`.
    struct Vast(bool);

    impl Body for Vast {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            match std::mem::take(&mut self.0) {
                true => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"tea"))))),
                false => Poll::Pending,
            }
        }

        fn size_hint(&self) -> SizeHint {
            let mut hint = SizeHint::new();
            hint.set_upper(u64::MAX);
            hint
        }
    }

    #[tokio::test]
    async fn large_request_body_in_one_piece_can_be_sent_again() {
        let body = http_body_util::Full::new(Bytes::from(vec![7; 10 * MAX_BUFFERED]));
        let taken = RequestBody::take(body).await.unwrap();
        let again = taken.replay().expect("all of it is buffered").to_body().unwrap();
        assert_eq!(again.size_hint().exact(), Some(10 * MAX_BUFFERED as u64));
        assert_eq!(
            again.buffered.first().unwrap().as_ptr(),
            taken.buffered.first().unwrap().as_ptr(),
            "not a copy"
        );
    }

    #[tokio::test]
    async fn empty_request_body_differs_from_absent_one_when_sent_again() {
        use http_body_util::{Empty, StreamBody};
        let bytes = futures_util::stream::empty::<Result<Frame<Bytes>, BoxError>>();
        let empty = RequestBody::take_unpin(StreamBody::new(bytes)).await.unwrap();
        let none = RequestBody::take(Empty::new()).await.unwrap();
        for (body, has_body) in [(empty, true), (none, false), (RequestBody::empty(), false)] {
            assert!(body.is_end_stream());
            assert_eq!([body.has_body, body.replay().unwrap().to_body().unwrap().has_body], [has_body; 2]);
        }
    }

    #[tokio::test]
    async fn request_body_bytes_are_counted_as_sent_not_as_declared() {
        use http_body_util::{BodyExt as _, Full};
        use std::sync::{
            Arc,
            atomic::{AtomicU64, Ordering::Relaxed},
        };

        /// A body that declares more bytes than it has.
        struct Liar(Vast, Full<Bytes>);

        impl Body for Liar {
            type Data = Bytes;
            type Error = BoxError;

            fn poll_frame(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
                match std::mem::take(&mut self.0.0) {
                    true => Poll::Pending,
                    false => Pin::new(&mut self.1).poll_frame(context).map_err(Into::into),
                }
            }

            fn size_hint(&self) -> SizeHint {
                SizeHint::with_exact(1 << 60)
            }
        }

        let mut taken = RequestBody::take(Liar(Vast(true), Full::new(Bytes::from("tea")))).await.unwrap();
        assert_eq!((taken.buffered_len(), taken.has_rest()), (0, true));
        let counted = Arc::new(AtomicU64::new(0));
        taken.count_rest({
            let counted = Arc::clone(&counted);
            move |bytes| {
                counted.fetch_add(bytes, Relaxed);
            }
        });
        assert_eq!(taken.collect().await.unwrap().to_bytes(), "tea");
        assert_eq!(counted.load(Relaxed), 3);
    }

    #[tokio::test]
    async fn request_body_with_upper_size_hint_u64_max_is_accepted() {
        let hint = RequestBody::take(Vast(true)).await.unwrap().size_hint();
        assert_eq!((hint.lower(), hint.upper()), (3, None));
    }
}
