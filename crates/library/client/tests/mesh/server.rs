//! A scripted HTTP server: HTTP/1.1 and HTTP/2 on one port, with drain and kill.

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use fairmesh_client::BoxError;
use fairmesh_test_support::free_port;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

pub(crate) type Answer = Pin<Box<dyn Future<Output = Response<Full<Bytes>>> + Send>>;

/// A test server with its counters.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    drain: CancellationToken,
    kill: CancellationToken,
}

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) connections: AtomicUsize,
    pub(crate) open: AtomicUsize,
    pub(crate) requests: AtomicUsize,
}

impl Server {
    /// Serves the responses of `answer`.
    pub(crate) async fn start<A, F>(answer: A) -> Self
    where
        A: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.unwrap(), answer)
    }

    /// Serves the responses of `answer` on accepted and later connections.
    pub(crate) fn start_on<A, F>(listener: TcpListener, answer: A) -> Self
    where
        A: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let address = listener.local_addr().unwrap();
        let (drain, kill) = (CancellationToken::new(), CancellationToken::new());
        let seen = Arc::new(Seen::default());
        let server = Self { address, seen: seen.clone(), drain: drain.clone(), kill: kill.clone() };
        let answer = move |request| -> Answer { Box::pin(answer(request)) };
        tokio::spawn(async move {
            loop {
                let stream = tokio::select! {
                    () = drain.cancelled() => return,
                    () = kill.cancelled() => return,
                    accepted = listener.accept() => accepted.unwrap().0,
                };
                let (seen, drain, kill) = (seen.clone(), drain.clone(), kill.clone());
                tokio::spawn(connection(stream, answer.clone(), seen, drain, kill));
            }
        });
        server
    }

    /// Starts a server that responds with its name, the method, the path and the body.
    pub(crate) async fn echo(name: &'static str) -> Self {
        Self::start(move |request: Request<Bytes>| async move {
            let body = String::from_utf8_lossy(request.body());
            text(200, format!("{name} {} {} {body}", request.method(), request.uri().path()))
        })
        .await
    }

    /// Stops listening and sends GOAWAY on every connection. Calls in flight finish.
    pub(crate) fn drain(&self) {
        self.drain.cancel();
    }

    /// Kills the server: every connection breaks at once.
    pub(crate) fn kill(&self) {
        self.kill.cancel();
    }

    pub(crate) fn requests(&self) -> usize {
        self.seen.requests.load(Relaxed)
    }

    pub(crate) fn connections(&self) -> usize {
        self.seen.connections.load(Relaxed)
    }

    pub(crate) fn open(&self) -> usize {
        self.seen.open.load(Relaxed)
    }
}

/// Serves a tower service over either protocol. Returns its address.
pub(crate) async fn serve<S, B>(service: S) -> SocketAddr
where
    S: tower::Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let stream = TokioIo::new(listener.accept().await.unwrap().0);
            let service = TowerToHyperService::new(service.clone());
            let builder = auto::Builder::new(TokioExecutor::new());
            tokio::spawn(async move { builder.serve_connection(stream, service).await.map_err(drop) });
        }
    });
    address
}

async fn connection(
    stream: TcpStream,
    answer: impl Fn(Request<Bytes>) -> Answer + Clone + Send + Sync + 'static,
    seen: Arc<Seen>,
    drain: CancellationToken,
    kill: CancellationToken,
) {
    seen.connections.fetch_add(1, Relaxed);
    seen.open.fetch_add(1, Relaxed);
    let counted = seen.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        counted.requests.fetch_add(1, Relaxed);
        let answer = answer.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            Ok::<_, Infallible>(answer(Request::from_parts(head, body)).await)
        }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        () = kill.cancelled() => {}
        () = drain.cancelled() => {
            serving.as_mut().graceful_shutdown();
            tokio::select! { () = kill.cancelled() => {}, _ = serving => {} }
        }
        _ = &mut serving => {}
    }
    seen.open.fetch_sub(1, Relaxed);
}

pub(crate) fn text(status: u16, text: impl Into<String>) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::new(Bytes::from(text.into()))).unwrap()
}

/// Returns an address without a listener.
pub(crate) async fn nobody() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}
