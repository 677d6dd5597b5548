use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use crate::BoxError;

/// As much of a body that comes in pieces is taken at once, and kept for another try where that is all of it. Of one that is
/// larger, the first piece is taken whatever its size: a body of one piece can be sent again without a copy.
const KEPT: usize = 64 * 1024;

/// The part of a body that is not at hand.
pub(super) type Rest = Pin<Box<dyn Body<Data = Bytes, Error = BoxError> + Send>>;

/// The body of a request on its way out.
pub(crate) struct Outgoing {
    pub(super) whole: Chunks,
    pub(super) rest: Option<Rest>,
    /// The length that the caller declared.
    pub(super) declared: Option<u64>,
    /// Not at its end from the beginning: over HTTP/2, DATA ends the request and not its headers, even where there are no bytes.
    pub(super) has_body: bool,
}

/// What is at hand of a body. One chunk, nearly always; more are rare enough for a list. A copy shares the bytes.
#[derive(Clone, Default)]
pub(crate) struct Chunks {
    first: Option<Bytes>,
    /// Boxed, since requests are moved a few times and next to none has this.
    rare: Option<Box<Rare>>,
}

#[derive(Clone, Default)]
struct Rare {
    more: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
}

/// A whole body, to be sent once more.
pub(crate) struct Replay {
    chunks: Chunks,
    declared: Option<u64>,
    has_body: bool,
}

impl Outgoing {
    /// No body.
    pub(crate) fn empty() -> Self {
        Self { whole: Chunks::default(), rest: None, declared: Some(0), has_body: false }
    }

    /// Takes a body over: what it has at hand is taken at once, so that a body which is all there is sent without
    /// chunking and can be sent again without a copy. Never waits for the body.
    pub(crate) async fn take<B>(body: B) -> Result<Self, BoxError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let mut this = Self::begun(&body);
        if !this.has_body {
            return Ok(this);
        }
        let mut body = Box::pin(body);
        let ended = poll_fn(|context| Poll::Ready(drain(body.as_mut(), &mut this.whole, context))).await?;
        if !ended {
            this.rest = Some(Box::pin(Erased(body)));
        }
        Ok(this)
    }

    /// The same for a body that can be moved: it is only boxed where something is still to come of it.
    pub(crate) async fn take_movable<B>(mut body: B) -> Result<Self, BoxError>
    where
        B: Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let mut this = Self::begun(&body);
        if !this.has_body {
            return Ok(this);
        }
        let ended =
            poll_fn(|context| Poll::Ready(drain(Pin::new(&mut body), &mut this.whole, context))).await?;
        if !ended {
            this.rest = Some(Box::pin(Erased(Box::pin(body))));
        }
        Ok(this)
    }

    /// Of this body, of which nothing is taken yet.
    fn begun<B: Body>(body: &B) -> Self {
        let (declared, has_body) = (body.size_hint().exact(), !body.is_end_stream());
        Self { whole: Chunks::default(), rest: None, declared, has_body }
    }

    /// How much of the body is at hand, in bytes.
    pub(crate) fn at_hand(&self) -> u64 {
        self.whole.len()
    }

    /// A copy to send once more, when the whole body is at hand.
    pub(crate) fn replay(&self) -> Option<Replay> {
        let Self { whole, rest, declared, has_body } = self;
        let copy = || Replay { chunks: whole.clone(), declared: *declared, has_body: *has_body };
        rest.is_none().then(copy)
    }
}

impl Replay {
    /// The body once more.
    pub(crate) fn again(&self) -> Outgoing {
        let Self { chunks, declared, has_body } = self;
        Outgoing { whole: chunks.clone(), rest: None, declared: *declared, has_body: *has_body }
    }
}

/// Takes what is ready; whether the body has ended.
fn drain<B>(mut body: Pin<&mut B>, chunks: &mut Chunks, context: &mut Context<'_>) -> Result<bool, BoxError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut taken = 0;
    while taken <= KEPT {
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

    /// The next chunk, which stays.
    pub(super) fn first(&self) -> Option<&Bytes> {
        self.first.as_ref().or_else(|| self.rare.as_ref()?.more.front())
    }

    /// The next chunk.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        self.first.take().or_else(|| self.rare.as_mut()?.more.pop_front())
    }

    /// The trailers, once every chunk is popped.
    pub(super) fn pop_trailers(&mut self) -> Option<HeaderMap> {
        self.rare.as_mut()?.trailers.take()
    }

    /// Whether nothing is left, trailers included.
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

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(chunk) = self.whole.pop() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        if let Some(trailers) = self.whole.pop_trailers() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        match &mut self.rest {
            Some(rest) => rest.as_mut().poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.whole.is_empty() && self.rest.as_ref().is_none_or(|rest| rest.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let at_hand = self.whole.len();
        let Some(rest) = &self.rest else {
            // Trailers need a chunked body in HTTP/1.1, so no length may be told.
            let trailers = self.whole.rare.as_ref().is_some_and(|rare| rare.trailers.is_some());
            return if !trailers { SizeHint::with_exact(at_hand) } else { SizeHint::new() };
        };
        let rest = rest.size_hint();
        let mut hint = SizeHint::new();
        // What a body says may be as large as numbers are.
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(at_hand)) {
            hint.set_upper(upper);
            hint.set_lower(at_hand + rest.lower());
        } else {
            hint.set_lower(at_hand.saturating_add(rest.lower()));
        }
        hint
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

    /// Has a chunk at hand, waits with the rest, and says that it may be as long as numbers are.
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
    async fn a_body_of_one_piece_can_be_sent_again_however_large_it_is() {
        let body = http_body_util::Full::new(Bytes::from(vec![7; 10 * KEPT]));
        let taken = Outgoing::take(body).await.unwrap();
        let again = taken.replay().expect("all of it is at hand").again();
        assert_eq!(again.size_hint().exact(), Some(10 * KEPT as u64));
        assert_eq!(
            again.whole.first().unwrap().as_ptr(),
            taken.whole.first().unwrap().as_ptr(),
            "not a copy"
        );
    }

    #[tokio::test]
    async fn a_body_without_bytes_is_told_from_none_also_when_it_is_sent_again() {
        use http_body_util::{Empty, StreamBody};
        let bytes = futures_util::stream::empty::<Result<Frame<Bytes>, BoxError>>();
        let empty = Outgoing::take_movable(StreamBody::new(bytes)).await.unwrap();
        let none = Outgoing::take(Empty::new()).await.unwrap();
        for (body, has_body) in [(empty, true), (none, false), (Outgoing::empty(), false)] {
            assert!(body.is_end_stream());
            assert_eq!([body.has_body, body.replay().unwrap().again().has_body], [has_body; 2]);
        }
    }

    #[tokio::test]
    async fn a_body_may_say_that_it_is_as_large_as_numbers_are() {
        let hint = Outgoing::take(Vast(true)).await.unwrap().size_hint();
        assert_eq!((hint.lower(), hint.upper()), (3, None));
    }
}
