//! The tower layer around a service.

pub(crate) mod caller_counts;
pub(crate) mod concurrency_limit;
pub(crate) mod processed_call;
pub(crate) mod refusal;
mod response_body;
pub(crate) mod server_load;

use std::{
    future::Future,
    io,
    pin::Pin,
    str,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_listen::GuardedStream;
use fairmesh_model::{Invalid, ShardKey};
use fairmesh_signals::ServedCall;
use fairmesh_wire::transport::{Stream, Transport};
use hazarc::AtomicOptionArc;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep_until};
use tower_layer::Layer;
use tower_service::Service;

pub use self::response_body::ServerBody;
use self::{
    caller_counts::{CallerCounts, CountedCall},
    concurrency_limit::{ConcurrencyLimit, ConcurrencyPermit},
    processed_call::{ProcessedCall, ServedClasses},
    refusal::Refusal,
    server_load::{CallGuard, ServerLoad},
};
use crate::{
    Admission, Outstanding,
    authorization::{AcceptedCall, Authorizer},
    load_report,
    shards::{ownership::Ownership, shard_load::KeyedCall},
};
use fairmesh_headers::{CallerProtocol, Deadline, GRPC_STATUS, KEY, LOAD_PATH, ROLE, read_deadline};

/// State of the layer, shared by all its copies.
#[derive(Debug, Default)]
pub(crate) struct LayerState {
    pub(crate) load: Arc<ServerLoad>,
    /// `None` while no shard map is known: then every key is accepted, since rejecting calls without a map could only
    /// do harm.
    pub(crate) ownership: AtomicOptionArc<Ownership>,
    /// Whether calls continue after their deadline.
    pub(crate) finishes_late: bool,
    pub(crate) concurrency_limit: ConcurrencyLimit,
    pub(crate) authorizer: Arc<Authorizer>,
    pub(crate) served: Arc<ServedClasses>,
    /// Counts of calls by caller.
    pub(crate) callers: Arc<CallerCounts>,
    /// Whether bodies of requests are forwarded to a program, and counted as they pass.
    pub(crate) forwards_bodies: bool,
}

/// Wraps the service of a hyper, axum or tonic server; from [`MeshServer::layer`](crate::MeshServer::layer).
///
/// It counts calls in flight, adds a load report to each response (header `endpoint-load-metrics`, for gRPC trailer
/// `endpoint-load-metrics-bin`; ORCA, as in Uber, assisted balancing) and rejects calls whose `x-fairmesh-key` and
/// `x-fairmesh-role` belong to another server: HTTP 421, or gRPC `FAILED_PRECONDITION`, with `fairmesh-wrong-shard:
/// <map version>` (ServiceRouter §4.1). A call without a key, with a malformed one, or before any map is known,
/// passes.
///
/// Calls that the policy of the service does not allow get 403, or gRPC `PERMISSION_DENIED`; the others have the
/// [`Caller`](crate::Caller) in their extensions, if it proved an identity.
///
/// The report holds the measurements of the layer and the metrics set by [`metric`](Self::metric), and the fields of a
/// report that the service wrote itself, where that is well formed. Its `cpu_utilization` replaces that of the layer. A
/// service that forwards responses of other servers should remove their reports.
///
/// The metrics of a report that the service wrote go to planners too, as those of [`metric`](Self::metric) do: the first
/// eight names, each until ten seconds have passed and a response came without it. Without calls they are 0 then.
///
/// A `GET` for [`LOAD_PATH`] gets a response of the layer with the load alone (ServiceRouter §3.4.3), and is not
/// counted.
///
/// A call with a deadline, from `x-fairmesh-deadline` or `grpc-timeout`, has a [`Deadline`] in its extensions: pass it
/// to the handles of the services called on its behalf. It counts from when the layer received the request, so that
/// queueing behind the layer counts too. Where it passes before the response headers, or before a gRPC response is
/// complete, the service's future is dropped, as when a client disconnects, and the layer responds: 504, or gRPC
/// `DEADLINE_EXCEEDED` (ServiceRouter §4.1). Tasks spawned by the service continue.
///
/// The default value counts and reports but knows no shards: for programs that are registered from outside.
///
/// An upgraded connection (WebSocket) counts until the upgrade only.
#[derive(Clone, Debug, Default)]
pub struct ServerLayer {
    pub(crate) shared: Arc<LayerState>,
}

impl ServerLayer {
    /// Calls and streams in flight.
    pub fn outstanding(&self) -> Outstanding {
        self.shared.load.outstanding()
    }

