//! Limits the size of request bodies, and removes trailers that claim an identity.

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

use crate::forward::mesh_boundary::Boundary;

/// No limit.
pub const UNLIMITED: u64 = u64::MAX;

/// Flag that is set if a body exceeded the limit. Without a limit, nothing is allocated.
#[derive(Clone, Debug)]
pub struct ExceededFlag(Option<Arc<AtomicBool>>);

impl ExceededFlag {
    fn set(&self) {
        if let Some(flag) = &self.0 {
            flag.store(true, Relaxed);
        }
    }

    /// Whether the body exceeded the limit.
    pub fn is_set(&self) -> bool {
        self.0.as_ref().is_some_and(|flag| flag.load(Relaxed))
    }
}

/// A body that fails once it exceeds the limit. The request to the server is then aborted rather than ended, so that
/// the server does not take the truncated body for complete.
#[derive(Debug)]
pub struct LimitedBody<B> {
    body: B,
    left: u64,
    too_long: ExceededFlag,
    removes_claims: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("the request body exceeds the proxy's maximum")]
struct BodyTooLarge;

impl<B: Body> LimitedBody<B> {
    /// Wraps a body. A body whose announced length exceeds `max` is never polled.
    pub fn new(body: B, max: u64) -> (Self, ExceededFlag) {
        let too_long = ExceededFlag((max < UNLIMITED).then(Arc::default));
        if body.size_hint().lower() > max {
            too_long.set();
        }
        (Self { body, left: max, too_long: too_long.clone(), removes_claims: false }, too_long)
    }

    /// Removes trailers that claim an identity, if `removes_claims` is set. The proxy then states the caller itself,
    /// and some programs merge trailers into the headers.
    pub(crate) fn without_claims(self, removes_claims: bool) -> Self {
        Self { removes_claims, ..self }
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
        let mut frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if self.removes_claims
            && let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            Boundary::remove_claims(trailers);
        }
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
    use http::{HeaderMap, HeaderValue};
    use http_body_util::{BodyExt as _, Full, StreamBody};

    use super::*;

    #[tokio::test]
    async fn trailers_claiming_identity_are_removed_if_proxy_states_caller() {
        let names = ["x-fairmesh-caller", "x_forwarded_client_cert", "x-checksum"];
        let trailers: HeaderMap =
            names.map(|name| (name.parse().unwrap(), HeaderValue::from_static("1"))).into_iter().collect();
        for (removes_claims, left) in [(true, &names[2..]), (false, &names[..])] {
            let trailers = std::future::ready(Some(Ok(trailers.clone())));
            let body = Full::new(Bytes::from_static(b"tea")).with_trailers(trailers);
            let (body, _) = LimitedBody::new(body, UNLIMITED);
            let received = body.without_claims(removes_claims).collect().await.unwrap();
            let kept: Vec<_> = received.trailers().unwrap().keys().map(|name| name.as_str()).collect();
            assert_eq!(kept, left);
            assert_eq!(received.to_bytes(), "tea");
        }
    }

    #[tokio::test]
    async fn request_body_over_limit_fails_by_declared_or_actual_length() {
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
