//! Streams that would outlast a proxy are told to move: a gRPC call that still runs shortly before the deadline ends with
//! `UNAVAILABLE`, on which clients call again, where a connection that is cut off only breaks.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use fairmesh_client::{Body, Fault};
use fairmesh_headers::{GRPC_STATUS, is_grpc};
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::sync::{Notify, futures::OwnedNotified};

/// The code by which a client knows that another try may go well.
const UNAVAILABLE: HeaderValue = HeaderValue::from_static("14");
const DRAIN_MESSAGE: HeaderValue = HeaderValue::from_static("the proxy on the way stops; call again");

/// Said to the streams of one connection, once.
#[derive(Debug, Default)]
pub(crate) struct DrainNotice {
    sent: AtomicBool,
    waiters: Arc<Notify>,
}

/// The body of an answer, which ends when the last word is said.
#[derive(Debug)]
pub(crate) struct DrainableBody {
    body: Body,
    /// Where there is a way to say it: gRPC has trailers.
    notice: Option<Arc<DrainNotice>>,
    /// Made when the body first keeps its reader waiting.
    notified: Option<Pin<Box<OwnedNotified>>>,
}

impl DrainNotice {
    /// Ends what still waits for its server, and whatever does from now on.
    pub(crate) fn send(&self) {
        self.sent.store(true, Relaxed);
        self.waiters.notify_waiters();
    }
}

impl DrainableBody {
    /// The answer to a request over HTTP/2.
    pub(crate) fn wrap(response: Response<Body>, notice: &Arc<DrainNotice>) -> Response<Self> {
        let notice = is_grpc(response.headers()).then(|| Arc::clone(notice));
        response.map(|body| Self { body, notice, notified: None })
    }

    fn is_notified(&mut self, context: &mut Context<'_>) -> bool {
        let Some(notice) = &self.notice else { return false };
        let waits = || Box::pin(Arc::clone(&notice.waiters).notified_owned());
        let notified = self.notified.get_or_insert_with(waits);
        // Looked at second: what is said in between is heard.
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
                // The call to the server ends with it.
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
