//! Bodies of requests that may not be longer than the proxy was told.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_client::BoxError;
use http_body::{Body, Frame, SizeHint};

/// What stands for no limit.
pub(crate) const ANY: u64 = u64::MAX;

/// Whether a body was longer than it may be. Without a limit, nothing is kept of it.
#[derive(Clone, Debug)]
pub(crate) struct TooLong(Option<Arc<AtomicBool>>);

impl TooLong {
    fn set(&self) {
        if let Some(so) = &self.0 {
            so.store(true, Relaxed);
        }
    }

    pub(crate) fn is_so(&self) -> bool {
        self.0.as_ref().is_some_and(|so| so.load(Relaxed))
    }
}

/// A body that fails beyond so many bytes: what has come of it by then is sent on and cut short, so that no server takes it
/// for whole.
#[derive(Debug)]
pub(crate) struct Limited<B> {
    body: B,
    left: u64,
    too_long: TooLong,
}

#[derive(Debug, thiserror::Error)]
#[error("the request's body is longer than the proxy passes on")]
struct Beyond;

impl<B: Body> Limited<B> {
    /// The body. Where it tells a length that is too long, nothing of it is asked for.
    pub(crate) fn new(body: B, most: u64) -> (Self, TooLong) {
        let too_long = TooLong((most < ANY).then(Arc::default));
        if body.size_hint().lower() > most {
            too_long.set();
        }
        (Self { body, left: most, too_long: too_long.clone() }, too_long)
    }
}

impl<B> Body for Limited<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.too_long.is_so() {
            return Poll::Ready(Some(Err(Beyond.into())));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let Some(left) = self.left.checked_sub(data.len() as u64) else {
                self.too_long.set();
                return Poll::Ready(Some(Err(Beyond.into())));
            };
            self.left = left;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full, StreamBody};

    use super::*;

    #[tokio::test]
    async fn a_body_is_refused_by_the_length_it_tells_and_cut_at_the_length_it_has() {
        let five = || Full::new(Bytes::from_static(b"12345"));
        let (body, too_long) = Limited::new(five(), 4);
        assert!(too_long.is_so() && body.collect().await.is_err());
        let (body, too_long) = Limited::new(five(), 5);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "12345");
        assert!(!too_long.is_so());
        let pieces = || {
            let pieces = ["123", "45"].map(|piece| Ok::<_, BoxError>(Frame::data(Bytes::from(piece))));
            StreamBody::new(futures_util::stream::iter(pieces))
        };
        let (mut body, too_long) = Limited::new(pieces(), 4);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "123");
        assert!(!too_long.is_so());
        assert!(body.frame().await.unwrap().is_err() && too_long.is_so());
        let (body, _) = Limited::new(pieces(), ANY);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "12345");
    }
}
