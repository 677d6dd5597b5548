//! The tower layer around a service.

pub(crate) mod caller_counts;
pub(crate) mod concurrency_limit;
pub(crate) mod denied_counts;
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
use fairmesh_router::NeedsSidecar;
use fairmesh_signals::ServedCall;
use fairmesh_wire::transport::{Stream, Transport};
use hazarc::AtomicOptionArc;
use http::{HeaderMap, Request, Response, StatusCode};
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
    Admission, Caller, Outstanding,
    authorization::{AcceptedCall, Authorizer},
    load_report,
    shards::{ownership::Ownership, shard_load::KeyedCall},
};
use fairmesh_headers::{
    CallerProtocol, Deadline, GRPC_STATUS, KEY, ROLE, is_distance_probe, is_load_poll, read_deadline,
};

/// State of the layer, shared by all its clones.
#[derive(Debug, Default)]
pub(crate) struct LayerState {
    pub(crate) load: Arc<ServerLoad>,
    /// Shards that this server holds; `None` while no shard map is known. Every key is accepted then, since rejecting
    /// calls without a map could only do harm.
    pub(crate) ownership: AtomicOptionArc<Ownership>,
    /// Whether calls continue after their deadline.
    pub(crate) finishes_late: bool,
    pub(crate) concurrency_limit: ConcurrencyLimit,
    pub(crate) authorizer: Arc<Authorizer>,
    pub(crate) served: Arc<ServedClasses>,
    /// Counts of calls by caller.
    pub(crate) callers: Arc<CallerCounts>,
    /// Whether request bodies are forwarded to a program, and counted as they pass.
    pub(crate) forwards_bodies: bool,
}

/// Wraps the service of a hyper, axum or tonic server; see [`MeshServer::layer`](crate::MeshServer::layer).
///
/// The layer counts calls in flight, and adds a load report to each response (header `endpoint-load-metrics`, for gRPC
/// trailer `endpoint-load-metrics-bin`; ORCA, as in Uber, assisted balancing). It rejects calls whose `x-fairmesh-key`
/// and `x-fairmesh-role` belong to another server with HTTP 421, or gRPC `FAILED_PRECONDITION`, and
/// `fairmesh-wrong-shard: <map version>` (ServiceRouter §4.1). A call without a key, with a malformed key, or before
/// any map is known, is accepted.
///
/// Calls that the service's policy does not allow get 403, or gRPC `PERMISSION_DENIED`. Allowed calls have the
/// [`Caller`](crate::Caller) in their extensions, if it proved an identity.
///
/// The report contains the measurements of the layer, the metrics set by [`metric`](Self::metric), and the fields of a
/// well-formed report that the service wrote itself, whose `cpu_utilization` replaces that of the layer. A service that
/// forwards responses of other servers should remove their reports.
///
/// Metrics in reports written by the service also go to planners, like those set by [`metric`](Self::metric). The first
/// eight names are used. A name is given up once ten seconds have passed and a response came without it. While there
/// are no calls, these metrics are reported as 0.
///
/// A `GET` for [`LOAD_PATH`](fairmesh_headers::LOAD_PATH) gets a response from the layer with only the load
/// (ServiceRouter §3.4.3), and is not counted. Neither are distance probes of agents.
///
/// A call with a deadline, from `x-fairmesh-deadline` or `grpc-timeout`, has a [`Deadline`] in its extensions: pass it
/// to the handles of services that are called on its behalf. The deadline counts from the time when the layer received
/// the request, so that queueing behind the layer counts too. If it passes before the response headers, or before a
/// gRPC response is complete, the service's future is dropped, as when a client disconnects, and the layer responds
/// with 504, or gRPC `DEADLINE_EXCEEDED` (ServiceRouter §4.1). Tasks spawned by the service continue.
///
/// The default value counts and reports but knows no shards: for programs that are registered from outside.
///
/// An upgraded connection (WebSocket) counts only until the upgrade.
#[derive(Clone, Debug, Default)]
pub struct ServerLayer {
    pub(crate) shared: Arc<LayerState>,
}

impl ServerLayer {
    /// Calls and streams in flight.
    pub fn outstanding(&self) -> Outstanding {
        self.shared.load.outstanding()
    }

    /// The concurrency limit, and the number of rejected calls.
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

    /// Performs the handshake on a connection of the server, and counts a failed handshake.
    pub(crate) async fn handshake(
        &self,
        transport: &Transport,
        stream: GuardedStream<Stream>,
    ) -> io::Result<GuardedStream<Stream>> {
        let accepted = transport.accept(stream).await;
        accepted.inspect_err(|_| self.shared.load.refusals().count_failed_handshake())
    }

