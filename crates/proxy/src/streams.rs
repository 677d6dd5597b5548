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
const WHY: HeaderValue = HeaderValue::from_static("the proxy on the way stops; call again");

/// Said to the streams of one connection, once.
#[derive(Debug, Default)]
pub(crate) struct LastWord {
    said: AtomicBool,
    waiting: Arc<Notify>,
}

/// The body of an answer, which ends when the last word is said.
#[derive(Debug)]
pub(crate) struct Streamed {
    body: Body,
    /// Where there is a way to say it: gRPC has trailers.
    word: Option<Arc<LastWord>>,
    /// Made when the body first keeps its reader waiting.
    heard: Option<Pin<Box<OwnedNotified>>>,
}

impl LastWord {
    /// Ends what still waits for its server, and whatever does from now on.
    pub(crate) fn say(&self) {
        self.said.store(true, Relaxed);
        self.waiting.notify_waiters();
    }
}

impl Streamed {
    /// The answer to a request over HTTP/2.
    pub(crate) fn answer(answer: Response<Body>, word: &Arc<LastWord>) -> Response<Self> {
        let word = is_grpc(answer.headers()).then(|| Arc::clone(word));
        answer.map(|body| Self { body, word, heard: None })
    }

    fn is_told(&mut self, context: &mut Context<'_>) -> bool {
        let Some(word) = &self.word else { return false };
        let waits = || Box::pin(Arc::clone(&word.waiting).notified_owned());
        let heard = self.heard.get_or_insert_with(waits);
        // Looked at second: what is said in between is heard.
        heard.as_mut().poll(context).is_ready() || word.said.load(Relaxed)
    }
}

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Pending if self.is_told(context) => {
                // The call to the server ends with it.
                (self.body, self.word, self.heard) = (Body::empty(), None, None);
                Poll::Ready(Some(Ok(Frame::trailers(farewell()))))
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

fn farewell() -> HeaderMap {
    [(GRPC_STATUS, UNAVAILABLE), (HeaderName::from_static("grpc-message"), WHY)].into_iter().collect()
}
