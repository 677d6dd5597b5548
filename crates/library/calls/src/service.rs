mod explain;
pub(crate) mod exported_service;
pub(crate) mod handle;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_connections::{EndpointPool, RequestBody};
use fairmesh_model::{Invalid, Role, ServiceName, ShardKey};
use http::{HeaderValue, Request, Response};

use self::handle::Handle;
use crate::{
    discovery::{DEFAULT_READY_TIMEOUT, ServiceState, Subscription, wait_ready},
    dispatch,
    fault::Fault,
    mesh::state::MeshState,
    observe::{CallInfo, ServiceStats},
    response_body::{Body, Tunnel},
};
use fairmesh_headers::{Deadline, SpanContext, is_grpc};
use fairmesh_http::BoxError;

/// A handle to call a service. Cheap to clone, and a `tower::Service` that is always ready.
#[derive(Clone)]
pub struct ServiceHandle {
    /// Shared, since every call over tower clones its handle.
    pub(crate) inner: Arc<Handle>,
}

impl ServiceHandle {
    pub(crate) fn new(mesh: Arc<MeshState>, subscription: Arc<Subscription<Arc<EndpointPool>>>) -> Self {
        Self { inner: Arc::new(Handle::new(mesh, subscription)) }
    }

    /// The service's name.
    pub fn name(&self) -> &ServiceName {
        self.inner.subscription.name()
    }

    /// Returns a handle whose calls have this key: an integer of any width, or a [`ShardKey`]. Servers receive the
    /// key in `x-fairmesh-key`.
    #[must_use]
    pub fn key(mut self, key: impl Into<ShardKey>) -> Self {
        let key = key.into();
        // Digits are always a header value.
        let inner = Arc::make_mut(&mut self.inner);
        inner.default_headers.key = HeaderValue::try_from(key.to_string()).ok();
        inner.context.key = Some(key);
        self
    }

    /// Returns a handle that calls only replicas with this role.
    ///
    /// # Errors
    /// The role is malformed.
    pub fn role(mut self, role: impl AsRef<str>) -> Result<Self, Invalid> {
        let role = Role::new(role)?;
        let inner = Arc::make_mut(&mut self.inner);
        inner.default_headers.role = HeaderValue::from_str(role.as_str()).ok();
        inner.context.role = Some(role);
        Ok(self)
    }