    /// The limit, and rejected calls.
    pub fn admission(&self) -> Admission {
        let (LayerState { concurrency_limit, load, .. }, refusals) =
            (&*self.shared, self.shared.load.refusals());
        let outstanding = load.outstanding();
        let (unauthorized, audited) = self.shared.authorizer.counts();
        Admission {
            limit: concurrency_limit.limit(),
            outstanding,
            refused: refusals.overloaded(),
            late: refusals.late(),
            unauthorized,
            audited,
            plaintext_connections: self.shared.authorizer.plaintext_connections(),
            failed_handshakes: refusals.failed_handshakes(),
        }
    }

    /// Performs the handshake on a connection of the server, and counts a failed one.
    pub(crate) async fn handshake(
        &self,
        transport: &Transport,
        stream: GuardedStream<Stream>,
    ) -> io::Result<GuardedStream<Stream>> {
        let accepted = transport.accept(stream).await;
        accepted.inspect_err(|_| self.shared.load.refusals().count_failed_handshake())
    }

    /// Resolves when the policy would no longer allow this call, so that the connection that it opened has to end.
    #[doc(hidden)]
    pub async fn revoked(&self, call: &AcceptedCall) {
        self.shared.authorizer.call_revoked(call).await;
    }

    /// Reports a metric of the program's own, such as the length of its queue, in every response, until it is set
    /// again. Cheap: set it whenever it changes; thousandths are kept. A policy with `signal: metric:NAME` balances
    /// calls so that it becomes equal on all servers: it must grow with the load.
    ///
    /// # Errors
    /// The name is not one of 1 to 63 letters, digits, `_`, `-`, `.`, is reported by the layer itself, or would be the
    /// ninth; the value is not finite, is negative, or above 4,000,000. The metric keeps its value.
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
    shared: Arc<LayerState>,
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
            return ServerFuture { state: State::LoadQuery { load: Arc::clone(&self.shared.load) } };
        }
        let caller = CallerProtocol::of(request.headers());
        let accepted = self.shared.authorizer.accept(&mut request);
        let mut counted =
            self.shared.callers.begin(request.extensions().get(), request.headers(), accepted.is_ok());
        if let Err(problem) = accepted {
            return self.refuse(problem.into(), caller, &counted);
        }
        let key = key(request.headers());
        if let Some(version) = key.and_then(|key| self.shared.refuses(key, request.headers())) {
            return self.refuse(Refusal::WrongShard(version), caller, &counted);
        }
        let left = read_deadline(request.headers());
        if left.is_some_and(|left| left.is_zero()) && !self.shared.finishes_late {
            return self.refuse(Refusal::Late, caller, &counted);
        }
        let deadline = left.and_then(Deadline::after);
        if let Some(deadline) = deadline {
            request.extensions_mut().insert(deadline);
        }
        let keyed = || key.map(|key| KeyedCall::begin(&self.shared, key));
        let Some((guard, permit)) = self.shared.enter(keyed) else {
            return self.refuse(Refusal::Overloaded, caller, &counted);
        };
        counted.count_body(&mut request, self.shared.forwards_bodies);
        let deadline = deadline.filter(|_| !self.shared.finishes_late);
        let (processed, mut served) = self.shared.served.begin(&request, counted.origin());
        let future = {
            // Some services begin before their future is polled.
            let _entered = served.enter();
            self.inner.call(request)
        };
        let call = Call { guard: Some(guard), caller, deadline, served, counted: Some(counted) };
        ServerFuture { state: State::Calling { future, call, timer: None, permit, processed } }
    }
}

impl<S> ServerService<S> {
    fn refuse<F>(&self, refusal: Refusal, caller: CallerProtocol, counted: &CountedCall) -> ServerFuture<F> {
        counted.refuse(refusal);
        ServerFuture { state: State::Refused { refusal, caller, load: Arc::clone(&self.shared.load) } }
    }
}

impl LayerState {
    /// Admits a call where both limits do.
    fn enter(
        self: &Arc<Self>,
        keyed: impl FnOnce() -> Option<KeyedCall>,
    ) -> Option<(CallGuard, Option<ConcurrencyPermit>)> {
        let permit = ConcurrencyPermit::begin(self).ok()?;
        Some((self.load.enter(&self.concurrency_limit, keyed)?, permit))
    }

    /// The version of the shard map by which a call for `key` belongs to another server, or `None`.
    fn refuses(&self, key: ShardKey, headers: &HeaderMap) -> Option<u64> {
        let ownership = self.ownership.load();
        let ownership = ownership.as_ref()?;
        let role = headers.get(ROLE).and_then(|role| str::from_utf8(role.as_bytes()).ok());
        (!ownership.holds(key, role)).then(|| ownership.version())
    }
}

/// The key of a call, if any.
fn key(headers: &HeaderMap) -> Option<ShardKey> {
    str::from_utf8(headers.get(KEY)?.as_bytes()).ok()?.parse().ok()
}

