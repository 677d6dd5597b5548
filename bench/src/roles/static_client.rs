//! The peer: the same hyper stack with hard-coded addresses and a random pick. The cost of a mesh is measured against
//! it, so it does nothing that a careful programmer without a mesh could leave out.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use fairmesh_model::arith::mix64;
use http_body::{Frame, SizeHint};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower::Service;

use super::handwritten_tls;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Answer<B> = Pin<Box<dyn Future<Output = Result<http::Response<B>, BoxError>> + Send>>;

/// HTTP/1.1 client with idle connections by server.
#[derive(Clone)]
pub(super) struct Http1 {
    servers: Arc<[Server]>,
    seed: Arc<AtomicU64>,
}

struct Server {
    address: SocketAddr,
    tls: Option<TlsConnector>,
    idle: Mutex<Vec<http1::SendRequest<Full<Bytes>>>>,
}

impl Http1 {
    /// Creates a client of these servers.
    pub(super) fn new(addresses: &[SocketAddr], tls: Option<TlsConnector>) -> Self {
        let server =
            |address: &SocketAddr| Server { address: *address, tls: tls.clone(), idle: Mutex::default() };
        Self { servers: addresses.iter().map(server).collect(), seed: Arc::default() }
    }
}

impl Server {
    async fn connection(&self) -> Result<http1::SendRequest<Full<Bytes>>, BoxError> {
        if let Some(idle) = self.take() {
            return Ok(idle);
        }
        let socket = TcpStream::connect(self.address).await?;
        socket.set_nodelay(true)?;
        let Some(tls) = &self.tls else {
            let (sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
            tokio::spawn(connection);
            return Ok(sender);
        };
        let stream = tls.connect(handwritten_tls::name(), socket).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    fn take(&self) -> Option<http1::SendRequest<Full<Bytes>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give_back(&self, sender: http1::SendRequest<Full<Bytes>>) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
    }
}

impl Service<http::Request<Full<Bytes>>> for Http1 {
    type Response = http::Response<Returning>;
    type Error = BoxError;
    type Future = Answer<Returning>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Full<Bytes>>) -> Self::Future {
        let pick = draw(&self.seed, self.servers.len());
        let servers = self.servers.clone();
        Box::pin(async move {
            let mut sender = servers[pick].connection().await?;
            sender.ready().await?;
            request.headers_mut().insert(http::header::HOST, http::HeaderValue::from_static("echo.bench"));
            let response = sender.send_request(request).await?;
            Ok(response.map(|body| Returning { body, connection: Some((sender, servers, pick)) }))
        })
    }
}

/// A borrowed connection, with its servers and its index among them.
type Lent = (http1::SendRequest<Full<Bytes>>, Arc<[Server]>, usize);

/// A response body that returns its connection at its end.
pub(super) struct Returning {
    body: Incoming,
    connection: Option<Lent>,
}

impl http_body::Body for Returning {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        if (frame.is_none() || self.body.is_end_stream())
            && let Some((sender, servers, pick)) = self.connection.take()
        {
            servers[pick].give_back(sender);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// HTTP/2 client with one connection per server, opened before the first call.
pub(super) struct Http2<B> {
    servers: Arc<[http2::SendRequest<B>]>,
    seed: Arc<AtomicU64>,
}

impl<B> Clone for Http2<B> {
    fn clone(&self) -> Self {
        Self { servers: Arc::clone(&self.servers), seed: Arc::clone(&self.seed) }
    }
}

impl<B> Http2<B>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static,
{
    /// Connects to these servers.
    pub(super) async fn connect(
        addresses: &[SocketAddr],
        tls: Option<TlsConnector>,
    ) -> Result<Self, BoxError> {
        let mut servers = Vec::new();
        for address in addresses {
            let socket = TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.initial_stream_window_size(1 << 20).initial_connection_window_size(4 << 20);
            let sender = match &tls {
                Some(tls) => {
                    let stream = tls.connect(handwritten_tls::name(), socket).await?;
                    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
                    tokio::spawn(connection);
                    sender
                }
                None => {
                    let (sender, connection) = builder.handshake(TokioIo::new(socket)).await?;
                    tokio::spawn(connection);
                    sender
                }
            };
            servers.push(sender);
        }
        Ok(Self { servers: servers.into(), seed: Arc::default() })
    }
}

impl<B> Service<http::Request<B>> for Http2<B>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
{
    type Response = http::Response<Incoming>;
    type Error = BoxError;
    type Future = Answer<Incoming>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let mut sender = self.servers[draw(&self.seed, self.servers.len())].clone();
        Box::pin(async move { Ok(sender.send_request(request).await?) })
    }
}

fn draw(seed: &AtomicU64, servers: usize) -> usize {
    let random = mix64(seed.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed));
    (random % servers as u64) as usize
}