    /// Returns a handle whose calls may be repeated, even with methods that are not idempotent.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        Arc::make_mut(&mut self.inner).context.idempotent = true;
        self
    }

    /// Returns a handle with a timeout for calls; the policy's timeout applies if it is shorter. The timeout limits the
    /// whole call, including the response body, and is sent to the server as its deadline. Without a timeout, only idle
    /// timeouts end a call (`docs/proxy-http.md`, Timeouts).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        Arc::make_mut(&mut self.inner).context.timeout = Some(timeout);
        self
    }

    /// Returns a handle with a deadline for calls, so that a server's work on behalf of a caller ends when the caller no
    /// longer waits. The earliest of this, the timeout and the request's own deadline applies. A call whose deadline
    /// has passed is not sent.
    ///
    /// ```no_run
    /// # use fairmesh_headers::Deadline;
    /// # use fairmesh_client::{Body, ServiceHandle};
    /// # async fn handle(request: http::Request<Body>, stock: ServiceHandle) {
    /// let stock = match Deadline::read(request.headers()) {
    ///     Some(deadline) => stock.deadline(deadline),
    ///     None => stock,
    /// };
    /// # }
    /// ```
    #[must_use]
    pub fn deadline(mut self, deadline: impl Into<Deadline>) -> Self {
        Arc::make_mut(&mut self.inner).deadline = Some(deadline.into());
        self
    }

    /// Returns a handle whose calls belong to the trace of this span, for example the span of the request being served.
    /// The span is sent as `traceparent` with requests that have none.
    ///
    /// ```no_run
    /// # use fairmesh_client::{Body, ServiceHandle, SpanContext};
    /// # fn handle(request: http::Request<Body>, stock: ServiceHandle) -> ServiceHandle {
    /// match SpanContext::read(request.headers()) {
    ///     Some(parent) => stock.within(parent),
    ///     None => stock,
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn within(mut self, parent: SpanContext) -> Self {
        Arc::make_mut(&mut self.inner).default_headers.parent = Some(parent);
        self
    }

    /// Returns a handle whose calls return responses that carry a fault of the mesh (`x-fairmesh-fault`) unchanged,
    /// instead of a [`Fault`]; for programs that relay responses.
    #[must_use]
    pub fn keep_fault_responses(mut self) -> Self {
        Arc::make_mut(&mut self.inner).keeps_fault_responses = true;
        self
    }

    /// Waits until calls can be decided, so that the first call does not have to wait.
    ///
    /// # Errors
    /// The same as for a call: the service is not declared, or its records do not arrive in time.
    pub async fn prepare(&self) -> Result<(), Fault> {
        let timeout = self.inner.context.timeout.unwrap_or(DEFAULT_READY_TIMEOUT);
        wait_ready(&self.called_subscription(), timeout).await.map(|_| ())
    }

    /// Subscription that decides calls with the handle's key and role.
    fn called_subscription(&self) -> Arc<Subscription<Arc<EndpointPool>>> {
        let Handle { mesh, subscription, context, .. } = &*self.inner;
        match mesh.source.leases() {
            None => Arc::clone(subscription),
            Some(leases) => Arc::clone(&leases.for_call(subscription.name(), context).subscription),
        }
    }

    /// Waits without a limit until the service's records have arrived. Afterwards calls can be decided, or the
    /// service is known to be undeclared. For programs that must not serve earlier.
    pub async fn resolved(&self) {
        let subscription = self.called_subscription();
        let mut state = subscription.state();
        while matches!(&*state, ServiceState::Waiting | ServiceState::Unavailable(_)) {
            subscription.changed(&state).await;
            state = subscription.state();
        }
    }

    /// Sends a request and waits for the head of the response.
    ///
    /// Key and role come from the handle, or from the headers `x-fairmesh-key` and `x-fairmesh-role`.
    /// `x-fairmesh-deadline`, `grpc-timeout` and a [`Deadline`] in the extensions limit its time.
    /// `x-fairmesh-idempotent: true` allows repeating it. The host comes from the header `host`, otherwise from the
    /// URI, otherwise from the service's name. A [`RawPath`](fairmesh_http::path::RawPath) in the extensions is sent
    /// instead of the URI's path, and a [`Trace`](crate::Trace) in them records the attempts. Dropping the future, or
    /// the response's body, cancels the call.
    ///
    /// # Errors
    /// No server responded, or Fairmesh responded on the way, for example because of overload or a deadline
    /// that passed at the server; see [`FaultKind`](crate::FaultKind). Responses of the service are not errors,
    /// regardless of their status; neither are aborts injected by a policy, which stand for such responses.
    pub async fn send<B>(&self, request: Request<B>) -> Result<Response<Body>, Fault>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        let mut body = RequestBody::take(body).await.map_err(dispatch::body_error)?;
        dispatch::call(&self.inner, &mut parts, &mut body, &CallInfo::default()).await
    }

    /// Like [`send`](Self::send), for a body that is `Unpin`. The body is not boxed if all of it is ready.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub async fn send_unpin<B>(&self, request: Request<B>) -> Result<Response<Body>, Fault>
    where
        B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        let mut body = RequestBody::take_unpin(body).await.map_err(dispatch::body_error)?;
        dispatch::call(&self.inner, &mut parts, &mut body, &CallInfo::default()).await
    }

    /// Counters of the calls of this handle and its clones.
    pub fn stats(&self) -> ServiceStats {
        self.inner.counters.read()
    }
}

impl ServiceHandle {
    /// Connects to a server of the service, for a protocol other than HTTP. The server is picked as for a request with
    /// this head; if it cannot be reached, another endpoint is tried.
    ///
    /// Key, role and deadline are set as for [`send`](Self::send). The deadline and the policy's timeout limit
    /// connecting; without either, connecting may take 15 s.
    ///
    /// # Errors
    /// No server could be connected to; see [`FaultKind`](crate::FaultKind).
    pub async fn open_connection(&self, request: Request<()>) -> Result<Tunnel, Fault> {
        dispatch::connect(&self.inner, request.into_parts().0).await
    }
}

impl<B> tower_service::Service<Request<B>> for ServiceHandle
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Fault;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Fault>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let this = self.clone();
        // The caller may be a tonic client. Others would print the text of a fault twice if it had a source.
        let is_grpc = is_grpc(request.headers());
        Box::pin(async move {
            let sent = this.send(request).await;
            match is_grpc {
                true => sent.map(|response| response.map(Body::for_tonic)).map_err(Fault::for_tonic),
                false => sent,
            }
        })
    }
}

impl fmt::Debug for ServiceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceHandle")
            .field("name", self.name())
            .field("context", &self.inner.context)
            .finish_non_exhaustive()
    }
}
