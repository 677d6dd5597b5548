//! Serves the HTTP pages for operators and tools.

use std::{
    convert::Infallible,
    future::{Future, poll_fn, ready},
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Extensions, Request, Response, header::USER_AGENT};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service;

use crate::{
    Acceptor, Connection, Framing, GuardedCall, GuardedStream, Http2Settings, RequestBody, ResponseBody,
    guard_request,
};

/// Maximum number of concurrent streams per connection.
const MAX_STREAMS: u32 = 128;
/// Maximum size of the headers of an HTTP/1.1 request, in bytes. Larger headers get a 431.
const MAX_HEADER_BYTES: usize = 16 * 1024;

/// Time that a connection accepted before the stop has for its first request. The client cannot know of the stop, and a successor
/// may serve the same address: a refused request would be the only sign of an upgrade.
const FIRST_REQUEST: Duration = Duration::from_millis(300);

/// Accepts HTTP connections of operators and tools.
#[derive(Debug)]
pub struct PageListener {
    listener: TcpListener,
    acceptor: Acceptor,
    refused_user_agent: Option<&'static str>,
}

impl PageListener {
    /// Listens on `address`, within the limits of `acceptor`.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn bind(address: SocketAddr, acceptor: Acceptor) -> io::Result<Self> {
        Ok(Self::new(TcpListener::bind(address).await?, acceptor))
    }

    /// Wraps a bound listener.
    pub const fn new(listener: TcpListener, acceptor: Acceptor) -> Self {
        Self { listener, acceptor, refused_user_agent: None }
    }

    /// Refuses requests with the user agent of health checks, with 403. The result of a health check then never
    /// contains the content of these pages.
    #[must_use]
    pub fn refusing(self, user_agent: &'static str) -> Self {
        Self { refused_user_agent: Some(user_agent), ..self }
    }

    /// The listening address.
    ///
    /// # Errors
    /// The system does not report the address.
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
        let plain = |stream| -> Securing<TcpStream> { Box::pin(ready(Ok((stream, Extensions::new())))) };
        self.serve_secured(service, plain, stopping).await;
    }

    /// Like [`serve`](Self::serve), over connections that `secure` establishes. Each connection is established in its
    /// own task. The extensions about the peer that `secure` returns are added to each request.
    pub async fn serve_secured<S, B, T, F>(self, service: S, secure: F, stopping: CancellationToken)
    where
        S: Service<Request<RequestBody<Incoming>>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Fn(GuardedStream<TcpStream>) -> Securing<T>,
    {
        let Self { listener, acceptor, refused_user_agent } = self;
        let connections = TaskTracker::new();
        let accept = |cx: &mut Context<'_>| listener.poll_accept(cx).map_ok(|(stream, _)| stream);
        while let Some(stream) = stopping.run_until_cancelled(acceptor.accept(accept)).await {
            // Fails only on a broken socket, for which the first read reports a better error.
            let _ = stream.get_ref().set_nodelay(true);
            let service = (service.clone(), refused_user_agent);
            connections.spawn(serve_connection(secure(stream), service, stopping.clone()));
        }
        drop(listener);
        connections.close();
        connections.wait().await;
    }
}

/// A connection that is being established, with the extensions that describe its peer.
pub type Securing<T> = Pin<Box<dyn Future<Output = io::Result<(GuardedStream<T>, Extensions)>> + Send>>;

async fn serve_connection<S, B, T>(
    secured: Securing<T>,
    (inner, refused_user_agent): (S, Option<&'static str>),
    stopping: CancellationToken,
) where
    S: Service<Request<RequestBody<Incoming>>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let secured = tokio::select! {
        // Polled first: a plaintext connection is established at once.
        biased;
        secured = secured => secured,
        () = stopping.cancelled() => return,
    };
    let (stream, peer) = match secured {
        Ok(established) => established,
        Err(error) => return tracing::debug!(%error, "a connection ended before it began"),
    };
    // An accepted connection always has this state.
    let Some(connection) = stream.connection().cloned() else { return };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    Http2Settings { streams: MAX_STREAMS }.apply(&mut builder);
    // The acceptor limits the time for headers; hyper's own timeout would also close idle connections.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(MAX_HEADER_BYTES);
    let service = Pages { inner, connection: Arc::clone(&connection), refused_user_agent, peer };
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let running = tokio::select! {
        ended = served.as_mut() => Some(ended),
        () = stopping.cancelled() => None,
    };
    let ended = match running {
        Some(ended) => ended,
        None => match serve_first_request(served.as_mut(), &connection).await {
            Some(ended) => ended,
            None => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        },
    };
    if let Err(error) = ended {
        tracing::debug!(error, "connection failed");
    }
}

/// Serves a connection until its first request has begun, for [`FIRST_REQUEST`] at most. Returns the result if the connection has ended.
async fn serve_first_request<F: Future>(
    mut served: Pin<&mut F>,
    connection: &Connection,
) -> Option<F::Output> {
    let begun = poll_fn(|cx| match served.as_mut().poll(cx) {
        Poll::Ready(ended) => Poll::Ready(Some(ended)),
        Poll::Pending if connection.has_begun_request() => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    });
    timeout(FIRST_REQUEST, begun).await.ok().flatten()
}

/// Guards the requests of one connection.
struct Pages<S> {
    inner: S,
    connection: Arc<Connection>,
    refused_user_agent: Option<&'static str>,
    /// Extensions about the peer, for handlers.
    peer: Extensions,
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
        let user_agent = request.headers().get(USER_AGENT);
        if self.refused_user_agent.is_some_and(|refused| user_agent.is_some_and(|agent| agent == refused)) {
            drop(self.connection.begin_request());
            return Box::pin(async { Ok(ResponseBody::forbidden()) });
        }
        let framing = Framing::whole(&request);
        let (mut request, guard) = guard_request(&self.connection, request, framing);
        request.extensions_mut().insert(guard.clone());
        request.extensions_mut().extend(self.peer.clone());
        // Routers are always ready; hyper's own adapter assumes this of every service.
        Box::pin(GuardedCall::http(self.inner.clone().call(request), guard))
    }
}

#[cfg(test)]
mod tests {
    use std::future::Ready;

    use http_body_util::Full;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        task::yield_now,
    };

    use super::*;
    use crate::{Limits, Memory};

    #[derive(Clone)]
    struct Page;

    impl Service<Request<RequestBody<Incoming>>> for Page {
        type Response = Response<Full<Bytes>>;
        type Error = Infallible;
        type Future = Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _request: Request<RequestBody<Incoming>>) -> Self::Future {
            ready(Ok(Response::new(Full::from("a page"))))
        }
    }

    #[tokio::test]
    async fn connection_accepted_before_stop_serves_its_first_request() {
        let acceptor = Acceptor::new("test", Limits::pages(), Memory::default());
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = PageListener::bind(any, acceptor.clone()).await.unwrap();
        let (address, stopping) = (listener.local_addr().unwrap(), CancellationToken::new());
        let served = tokio::spawn(listener.serve(Page, stopping.clone()));
        let mut client = TcpStream::connect(address).await.unwrap();
        while acceptor.shared().open() == 0 {
            yield_now().await;
        }
        stopping.cancel();
        // The listener's tasks notice the stop before the request.
        for _ in 0..10 {
            yield_now().await;
        }
        client.write_all(b"GET / HTTP/1.1\r\nhost: page\r\n\r\n").await.unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("a page"), "{response}");
        served.await.unwrap();
    }
}
