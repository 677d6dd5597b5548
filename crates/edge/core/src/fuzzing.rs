//! Entry points of fuzz targets: they serve a connection over any stream as the proxy does, with responses
//! that the fuzz target chooses.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_calls::{BoxError, Fault};
use fairmesh_http::h2;
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, copy, split};

use crate::{
    http1::{
        connection::Connection,
        connection_end::{ConnectionEnd, ConnectionParts},
        request_body::IncomingBody,
        serve,
        upgraded_stream::OnUpgrade,
    },
    http2::{
        rapid_reset::RapidResetGuard,
        response_stall::{ResponseBody, StallMonitor},
    },
    metrics::connections::ConnectionMetrics,
    shutdown::Shutdown,
    tunnel::prefixed_io::PrefixedIo,
};

/// Time limit of request headers; the default of [`Limits`](crate::limits::Limits).
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// Body of an HTTP/1.1 or HTTP/2 request.
pub type RequestBody = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

/// Whether the connection of a request may be upgraded. The server then echoes what the client sends.
pub fn may_switch(request: &Request<RequestBody>) -> bool {
    request.extensions().get::<OnUpgrade>().is_some()
}

/// Serves a connection until it ends.
pub async fn serve<I, A, F, B>(stream: I, handler: A)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<RequestBody>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Fault> + Unpin + Send + 'static,
{
    let shutdown = Shutdown::default();
    let own = |request: Request<IncomingBody<ReadHalf<I>>>| handler(boxed(request));
    let (reader, writer) = split(stream);
    match serve::serve(Connection::new(reader, writer, IDLE_TIMEOUT), &shutdown, &own).await {
        ConnectionEnd::Http2(ConnectionParts { reader, writer, read }) => {
            http2(reader.unsplit(writer), read, handler).await
        }
        ConnectionEnd::Upgraded(ConnectionParts { reader, writer, read }, _) => {
            let (mut said, mut hears) = split(PrefixedIo::new(read, reader.unsplit(writer)));
            // The client side observes the outcome.
            let _ = copy(&mut said, &mut hears).await;
        }
        ConnectionEnd::Closed | ConnectionEnd::Failed(_) => {}
    }
}

/// Serves HTTP/2 with the guards of the proxy.
async fn http2<I, A, F, B>(stream: I, read: bytes::BytesMut, handler: A)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<RequestBody>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Fault> + Unpin + Send + 'static,
{
    type ResponseFuture<B> = Pin<Box<dyn Future<Output = Response<ResponseBody<B>>> + Send>>;

    let (metrics, responses, guard) =
        (ConnectionMetrics::default(), Arc::new(StallMonitor::default()), Arc::<RapidResetGuard>::default());
    let (monitor, requests) = (Arc::clone(&responses), Arc::clone(&guard));
    let service = move |request: Request<h2::RequestBody>| -> ResponseFuture<B> {
        let (responses, pending) = (Arc::clone(&monitor), requests.start_request());
        let response = handler(boxed(request));
        Box::pin(async move {
            let response = response.await;
            pending.responded();
            responses.monitor(response)
        })
    };
    tokio::select! {
        // The client side observes the outcome.
        _ = h2::ServerConnection::new(stream, read, service) => {}
        never = responses.close_stalled(IDLE_TIMEOUT, &metrics) => match never {},
        () = guard.tripped() => {}
    }
}

fn boxed<B>(request: Request<B>) -> Request<RequestBody>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    use http_body_util::BodyExt as _;
    request.map(|body| body.map_err(Into::into).boxed_unsync())
}
