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

/// A service to call: cheap to clone, and a `tower::Service` that is always ready.
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

    /// The same service with a key for its calls: a number of any width, or a [`ShardKey`]. Servers receive it as
    /// `x-fairmesh-key`.
    #[must_use]
    pub fn key(mut self, key: impl Into<ShardKey>) -> Self {
        let key = key.into();
        // Digits are always a header value.
        let inner = Arc::make_mut(&mut self.inner);
        inner.default_headers.key = HeaderValue::try_from(key.to_string()).ok();
        inner.context.key = Some(key);
        self
    }

    /// The same service, calling only replicas of this role.
    ///
    /// # Errors
    /// When the role is malformed.
    pub fn role(mut self, role: impl AsRef<str>) -> Result<Self, Invalid> {
        let role = Role::new(role)?;
        let inner = Arc::make_mut(&mut self.inner);
        inner.default_headers.role = HeaderValue::from_str(role.as_str()).ok();
        inner.context.role = Some(role);
        Ok(self)
    }

    /// The same service, whose calls may be repeated although their methods are not idempotent.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        Arc::make_mut(&mut self.inner).context.idempotent = true;
        self
    }

    /// The same service with a timeout for calls, or the policy's where that is shorter. It bounds the whole call, the
    /// response's body included, and is sent to the server as its deadline; without it, only idle timeouts end a call
    /// (`docs/proxy-http.md`, Timeouts).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        Arc::make_mut(&mut self.inner).context.timeout = Some(timeout);
        self
    }

    /// The same service with a deadline for calls: the work of a server for a caller ends when the caller no longer
    /// waits. The earliest of this, the timeout and the request's own deadline applies. A call whose deadline has
    /// passed is not sent.
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

    /// The same service, whose calls belong to the trace of this span: such as that of the request in whose course they are
    /// made. It is sent as `traceparent` with requests that have none.
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

    /// The same service, whose calls return responses that carry a fault of the mesh (`x-fairmesh-fault`) as they are,
    /// in place of the [`Fault`]: for programs that relay them.
    #[must_use]
    pub fn keep_fault_responses(mut self) -> Self {
        Arc::make_mut(&mut self.inner).keeps_fault_responses = true;
        self
    }

    /// Waits until calls can be decided, so that the first one does not wait.
    ///
    /// # Errors
    /// As a call would fail: the service is not declared, or its records do not arrive in time.
    pub async fn prepare(&self) -> Result<(), Fault> {
        let timeout = self.inner.context.timeout.unwrap_or(DEFAULT_READY_TIMEOUT);
        wait_ready(&self.called_subscription(), timeout).await.map(|_| ())
    }

    /// The subscription by which calls with the handle's own key and role are decided.
    fn called_subscription(&self) -> Arc<Subscription<Arc<EndpointPool>>> {
        let Handle { mesh, subscription, context, .. } = &*self.inner;
        match mesh.source.leases() {
            None => Arc::clone(subscription),
            Some(leases) => Arc::clone(&leases.for_call(subscription.name(), context).subscription),
        }
    }

    /// Waits without a bound until the records of the service have arrived: calls can be decided, or it is not
    /// declared. For programs that must not serve before.
    pub async fn resolved(&self) {
        let subscription = self.called_subscription();
        let mut state = subscription.state();
        while matches!(&*state, ServiceState::Waiting | ServiceState::Unavailable(_)) {
            subscription.changed(&state).await;
            state = subscription.state();
        }
    }

    /// Sends one request and waits for the head of the response.
    ///
    /// Its key and role come from the handle, or from the headers `x-fairmesh-key` and `x-fairmesh-role`;
    /// `x-fairmesh-deadline`, `grpc-timeout` and a [`Deadline`] in its extensions bound its time, and
    /// `x-fairmesh-idempotent: true` allows to repeat it. The host comes from the header `host`, else from the URI,
    /// else from the service's name. A [`RawPath`](fairmesh_http::path::RawPath) in its extensions is sent in place of
    /// the URI's path, and a
    /// [`Trace`](crate::Trace) there records its attempts. Dropping the future, or the response's body, cancels the call.
    ///
    /// # Errors
    /// When no server responded, or Fairmesh responded on the way, such as with an overload or a deadline that passed at
    /// the server; see [`FaultKind`](crate::FaultKind). Responses of the service are no errors, whatever their status,
    /// nor are aborts that a policy injects, which stand for them.
    pub async fn send<B>(&self, request: Request<B>) -> Result<Response<Body>, Fault>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        let mut body = RequestBody::take(body).await.map_err(dispatch::body_error)?;
        dispatch::call(&self.inner, &mut parts, &mut body, &CallInfo::default()).await
    }

    /// The same for a body that is `Unpin`, which is not boxed where all of it is ready.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_unpin<B>(&self, request: Request<B>) -> Result<Response<Body>, Fault>
    where
        B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        let mut body = RequestBody::take_unpin(body).await.map_err(dispatch::body_error)?;
        dispatch::call(&self.inner, &mut parts, &mut body, &CallInfo::default()).await
    }

    /// Counters of the calls of this handle and of its clones.
    pub fn stats(&self) -> ServiceStats {
        self.inner.counters.read()
    }
}

impl ServiceHandle {
    /// Connects to a server of the service, for a protocol other than HTTP. It is picked as for a request with this
    /// head, and retried at another endpoint where it cannot be reached.
    ///
    /// Key, role and deadline are set as for [`send`](Self::send); the deadline, like the policy's timeout, bounds
    /// connecting. Without either, that may take 15 s.
    ///
    /// # Errors
    /// When no server could be connected to; see [`FaultKind`](crate::FaultKind).
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
        // Of a tonic client, maybe. Others would print the text of a fault again for its source.
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
