//! The tower layer around a service.

use std::{
    future::Future,
    pin::Pin,
    str,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_model::{Invalid, ShardKey};
use hazarc::AtomicOptionArc;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tonic::Code;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    Outstanding, ServerBody,
    load::{CallGuard, Load},
    ownership::Ownership,
    report,
    work::Keyed,
};
use crate::headers::{Deadline, GRPC_STATUS, KEY, LOAD_PATH, ROLE, WRONG_SHARD, is_grpc};

/// What every call needs, shared by all copies of the layer.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) load: Arc<Load>,
    /// `None` while no shard map is known: then every key is answered, since a refusal without a map could only hurt.
    pub(super) ownership: AtomicOptionArc<Ownership>,
}

/// Wraps the service of a hyper, axum or tonic server; from [`Server::layer`](super::Server::layer).
///
/// It counts outstanding calls, adds a load report to each answer (header `endpoint-load-metrics`, for gRPC trailer
/// `endpoint-load-metrics-bin`; ORCA, A9) and refuses calls whose `x-fairmesh-key` and `x-fairmesh-role` belong to
/// another server: HTTP 421, or gRPC `FAILED_PRECONDITION`, with `fairmesh-wrong-shard: <map version>` (S12). A call
/// without a key, with one that is no number, or that comes before any map is known, passes.
///
/// The report holds what the layer counts and measures and what [`metric`](Self::metric) was told, and beside it what the
/// service wrote in a report of its own, where that is well formed. A service that passes on answers of others should take
/// their reports out.
///
/// A `GET` for [`LOAD_PATH`] is answered by the layer with the load alone (S26), and counts nowhere.
///
/// A call that says by when its caller wants the answer, in `x-fairmesh-deadline` or `grpc-timeout`, has a [`Deadline`]
/// among its extensions. The layer ends no call by it: hand it to [`ServiceHandle::deadline`](crate::ServiceHandle::deadline)
/// of the services called on its behalf.
///
/// The default value counts and reports but knows no shards: for programs that something else registers.
///
/// A connection that was upgraded (WebSocket) counts until the upgrade only.
#[derive(Clone, Debug, Default)]
pub struct ServerLayer {
    pub(super) shared: Arc<Shared>,
}

impl ServerLayer {
    /// What the wrapped services are working on now.
    pub fn outstanding(&self) -> Outstanding {
        self.shared.load.outstanding()
    }

    /// Reports a metric of the program's own, such as the length of its queue, in every answer from now on, until it is set anew.
    /// Cheap: set it whenever it changes; thousandths are kept. A policy with `signal: metric:NAME` shares calls so that it
    /// becomes equal everywhere: it must grow with the load.
    ///
    /// # Errors
    /// Where callers could not go by it: the name is not one of 1 to 63 letters, digits, `_`, `-`, `.`, is what the layer reports
    /// itself, or would be the ninth; the value is not finite, is negative, or above 4,000,000. The metric stays as it was.
    pub fn metric(&self, name: &str, value: f64) -> Result<(), Invalid> {
        self.shared.load.metrics().set(name, value)
    }
}

impl<S> Layer<S> for ServerLayer {
    type Service = ServerService<S>;

    fn layer(&self, inner: S) -> ServerService<S> {
        ServerService { inner, shared: Arc::clone(&self.shared) }
    }
}

/// A service behind [`ServerLayer`].
#[derive(Clone, Debug)]
pub struct ServerService<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S, A, B> Service<Request<A>> for ServerService<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    B: Body<Data = Bytes>,
{
    type Response = Response<ServerBody<B>>;
    type Error = S::Error;
    type Future = ServerFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<A>) -> ServerFuture<S::Future> {
        if request.uri().path() == LOAD_PATH && request.method() == Method::GET {
            return ServerFuture { state: State::Asked { load: Arc::clone(&self.shared.load) } };
        }
        let grpc = is_grpc(request.headers());
        let key = key(request.headers());
        if let Some(version) = key.and_then(|key| self.shared.refuses(key, request.headers())) {
            let load = Arc::clone(&self.shared.load);
            return ServerFuture { state: State::Refused { version, grpc, load } };
        }
        if let Some(deadline) = Deadline::read(request.headers()) {
            request.extensions_mut().insert(deadline);
        }
        let guard = Some(self.shared.load.begin(key.map(|key| Keyed::begin(&self.shared, key))));
        ServerFuture { state: State::Calling { future: self.inner.call(request), guard, grpc } }
    }
}