pin_project! {
    /// The future of a [`ServerService`].
    #[derive(Debug)]
    pub struct ServerFuture<F> {
        #[pin]
        state: State<F>,
    }
}

/// State of a call in the service.
#[derive(Debug)]
pub(crate) struct Call {
    /// Counts the call until it is dropped.
    pub(crate) guard: Option<CallGuard>,
    pub(crate) caller: CallerProtocol,
    /// When the call is cancelled.
    pub(crate) deadline: Option<Deadline>,
    /// The parent of calls made while it is polled.
    pub(crate) served: ServedCall,
    /// Counts the call for its caller.
    pub(crate) counted: Option<CountedCall>,
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProjection]
    enum State<F> {
        // The timer is made when the service is first pending, which many never are.
        Calling { #[pin] future: F, call: Call, timer: Option<Pin<Box<Sleep>>>, permit: Option<ConcurrencyPermit>, processed: Option<ProcessedCall> },
        Refused { refusal: Refusal, caller: CallerProtocol, load: Arc<ServerLoad> },
        LoadQuery { load: Arc<ServerLoad> },
        Done,
    }
}

impl<F, B, E> Future for ServerFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<ServerBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        let response = match state.as_mut().project() {
            StateProjection::Calling { future, call, timer, permit, processed } => {
                match call.poll(future, cx) {
                    Poll::Ready(response) => {
                        call.end_processing(processed.take());
                        if response.is_err()
                            && let Some(counted) = &call.counted
                        {
                            counted.fail();
                        }
                        let response = response?;
                        if let Some(counted) = &mut call.counted {
                            counted.respond(response.status(), response.headers());
                        }
                        if let Some(permit) = permit.take() {
                            permit.set_outcome(response.status(), response.headers());
                        }
                        with_load_report(response, call.take())
                    }
                    Poll::Pending => {
                        let Some(deadline) = call.deadline else { return Poll::Pending };
                        let timer =
                            timer.get_or_insert_with(|| Box::pin(sleep_until(deadline.instant().into())));
                        ready!(timer.as_mut().poll(cx));
                        *permit = None;
                        call.end_processing(processed.take());
                        call.deadline_response()
                    }
                }
            }
            StateProjection::Refused { refusal, caller, load } => refusal.response(caller, load),
            StateProjection::LoadQuery { load } => load_response(load),
            // Polled after completion.
            StateProjection::Done => return Poll::Pending,
        };
        // The call's resources are released now, and not when the future is dropped.
        state.set(State::Done);
        Poll::Ready(Ok(response))
    }
}

impl Call {
    fn take(&mut self) -> Self {
        Self {
            guard: self.guard.take(),
            caller: self.caller.clone(),
            deadline: self.deadline,
            served: self.served,
            counted: self.counted.take(),
        }
    }

    /// Polls the service's future as the processing of this call.
    #[inline]
    fn poll<F: Future>(&mut self, future: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _entered = self.served.enter();
        future.poll(cx)
    }

    /// Counts the call as processed. Failed and late ones count too, since the calls made for them do.
    fn end_processing(&self, processed: Option<ProcessedCall>) {
        if let (Some(processed), Some(guard)) = (processed, &self.guard) {
            processed.end(&self.served, guard.report().cpu);
        }
    }

    /// The response to a call whose deadline has passed.
    fn deadline_response<B>(&mut self) -> Response<ServerBody<B>> {
        if let Some(counted) = &self.counted {
            counted.refuse(Refusal::Late);
        }
        match self.guard.take().map(CallGuard::end) {
            Some(load) => Refusal::Late.response(&self.caller, &load),
            // The guard is there until the response begins.
            None => Response::new(ServerBody::text("")),
        }
    }
}

/// Adds the load report to headers; the body adds it to gRPC trailers.
fn with_load_report<B>(mut response: Response<B>, call: Call) -> Response<ServerBody<B>> {
    let headers = response.headers_mut();
    // The service processed the call. Marks that it forwards from another server must not read as "not processed"
    // here.
    Refusal::remove_marks(headers);
    if let Some(guard) = &call.guard {
        if !call.caller.is_grpc() {
            guard.learn(headers, false);
            load_report::add_text(headers, guard.report());
        } else if headers.contains_key(GRPC_STATUS) {
            guard.learn(headers, true);
            load_report::add_binary(headers, guard.report());
        }
    }
    response.map(|body| ServerBody::of(body, call))
}

/// The response to a load poll.
fn load_response<B>(load: &ServerLoad) -> Response<ServerBody<B>> {
    let mut response = Response::new(ServerBody::text(""));
    *response.status_mut() = StatusCode::NO_CONTENT;
    load_report::add_text(response.headers_mut(), load.report());
    response
}
