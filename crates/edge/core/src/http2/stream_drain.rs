//! Ends long-lived streams before the drain deadline: gRPC calls still in flight end with `UNAVAILABLE`,
//! which clients retry, whereas a closed connection is an error.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use fairmesh_calls::{Body, Fault};
use fairmesh_headers::{GRPC_STATUS, is_grpc};
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{Notify, futures::OwnedNotified};

/// gRPC status that tells clients to retry.
const UNAVAILABLE: HeaderValue = HeaderValue::from_static("14");
const DRAIN_MESSAGE: HeaderValue = HeaderValue::from_static("the proxy is stopping; retry");

/// Notice to the streams of one connection; sent once.
#[derive(Debug, Default)]
pub(crate) struct DrainNotice {
    sent: AtomicBool,
    waiters: Arc<Notify>,
}

/// The body of a response. It ends early when the notice is sent.
#[derive(Debug)]
pub(crate) struct DrainableBody {
    body: Body,
    /// Drain notice; set for gRPC responses, whose trailers carry the status.
    notice: Option<Arc<DrainNotice>>,
    /// Created when the body is pending for the first time.
    notified: Option<Pin<Box<OwnedNotified>>>,
}

impl DrainNotice {
    /// Ends streams that wait for their server, immediately or as soon as they wait.
    pub(crate) fn send(&self) {
        self.sent.store(true, Relaxed);
        self.waiters.notify_waiters();
    }
}

impl DrainableBody {
    /// Wraps the response to an HTTP/2 request.
    pub(crate) fn wrap(response: Response<Body>, notice: &Arc<DrainNotice>) -> Response<Self> {
        let notice = is_grpc(response.headers()).then(|| Arc::clone(notice));
        response.map(|body| Self { body, notice, notified: None })
    }

    fn is_notified(&mut self, context: &mut Context<'_>) -> bool {
        let Some(notice) = &self.notice else { return false };
        let waits = || Box::pin(Arc::clone(&notice.waiters).notified_owned());
        let notified = self.notified.get_or_insert_with(waits);
        // Checked after polling, so that a notice in between is not missed.
        notified.as_mut().poll(context).is_ready() || notice.sent.load(Relaxed)
    }
}

impl HttpBody for DrainableBody {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Pending if self.is_notified(context) => {
                // Dropping the body cancels the call.
                (self.body, self.notice, self.notified) = (Body::empty(), None, None);
                Poll::Ready(Some(Ok(Frame::trailers(unavailable_trailers()))))
            }
            polled => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn unavailable_trailers() -> HeaderMap {
    [(GRPC_STATUS, UNAVAILABLE), (HeaderName::from_static("grpc-message"), DRAIN_MESSAGE)]
        .into_iter()
        .collect()
}
