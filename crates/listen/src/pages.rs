//! Serves HTTP for operators and tools.

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::Context,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service;

use crate::{
    Acceptor, Connection, Framing, Guarded, GuardedCall, Http2, RequestBody, ResponseBody, guard_request,
};

/// Streams at one time on one connection.
const STREAMS: u32 = 128;
/// The most bytes of the headers of a request of HTTP/1.1; more are refused with 431.
const HEADERS: usize = 16 * 1024;

/// Accepts HTTP for operators and tools.
#[derive(Debug)]
pub struct PageListener {
    listener: TcpListener,
    acceptor: Acceptor,
}

impl PageListener {
    /// Listens on `address`, within the limits of `acceptor`.
    ///
    /// # Errors
    /// When the system refuses.
    pub async fn bind(address: SocketAddr, acceptor: Acceptor) -> io::Result<Self> {
        Ok(Self::new(TcpListener::bind(address).await?, acceptor))
    }

    /// Accepts from a listener that is bound already.
    pub const fn new(listener: TcpListener, acceptor: Acceptor) -> Self {
        Self { listener, acceptor }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves HTTP/1.1 and HTTP/2 until `stopping`; returns once every connection has ended.
    pub async fn serve<S, B>(self, service: S, stopping: CancellationToken)
    where
        S: Service<Request<RequestBody<Incoming>>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Self { listener, acceptor } = self;
        let connections = TaskTracker::new();
        let accept = |cx: &mut Context<'_>| listener.poll_accept(cx).map_ok(|(stream, _)| stream);
        while let Some(stream) = stopping.run_until_cancelled(acceptor.accept(accept)).await {
            connections.spawn(serve_connection(stream, service.clone(), stopping.clone()));
        }
        drop(listener);
        connections.close();
        connections.wait().await;
    }
}

async fn serve_connection<S, B>(stream: Guarded<TcpStream>, inner: S, stopping: CancellationToken)
where
    S: Service<Request<RequestBody<Incoming>>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // It has been accepted.
    let Some(connection) = stream.connection().cloned() else { return };
    // Fails only on a socket that is already broken, which the first read will say better.
    let _ = stream.get_ref().set_nodelay(true);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    Http2 { streams: STREAMS }.apply(&mut builder);
    // The acceptor bounds the time of headers: hyper's limit would also end connections that are idle.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(HEADERS);
    let service = Pages { inner, connection };
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = stopping.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a connection ended early");
    }
}

/// Guards the requests of one connection.
struct Pages<S> {
    inner: S,
    connection: Arc<Connection>,
}

impl<S, B> hyper::service::Service<Request<Incoming>> for Pages<S>
where
    S: Service<Request<RequestBody<Incoming>>, Response = Response<B>, Error = Infallible> + Clone,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<ResponseBody<B>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let framing = Framing::whole(&request);
        let (mut request, guard) = guard_request(&self.connection, request, framing);
        request.extensions_mut().insert(guard.clone());
        // Routers are always ready, as hyper's own adapter takes for granted of all services.
        Box::pin(GuardedCall::http(self.inner.clone().call(request), guard))
    }
}