    /// Resolves once the policy no longer allows this call. The connection that the call opened must then end.
    #[doc(hidden)]
    pub async fn revoked(&self, call: &AcceptedCall) {
        self.shared.authorizer.call_revoked(call).await;
    }

    /// Whether the kernel may carry the requests of a peer on the same machine, since every one of them is allowed.
    ///
    /// # Errors
    /// Why the peer has to send its requests to this process.
    #[doc(hidden)]
    pub fn decide_local(&self, peer: Option<&Caller>) -> Result<(), NeedsSidecar> {
        self.shared.authorizer.decide_local(peer)
    }

    /// Reports a metric of the program, such as the length of its queue, in every response until it is set again.
    /// Cheap: set it whenever the value changes. Values are kept in thousandths. A policy with `signal: metric:NAME`
    /// balances calls so that the metric becomes equal on all servers, so the metric must grow with the load.
    ///
    /// # Errors
    /// The name does not consist of 1 to 63 letters, digits, `_`, `-` or `.`, is reported by the layer itself, or would
    /// be the ninth. Or the value is not finite, negative, or above 4,000,000. The metric then keeps its value.
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

/// Inner service wrapped by [`ServerLayer`].
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
        if is_load_poll(&request) || is_distance_probe(&request) {
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
            // Some services begin their work before their future is polled.
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
    /// Admits a call if both the fixed and the adaptive limit do.
    fn enter(
        self: &Arc<Self>,
        keyed: impl FnOnce() -> Option<KeyedCall>,
    ) -> Option<(CallGuard, Option<ConcurrencyPermit>)> {
        let permit = ConcurrencyPermit::begin(self).ok()?;
        Some((self.load.enter(&self.concurrency_limit, keyed)?, permit))
    }

    /// Returns the version of the shard map that assigns the call's key to another server; `None` if this server
    /// holds the key.
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
    /// The future returned by [`ServerService`].
    #[derive(Debug)]
    pub struct ServerFuture<F> {
        #[pin]
        state: State<F>,
    }
}

/// State of a call while the service handles it.
#[derive(Debug)]
pub(crate) struct Call {
    /// Counts the call until it is dropped.
    pub(crate) guard: Option<CallGuard>,
    pub(crate) caller: CallerProtocol,
    /// The time at which the call is cancelled.
    pub(crate) deadline: Option<Deadline>,
    /// The parent of calls that are made while this call is polled.
    pub(crate) served: ServedCall,
    /// Counter of the call for its caller.
    pub(crate) counted: Option<CountedCall>,
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProjection]
    enum State<F> {
        // The timer is created when the service is first pending, which many calls never are.
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
            // The future was polled after completion.
            StateProjection::Done => return Poll::Pending,
        };
        // The call's resources are released now rather than when the future is dropped.
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

    /// Polls the service's future with this call as the current parent.
    #[inline]
    fn poll<F: Future>(&mut self, future: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _entered = self.served.enter();
        future.poll(cx)
    }

    /// Counts the call as processed. Failed and late calls count too, because the calls made on their behalf count.
    fn end_processing(&self, processed: Option<ProcessedCall>) {
        if let (Some(processed), Some(guard)) = (processed, &self.guard) {
            processed.end(&self.served, guard.report().cpu);
        }
    }

    /// Returns the response to a call whose deadline has passed.
    fn deadline_response<B>(&mut self) -> Response<ServerBody<B>> {
        if let Some(counted) = &self.counted {
            counted.refuse(Refusal::Late);
        }
        match self.guard.take().map(CallGuard::end) {
            Some(load) => Refusal::Late.response(&self.caller, &load),
            // The guard exists until the response begins.
            None => Response::new(ServerBody::text("")),
        }
    }
}

/// Adds the load report to the headers. The body adds it to gRPC trailers.
fn with_load_report<B>(mut response: Response<B>, call: Call) -> Response<ServerBody<B>> {
    let headers = response.headers_mut();
    // The service has processed the call. A mark that it forwards from another server must not be read as "not
    // processed" here.
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

/// Returns the response to a load poll or a distance probe.
fn load_response<B>(load: &ServerLoad) -> Response<ServerBody<B>> {
    let mut response = Response::new(ServerBody::text(""));
    *response.status_mut() = StatusCode::NO_CONTENT;
    load_report::add_text(response.headers_mut(), load.report());
    response
}
