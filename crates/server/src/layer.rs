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
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep_until};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    Admission, Outstanding, ServerBody,
    gate::{Gate, Timed},
    load::{CallGuard, Load},
    ownership::Ownership,
    refusal::Refusal,
    report,
    work::Keyed,
};
use fairmesh_headers::{Caller, Deadline, GRPC_STATUS, KEY, LOAD_PATH, ROLE, read_deadline};

/// What every call needs, shared by all copies of the layer.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) load: Arc<Load>,
    /// `None` while no shard map is known: then every key is answered, since a refusal without a map could only hurt.
    pub(super) ownership: AtomicOptionArc<Ownership>,
    /// Whether calls are carried on with after their deadline.
    pub(super) finishes_late: bool,
    pub(super) gate: Gate,
}

/// Wraps the service of a hyper, axum or tonic server; from [`Server::layer`](super::Server::layer).
///
/// It counts outstanding calls, adds a load report to each answer (header `endpoint-load-metrics`, for gRPC trailer
/// `endpoint-load-metrics-bin`; ORCA, as in Uber, assisted balancing) and refuses calls whose `x-fairmesh-key` and `x-fairmesh-role` belong to
/// another server: HTTP 421, or gRPC `FAILED_PRECONDITION`, with `fairmesh-wrong-shard: <map version>` (ServiceRouter §4.1). A call
/// without a key, with one that is no number, or that comes before any map is known, passes.
///
/// The report holds what the layer counts and measures and what [`metric`](Self::metric) was told, and beside it what the
/// service wrote in a report of its own, where that is well formed. A service that passes on answers of others should take
/// their reports out.
///
/// A `GET` for [`LOAD_PATH`] is answered by the layer with the load alone (ServiceRouter §3.4.3), and counts nowhere.
///
/// A call that says by when its caller wants the answer, in `x-fairmesh-deadline` or `grpc-timeout`, has a [`Deadline`]
/// among its extensions: hand it to [`ServiceHandle::deadline`](crate::ServiceHandle::deadline) of the services called on its
/// behalf. It counts from when the layer got the request, so that waiting behind it counts too. Where it passes before the head
/// of the answer is there, or before a gRPC answer is complete, the service's future is dropped, as when a caller goes away, and
/// the layer answers: 504, or gRPC `DEADLINE_EXCEEDED` (ServiceRouter §4.1). What the service has spawned goes on.
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

    /// What was let in, and what not.
    pub fn admission(&self) -> Admission {
        let (Shared { gate, load, .. }, refusals) = (&*self.shared, self.shared.load.refusals());
        let outstanding = load.outstanding();
        Admission { limit: gate.limit(), outstanding, refused: refusals.overloaded(), late: refusals.late() }
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
        let caller = Caller::of(request.headers());
        let key = key(request.headers());
        if let Some(version) = key.and_then(|key| self.shared.refuses(key, request.headers())) {
            return self.refuse(Refusal::WrongShard(version), caller);
        }
        let left = read_deadline(request.headers());
        if left.is_some_and(|left| left.is_zero()) && !self.shared.finishes_late {
            return self.refuse(Refusal::Late, caller);
        }
        let deadline = left.and_then(Deadline::after);
        if let Some(deadline) = deadline {
            request.extensions_mut().insert(deadline);
        }
        let keyed = || key.map(|key| Keyed::begin(&self.shared, key));
        let Some((guard, timed)) = self.shared.enter(keyed) else {
            return self.refuse(Refusal::Overloaded, caller);
        };
        let deadline = deadline.filter(|_| !self.shared.finishes_late);
        let call = Call { guard: Some(guard), caller, deadline };
        ServerFuture { state: State::Calling { future: self.inner.call(request), call, alarm: None, timed } }
    }
}

impl<S> ServerService<S> {
    fn refuse<F>(&self, refusal: Refusal, caller: Caller) -> ServerFuture<F> {
        ServerFuture { state: State::Refused { refusal, caller, load: Arc::clone(&self.shared.load) } }
    }
}

impl Shared {
    /// Lets a call in where both bounds do.
    fn enter(self: &Arc<Self>, keyed: impl FnOnce() -> Option<Keyed>) -> Option<(CallGuard, Option<Timed>)> {
        let timed = Timed::begin(self).ok()?;
        Some((self.load.enter(&self.gate, keyed)?, timed))
    }

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

/// What is known of a call that the service works on.
#[derive(Debug)]
pub(super) struct Call {
    /// Until when it counts.
    pub(super) guard: Option<CallGuard>,
    pub(super) caller: Caller,
    /// When it is cut off.
    pub(super) deadline: Option<Deadline>,
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProjection]
    enum State<F> {
        // The alarm is made when the service first keeps the caller waiting, which many never do.
        Calling { #[pin] future: F, call: Call, alarm: Option<Pin<Box<Sleep>>>, timed: Option<Timed> },
        Refused { refusal: Refusal, caller: Caller, load: Arc<Load> },
        Asked { load: Arc<Load> },
        Over,
    }
}

impl<F, B, E> Future for ServerFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<ServerBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        let answer = match state.as_mut().project() {
            StateProjection::Calling { future, call, alarm, timed } => match future.poll(cx) {
                Poll::Ready(answer) => {
                    let answer = answer?;
                    if let Some(timed) = timed.take() {
                        timed.answered(answer.status(), answer.headers());
                    }
                    reported(answer, call.take())
                }
                Poll::Pending => {
                    let Some(Deadline(deadline)) = call.deadline else { return Poll::Pending };
                    let alarm = alarm.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
                    ready!(alarm.as_mut().poll(cx));
                    *timed = None;
                    call.cut_off()
                }
            },
            StateProjection::Refused { refusal, caller, load } => refusal.answer(caller, load),
            StateProjection::Asked { load } => load_alone(load),
            // Nobody may poll a future that has ended.
            StateProjection::Over => return Poll::Pending,
        };
        // The work ends here and not with whoever holds this.
        state.set(State::Over);
        Poll::Ready(Ok(answer))
    }
}

impl Call {
    fn take(&mut self) -> Self {
        Self { guard: self.guard.take(), caller: self.caller.clone(), deadline: self.deadline }
    }

    /// The answer to a call whose time is over.
    fn cut_off<B>(&mut self) -> Response<ServerBody<B>> {
        match self.guard.take().map(CallGuard::end) {
            Some(load) => Refusal::Late.answer(&self.caller, &load),
            // It counts until its answer begins.
            None => Response::new(ServerBody::text("")),
        }
    }
}

/// Adds the report to the head where it belongs there; the body adds it to gRPC trailers.
fn reported<B>(mut answer: Response<B>, call: Call) -> Response<ServerBody<B>> {
    let headers = answer.headers_mut();
    // The service ran. What it passes on from a server that it called itself must not read as "not carried out" here.
    Refusal::unmark(headers);
    if let Some(guard) = &call.guard {
        if !call.caller.is_grpc() {
            report::add_text(headers, guard.report());
        } else if headers.contains_key(GRPC_STATUS) {
            report::add_binary(headers, guard.report());
        }
    }
    answer.map(|body| ServerBody::of(body, call))
}

/// The answer to whoever asks for the load.
fn load_alone<B>(load: &Load) -> Response<ServerBody<B>> {
    let mut answer = Response::new(ServerBody::text(""));
    *answer.status_mut() = StatusCode::NO_CONTENT;
    report::add_text(answer.headers_mut(), load.report());
    answer
}
