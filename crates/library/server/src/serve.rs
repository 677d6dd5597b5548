//! A server for hyper, axum and tonic services that stops without losing a call.

mod caller_connection;
mod caller_service;
pub(crate) mod incoming_streams;

use std::{error::Error, io, pin::pin, task::Context, time::Duration};

use bytes::Bytes;
use fairmesh_listen::{Acceptor, Limits, Memory};
use fairmesh_wire::transport::Stream;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    net::TcpListener,
    time::{Instant, timeout_at},
};
use tokio_util::task::TaskTracker;
use tower_layer::Layer as _;
use tower_service::Service;

pub use self::caller_connection::{CallerConnection, CallerLayer};
use crate::{MeshServer, SpiffeId, drain::Phase, terminated};

/// Interval of HTTP/2 keep-alive PINGs, and their timeout. The sum bounds the time until connections of vanished
/// callers close.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// Receive window of a stream, in bytes.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Receive window of a connection, in bytes. It exceeds the sum of its streams' windows, so that an unread request
/// does not stall other requests.
const CONNECTION_WINDOW: u32 = 1 << 30;

/// Maximum time for idle connections to close once the endpoint is deregistered.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves HTTP/1.1 and HTTP/2 (with prior knowledge, so gRPC too) behind [`MeshServer::layer`] until SIGTERM, SIGINT or
/// [`MeshServer::shutdown`]. Then drains, and returns when the endpoint is deregistered and every connection is closed,
/// at the latest at the drain deadline.
///
/// A connection that has not sent its preface or the headers of a request within 10 s is closed. If connections use
/// more than half of the process's file descriptors, quiet connections are closed in favour of new ones
/// (`docs/limits.md`).
///
/// `service` is any hyper service: a `tower::service_fn`, an `axum::Router`, or tonic's `Routes`. It must not have the
/// layer already.
///
/// # Errors
/// The listener has no local address.
pub async fn serve_http<S, B>(listener: TcpListener, service: S, server: &MeshServer) -> io::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    server.drain_on(terminated());
    let service = server.layer().layer(service);
    let serve = {
        let server = server.clone();
        move |connection| serve_connection(connection, service.clone(), server.clone())
    };
    serve_connections(listener, server, Limits::program(), serve).await
}

/// Accepts connections until the server closes them, and lets `serve` serve each one after its handshake. Returns when
/// the endpoint is deregistered and all connections have ended. `limits` bound the connections. The service of each
/// connection must be wrapped in [`CallerConnection::layer`] and [`MeshServer::layer`].
///
/// # Errors
/// As for [`serve_http`].
pub async fn serve_connections<F>(
    listener: TcpListener,
    server: &MeshServer,
    limits: Limits,
    serve: impl Fn(CallerConnection) -> F + Clone + Send + 'static,
) -> io::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    tracing::debug!(address = %listener.local_addr()?, "serving");
    let connections = TaskTracker::new();
    let mut draining = pin!(server.draining());
    let acceptor = Acceptor::new("program", limits, Memory::default());
    loop {
        let accept =
            |cx: &mut Context<'_>| listener.poll_accept(cx).map_ok(|(stream, _)| Stream::Tcp(stream));
        let stream = tokio::select! {
            stream = acceptor.accept(accept) => stream,
            () = &mut draining => break,
        };
        let (server, serve) = (server.clone(), serve.clone());
        connections.spawn(async move {
            match CallerConnection::establish(stream, &server).await {
                Ok(connection) => serve(connection).await,
                Err(error) => tracing::debug!(%error, "a connection ended before it began"),
            }
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
    server.shutdown().await;
    Ok(())
}

async fn serve_connection<S, B>(connection: CallerConnection, service: S, server: MeshServer)
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let service = connection.layer().layer(service);
    let (interval, patience) = KEEP_ALIVE;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // The acceptor limits the time for headers. hyper's limit would also run while a kept-alive connection is idle, and
    // close connections that callers are about to use.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
    let mut http2 = builder.http2();
    http2.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    http2.timer(TokioTimer::new()).keep_alive_interval(interval).keep_alive_timeout(patience);
    let service = TowerToHyperService::new(service);
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(connection), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        end = server.closing() => {
            connection.as_mut().graceful_shutdown();
            timeout_at(end, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a connection ended early");
    }
}

impl MeshServer {
    /// The identity by which callers know this server, if it has one.
    #[doc(hidden)]
    pub fn identity(&self) -> Option<SpiffeId> {
        self.inner.transport.id()
    }

    /// Resolves when connections must be closed gracefully. Returns the time at which open connections are cut off.
    #[doc(hidden)]
    pub async fn closing(&self) -> Instant {
        self.draining().await;
        match *self.inner.phase.borrow() {
            Phase::Closing(end) => end,
            // Nothing is in flight; only GOAWAY or the close remains.
            _ => Instant::now() + CLOSE_TIMEOUT,
        }
    }
}
