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
use http::{HeaderValue, Request, Response, StatusCode, header::CONNECTION};
use http_body::Body;
use pin_project_lite::pin_project;

use crate::{
    Connection, Framing, InFlight, RequestBody, ResponseBody,
    memory::{Claim, Memory},
};

/// What bounds one request, from its headers to the end of its response.
#[derive(Clone, Debug)]
pub struct RequestGuard {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    in_flight: InFlight,
    /// Given back when the response begins.
    claims: Mutex<Vec<Claim>>,
    is_late: AtomicBool,
    is_refused: AtomicBool,
}

/// Bounds a request that came over this connection. Its future is to be wrapped in [`GuardedCall`].
pub fn guard_request<B>(
    connection: &Arc<Connection>,
    request: Request<B>,
    framing: Framing,
) -> (Request<RequestBody<B>>, RequestGuard) {
    let guard = RequestGuard::new(connection);
    let body = guard.clone();
    (request.map(|inner| RequestBody::new(inner, body, framing)), guard)
}

impl RequestGuard {
    /// Counts a request as in flight, whose body is bounded elsewhere.
    pub fn new(connection: &Arc<Connection>) -> Self {
        let inner = Inner {
            in_flight: connection.begin_request(),
            claims: Mutex::default(),
            is_late: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        self.inner.in_flight.connection()
    }

    pub(crate) fn memory(&self) -> &Memory {
        self.connection().shared().memory()
    }

    /// The body did not come in time.
    pub(crate) fn set_late(&self) {
        self.connection().shared().counts.late_bodies.fetch_add(1, Relaxed);
        self.inner.is_late.store(true, Relaxed);
    }

    /// There was no memory for the body.
    pub(crate) fn set_refused(&self) {
        self.connection().shared().counts.large_bodies.fetch_add(1, Relaxed);
        self.inner.is_refused.store(true, Relaxed);
    }

    pub(crate) fn hold(&self, claim: Claim) {
        self.claims(|claims| claims.push(claim));
    }

    /// Whether memory of the body was taken back.
    pub(crate) fn poll_revoked(&self, cx: &Context<'_>) -> bool {
        self.claims(|claims| claims.iter().any(|claim| claim.poll_revoked(cx)))
    }

    /// All of the body is here.
    pub(crate) fn complete(&self) {
        self.claims(|claims| claims.iter().for_each(Claim::complete));
    }

    /// Gives all memory of the body back.
    pub(crate) fn release(&self) {
        let released = self.claims(std::mem::take);
        drop(released);
    }

    fn claims<T>(&self, act: impl FnOnce(&mut Vec<Claim>) -> T) -> T {
        // Nothing that runs under the lock panics.
        act(&mut self.inner.claims.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the peer is told instead of the response of a handler that did not get the body.
    fn instead<B>(&self) -> Option<Response<ResponseBody<B>>> {
        let (status, text) = match (self.inner.is_late.load(Relaxed), self.inner.is_refused.load(Relaxed)) {
            (true, _) => (StatusCode::REQUEST_TIMEOUT, "the body of the request did not come in time\n"),
            (_, true) => {
                (StatusCode::SERVICE_UNAVAILABLE, "too many large requests are in flight; send it again\n")
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
        // Until there is room for its response.
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
    /// A request whose handler itself responds where its body failed, as handlers of gRPC do; without a guard where its connection
    /// is not known.
    pub const fn new(inner: F, guard: Option<RequestGuard>) -> Self {
        Self { inner, guard, is_http: false, room: None, is_admitted: false }
    }

    /// A request of HTTP, which is responded to with 408 where its body was late, and with 503 where there was no memory for it.
    pub const fn http(inner: F, guard: RequestGuard) -> Self {
        Self { inner, guard: Some(guard), is_http: true, room: None, is_admitted: false }
    }

    /// Ready once the responses before, which the peer has not taken, leave room for this one.
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
            if let Some(instead) = this.is_http.then(|| guard.instead()).flatten() {
                return Poll::Ready(Ok(instead));
            }
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                guard.connection().exempt();
            }
        }
        Poll::Ready(Ok(response.map(|body| ResponseBody::new(body, guard, cx))))
    }
}
