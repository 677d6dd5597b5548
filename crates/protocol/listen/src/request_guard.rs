use std::{
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header::CONNECTION};
use http_body::Body;
use pin_project_lite::pin_project;

use crate::{
    Connection, Framing, InFlight, RequestBody, ResponseBody,
    request_memory::{Claim, Memory},
};

/// Limits one request, from its headers to the end of its response.
#[derive(Clone, Debug)]
pub struct RequestGuard {
    inner: Arc<GuardState>,
}

#[derive(Debug)]
struct GuardState {
    in_flight: InFlight,
    /// Memory claims, released when the response begins.
    claims: Mutex<Vec<Claim>>,
    timed_out: AtomicBool,
    out_of_memory: AtomicBool,
}

/// Limits a request of this connection. The future of its handler must be wrapped in [`GuardedCall`].
pub fn guard_request<B: Body>(
    connection: &Arc<Connection>,
    request: Request<B>,
    framing: Framing,
) -> (Request<RequestBody<B>>, RequestGuard) {
    let guard = RequestGuard::new(connection);
    let body = guard.clone();
    (request.map(|inner| RequestBody::new(inner, body, framing)), guard)
}

impl RequestGuard {
    /// Counts a request as in flight without limiting its body, which is limited elsewhere.
    pub fn new(connection: &Arc<Connection>) -> Self {
        let inner = GuardState {
            in_flight: connection.begin_request(),
            claims: Mutex::default(),
            timed_out: AtomicBool::new(false),
            out_of_memory: AtomicBool::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        self.inner.in_flight.connection()
    }

    pub(crate) fn memory(&self) -> &Memory {
        self.connection().memory()
    }

    /// Marks the peer as known because it has proved its identity, for example by a token.
    pub fn set_known(&self) {
        self.connection().set_known();
    }

    /// Counts a refusal that cost this process more than its peer. After too many, the connection is closed.
    pub fn count_refusal(&self) {
        self.connection().count_refusal();
    }

    /// Records that the body timed out.
    pub(crate) fn set_timed_out(&self) {
        self.connection().shared().counts.body_timeouts.fetch_add(1, Relaxed);
        self.inner.timed_out.store(true, Relaxed);
    }

    /// Records that no memory was available for the body. `has_received` means that the peer has sent a part of it.
    pub(crate) fn set_out_of_memory(&self, has_received: bool) {
        self.connection().shared().counts.memory_refusals.fetch_add(1, Relaxed);
        if !has_received {
            self.connection().count_refusal();
        }
        self.inner.out_of_memory.store(true, Relaxed);
    }

    pub(crate) fn hold(&self, claim: Claim) {
        self.claims(|claims| claims.push(claim));
    }

    /// Whether memory of the body was revoked.
    pub(crate) fn poll_revoked(&self, cx: &Context<'_>) -> bool {
        self.claims(|claims| claims.iter().any(|claim| claim.poll_revoked(cx)))
    }

    /// Records that the body is complete.
    pub(crate) fn complete(&self) {
        self.claims(|claims| claims.iter().for_each(Claim::complete));
    }

    /// Releases all memory of the body.
    pub(crate) fn release(&self) {
        let released = self.claims(std::mem::take);
        drop(released);
    }

    fn claims<T>(&self, act: impl FnOnce(&mut Vec<Claim>) -> T) -> T {
        // No code that holds the lock panics.
        act(&mut self.inner.claims.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the response to a request whose body failed, which replaces the handler's response.
    fn error_response<B>(&self) -> Option<Response<ResponseBody<B>>> {
        let (status, text) =
            match (self.inner.timed_out.load(Relaxed), self.inner.out_of_memory.load(Relaxed)) {
                (true, _) => (StatusCode::REQUEST_TIMEOUT, "the request body timed out\n"),
                (_, true) => {
                    (StatusCode::SERVICE_UNAVAILABLE, "too many large requests are in flight; retry\n")
                }
                _ => return None,
            };
        let mut response = Response::new(ResponseBody::text(text));
        *response.status_mut() = status;
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        Some(response)
    }
}

pin_project! {
    /// The future of a guarded request.
    pub struct GuardedCall<F> {
        #[pin]
        inner: F,
        guard: Option<RequestGuard>,
        is_http: bool,
        // A successful CONNECT switches to a tunnel.
        is_connect: bool,
        // Waits until the limits admit the response.
        room: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
        is_admitted: bool,
    }
}

impl<F> fmt::Debug for GuardedCall<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedCall").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl<F> GuardedCall<F> {
    /// Wraps a handler that responds to a failed body itself, as gRPC handlers do. `guard` is `None` if the connection
    /// is unknown.
    pub const fn new(inner: F, guard: Option<RequestGuard>) -> Self {
        Self { inner, guard, is_http: false, is_connect: false, room: None, is_admitted: false }
    }

    /// Wraps the handler of an HTTP request. The response is 408 if the body timed out, and 503 if no memory was
    /// available for it.
    pub const fn http(inner: F, guard: RequestGuard) -> Self {
        Self { inner, guard: Some(guard), is_http: true, is_connect: false, room: None, is_admitted: false }
    }

    /// Sets the request's method. An accepted CONNECT, like an upgrade, exempts the connection from time limits.
    #[must_use]
    pub fn of_method(self, method: &Method) -> Self {
        Self { is_connect: *method == Method::CONNECT, ..self }
    }

    /// Ready once the peer's unread responses leave room for another one.
    fn poll_admitted(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let connection = this.guard.as_ref().map(RequestGuard::connection);
        if !*this.is_admitted
            && let Some(connection) = connection.filter(|connection| connection.bounds_responses())
            && (this.room.is_some() || !connection.has_room())
        {
            let connection = Arc::clone(connection);
            let room = this.room.get_or_insert_with(|| Box::pin(async move { connection.room().await }));
            ready!(room.as_mut().poll(cx));
            *this.room = None;
        }
        *this.is_admitted = true;
        Poll::Ready(())
    }
}

impl<F, B, E> Future for GuardedCall<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>,
{
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.as_mut().poll_admitted(cx));
        let this = self.project();
        let response = ready!(this.inner.poll(cx));
        let guard = this.guard.take();
        let response = response?;
        if let Some(guard) = &guard {
            guard.release();
            if let Some(error_response) = this.is_http.then(|| guard.error_response()).flatten() {
                return Poll::Ready(Ok(error_response));
            }
            let is_tunnel = *this.is_connect && response.status().is_success();
            if is_tunnel || response.status() == StatusCode::SWITCHING_PROTOCOLS {
                guard.connection().exempt();
            }
        }
        Poll::Ready(Ok(response.map(|body| ResponseBody::new(body, guard, cx))))
    }
}
