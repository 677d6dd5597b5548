//! Serves HTTP on one connection, in the version that its client speaks.

use std::{
    error::Error,
    future::poll_fn,
    mem,
    net::SocketAddr,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use fairmesh_calls::{Body, BoxError};
use fairmesh_http::h2;
use futures_util::FutureExt as _;
use http::{Request, Response};
use tokio::io::AsyncRead;

use crate::{
    counter::increment,
    http1::{
        connection::Connection,
        connection_end::{ConnectionEnd, ConnectionParts},
        request_body::IncomingBody,
        request_handler::RequestHandler,
        request_offload::{NoOffload, Offload},
        serve,
    },
    http2::connection::{Http2Server, StreamHandler},
    listen::client_stream::ClientStream,
    metrics::connections::ConnectionMetrics,
    shutdown::Shutdown,
    tunnel::prefixed_io::PrefixedIo,
};

/// Handles the requests of a connection, over either version of HTTP.
///
/// The extensions of a request hold the raw path and what an [`UpgradeRequest`](crate::tunnel::client_upgrade::UpgradeRequest) takes.
pub trait HttpHandler: Send + Sync + 'static {
    /// Responds to a request. Errors become responses.
    fn handle<B>(&self, request: Request<B>) -> impl Future<Output = Response<Body>> + Send
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static;
}

/// Serves HTTP on connections with these limits and counters.
#[derive(Clone, Copy, Debug)]
pub struct HttpServer<'a> {
    /// Idle timeout of connections. Also the time limit for request headers and for each write to the client.
    pub idle_timeout: Duration,
    /// Counters of how connections end.
    pub metrics: &'a ConnectionMetrics,
    /// Signals when connections must end.
    pub shutdown: &'a Shutdown,
}

/// Adapts an [`HttpHandler`] to either HTTP version, without a fast path.
struct EveryRequest<H>(H);

impl<R: AsyncRead + Unpin + Send + 'static, H: HttpHandler> RequestHandler<R> for EveryRequest<H> {
    type Body = Body;

    async fn handle(&self, request: Request<IncomingBody<R>>) -> Response<Body> {
        self.0.handle(request).await
    }
}

impl<H: HttpHandler> StreamHandler for EveryRequest<H> {
    fn handle(&self, request: Request<h2::RequestBody>) -> impl Future<Output = Response<Body>> + Send {
        self.0.handle(request)
    }
}

/// Joins the halves of a connection with its unread bytes. Always succeeds, since the halves belong together.
fn reunite<L: ClientStream>(parts: ConnectionParts<L::Reader, L::Writer>) -> Option<(L, BytesMut)> {
    Some((L::reunite(parts.reader, parts.writer)?, parts.read))
}

impl HttpServer<'_> {
    /// Serves a connection of `caller` until it ends, or until a tunnel takes it.
    pub fn serve<L: ClientStream, H: HttpHandler>(
        self,
        stream: L,
        caller: SocketAddr,
        handler: H,
    ) -> impl Future<Output = ()> + Send {
        self.serve_offloaded(stream, caller, EveryRequest(handler), None::<NoOffload>)
    }

    /// Like [`serve`](Self::serve), for a connection whose requests may also be sent by another sender.
    pub(crate) fn serve_offloaded<L, H, O>(
        self,
        stream: L,
        caller: SocketAddr,
        handler: H,
        offload: Option<O>,
    ) -> impl Future<Output = ()>
    where
        L: ClientStream,
        H: RequestHandler<L::Reader> + StreamHandler,
        O: Offload,
    {
        let Self { idle_timeout, metrics, shutdown } = self;
        let (reader, writer) = stream.into_split();
        // An `async fn` would reserve space for its arguments twice.
        async move {
            let ended = {
                let connection = Connection::with_offload(reader, writer, idle_timeout, offload);
                until_drain_deadline(shutdown, pin!(serve::serve(connection, shutdown, &handler))).await
            };
            let Some(ended) = ended else { return increment(&metrics.drain_timeouts) };
            match ended {
                ConnectionEnd::Closed => {}
                ConnectionEnd::Failed(error) => {
                    increment(&metrics.failed);
                    tracing::debug!(error = &error as &dyn Error, %caller, "connection failed");
                }
                ConnectionEnd::Http2(parts) => {
                    let Some((stream, read)) = reunite::<L>(parts) else { return };
                    let server = Http2Server { idle_timeout, metrics, shutdown };
                    server.serve(stream, read, caller, handler).boxed().await;
                }
                ConnectionEnd::Upgraded(parts, pending_upgrade) => {
                    let Some((stream, read)) = reunite::<L>(parts) else { return };
                    pending_upgrade.fulfill(PrefixedIo::new(read, stream));
                }
            }
        }
    }
}

/// Returns the result of serving a connection; `None` if the drain deadline passes first.
async fn until_drain_deadline<T>(
    shutdown: &Shutdown,
    mut served: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let mut drain_deadline = pin!(shutdown.deadline_passed());
    let mut is_polled = false;
    poll_fn(|context| {
        if let Poll::Ready(ended) = served.as_mut().poll(context) {
            return Poll::Ready(Some(ended));
        }
        // Polled once to register the waker, which never changes; nothing can happen before the shutdown
        // starts.
        let was_polled = mem::replace(&mut is_polled, true);
        let may_be_due = !was_polled || shutdown.is_started();
        if may_be_due && drain_deadline.as_mut().poll(context).is_ready() {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    })
    .await
}