impl Shared {
    /// The version of the map by which a call for `key` does not belong here, or `None` where it does.
    fn refuses(&self, key: ShardKey, headers: &HeaderMap) -> Option<u64> {
        let ownership = self.ownership.load();
        let ownership = ownership.as_ref()?;
        let role = headers.get(ROLE).and_then(|role| str::from_utf8(role.as_bytes()).ok());
        (!ownership.holds(key, role)).then(|| ownership.version())
    }
}

/// The key that a call is for, where it says one.
fn key(headers: &HeaderMap) -> Option<ShardKey> {
    str::from_utf8(headers.get(KEY)?.as_bytes()).ok()?.parse().ok()
}

pin_project! {
    /// The answer of a [`ServerService`] to come.
    #[derive(Debug)]
    pub struct ServerFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProjection]
    enum State<F> {
        Calling { #[pin] future: F, guard: Option<CallGuard>, grpc: bool },
        Refused { version: u64, grpc: bool, load: Arc<Load> },
        Asked { load: Arc<Load> },
    }
}

impl<F, B, E> Future for ServerFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<ServerBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Calling { future, guard, grpc } => {
                let answer = ready!(future.poll(cx))?;
                Poll::Ready(Ok(reported(answer, *grpc, guard.take())))
            }
            StateProjection::Refused { version, grpc, load } => {
                Poll::Ready(Ok(wrong_shard(*version, *grpc, load)))
            }
            StateProjection::Asked { load } => Poll::Ready(Ok(load_alone(load))),
        }
    }
}

/// Adds the report to the head where it belongs there; the body adds it to gRPC trailers.
fn reported<B>(mut answer: Response<B>, grpc: bool, guard: Option<CallGuard>) -> Response<ServerBody<B>> {
    let headers = answer.headers_mut();
    // The service ran. What it passes on from a server that it called itself must not read as "not carried out" here.
    headers.remove(WRONG_SHARD);
    if let Some(guard) = &guard {
        if !grpc {
            report::add_text(headers, guard.report());
        } else if headers.contains_key(GRPC_STATUS) {
            report::add_binary(headers, guard.report());
        }
    }
    answer.map(|body| ServerBody::of(body, grpc, guard))
}

/// The answer to whoever asks for the load.
fn load_alone<B>(load: &Load) -> Response<ServerBody<B>> {
    let mut answer = Response::new(ServerBody::text(""));
    *answer.status_mut() = StatusCode::NO_CONTENT;
    report::add_text(answer.headers_mut(), load.report());
    answer
}

/// The answer to a call for a key of another server.
fn wrong_shard<B>(version: u64, grpc: bool, load: &Load) -> Response<ServerBody<B>> {
    const TEXT: &str = "this server does not hold the shard of x-fairmesh-key in that role; \
        fairmesh-wrong-shard names the version of the shard map that it goes by\n";
    // gRPC percent-encodes what is not printable ASCII; this is.
    const MESSAGE: &str = "this server does not hold the shard of x-fairmesh-key in that role";
    let mut answer = Response::new(ServerBody::text(if grpc { "" } else { TEXT }));
    if !grpc {
        *answer.status_mut() = StatusCode::MISDIRECTED_REQUEST;
    }
    let headers = answer.headers_mut();
    headers.insert(WRONG_SHARD, HeaderValue::from(version));
    if grpc {
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, HeaderValue::from(Code::FailedPrecondition as i32));
        headers.insert("grpc-message", HeaderValue::from_static(MESSAGE));
        report::add_binary(headers, load.report());
    } else {
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        report::add_text(headers, load.report());
    }
    answer
}
