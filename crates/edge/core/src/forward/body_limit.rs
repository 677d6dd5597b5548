//! Enforces the maximum size of request bodies.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_calls::BoxError;
use http_body::{Body, Frame, SizeHint};

/// No limit.
pub const UNLIMITED: u64 = u64::MAX;

/// Set if a body exceeded the limit. Nothing is allocated without a limit.
#[derive(Clone, Debug)]
pub struct ExceededFlag(Option<Arc<AtomicBool>>);

impl ExceededFlag {
    fn set(&self) {
        if let Some(flag) = &self.0 {
            flag.store(true, Relaxed);
        }
    }

    /// Whether a body exceeded it.
    pub fn is_set(&self) -> bool {
        self.0.as_ref().is_some_and(|flag| flag.load(Relaxed))
    }
}

/// A body that fails once it exceeds the limit. Bytes that were already sent are cut short, so that no server takes the
/// body for complete.
#[derive(Debug)]
pub struct LimitedBody<B> {
    body: B,
    left: u64,
    too_long: ExceededFlag,
}

#[derive(Debug, thiserror::Error)]
#[error("the request body exceeds the proxy's maximum")]
struct BodyTooLarge;

impl<B: Body> LimitedBody<B> {
    /// Wraps a body. If it announces a length above `max`, it is never polled.
    pub fn new(body: B, max: u64) -> (Self, ExceededFlag) {
        let too_long = ExceededFlag((max < UNLIMITED).then(Arc::default));
        if body.size_hint().lower() > max {
            too_long.set();
        }
        (Self { body, left: max, too_long: too_long.clone() }, too_long)
    }
}

impl<B> Body for LimitedBody<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.too_long.is_set() {
            return Poll::Ready(Some(Err(BodyTooLarge.into())));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let Some(left) = self.left.checked_sub(data.len() as u64) else {
                self.too_long.set();
                return Poll::Ready(Some(Err(BodyTooLarge.into())));
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
    async fn bodies_are_limited_by_announced_and_by_actual_length() {
        let five = || Full::new(Bytes::from_static(b"12345"));
        let (body, too_long) = LimitedBody::new(five(), 4);
        assert!(too_long.is_set() && body.collect().await.is_err());
        let (body, too_long) = LimitedBody::new(five(), 5);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "12345");
        assert!(!too_long.is_set());
        let pieces = || {
            let pieces = ["123", "45"].map(|piece| Ok::<_, BoxError>(Frame::data(Bytes::from(piece))));
            StreamBody::new(futures_util::stream::iter(pieces))
        };
        let (mut body, too_long) = LimitedBody::new(pieces(), 4);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "123");
        assert!(!too_long.is_set());
        assert!(body.frame().await.unwrap().is_err() && too_long.is_set());
        let (body, _) = LimitedBody::new(pieces(), UNLIMITED);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "12345");
    }
}
