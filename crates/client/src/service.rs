use std::{
    borrow::Cow,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{Invalid, Role, ServiceName, ShardKey};
use http::{HeaderMap, HeaderValue, Request, Response, request::Parts, uri::Authority};
use tokio::time::Instant;

use crate::{
    BoxError, CallContext, Fault, FaultKind,
    body::Body,
    core::{FIRST_CONTACT, Lane, Subscription, View},
    mesh::Shared,
    send::{self, Apart, Passage},
    transport::{Line, Outgoing},
    tunnel::{Connected, Tunnel},
};
use fairmesh_headers::{Deadline, IDEMPOTENT, KEY, ROLE, has_call_options, read_deadline};
use fairmesh_http::h1::BorrowedRequest;

/// A service to call: cheap to clone, and a `tower::Service` that is always ready.
#[derive(Clone)]
pub struct ServiceHandle {
    /// Shared, since every call over tower clones its handle.
    pub(crate) inner: Arc<Handle>,
}

/// What a handle is made of.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) mesh: Arc<Shared>,
    pub(crate) subscription: Arc<Subscription<Arc<Line>>>,
    pub(crate) context: CallContext,
    pub(crate) deadline: Option<Deadline>,
    pub(crate) marks: Marks,
}

/// What a handle writes into requests, made once.
#[derive(Clone)]
pub(crate) struct Marks {
    /// The host of requests that name none.
    pub(crate) authority: Authority,
    pub(crate) key: Option<HeaderValue>,
    pub(crate) role: Option<HeaderValue>,
}

impl ServiceHandle {
    pub(crate) fn new(mesh: Arc<Shared>, subscription: Arc<Subscription<Arc<Line>>>) -> Self {
        let authority = authority(subscription.name());
        let marks = Marks { authority, key: None, role: None };
        let inner = Handle { mesh, subscription, context: CallContext::default(), deadline: None, marks };
        Self { inner: Arc::new(inner) }
    }

    /// The service's name.
    pub fn name(&self) -> &ServiceName {
        self.inner.subscription.name()
    }

    /// The same service with the key that its calls are for. Servers see it as `x-fairmesh-key`.
    ///
    /// A plain number and not `impl Into<ShardKey>`, so that a literal needs no suffix: `key(618)`, `key(customer.into())`.
    #[must_use]
    pub fn key(mut self, key: u128) -> Self {
        let key = ShardKey(key);
        // Digits are always a header value.
        let inner = Arc::make_mut(&mut self.inner);
        inner.marks.key = HeaderValue::try_from(key.to_string()).ok();
        inner.context.key = Some(key);
        self
    }

    /// The same service, calling only replicas of this role. The error is about the form of the role only.
    pub fn role(mut self, role: impl AsRef<str>) -> Result<Self, Invalid> {
        let role = Role::new(role)?;
        let inner = Arc::make_mut(&mut self.inner);
        inner.marks.role = HeaderValue::from_str(role.as_str()).ok();
        inner.context.role = Some(role);
        Ok(self)
    }

    /// The same service, whose calls may be repeated although their methods do not say so.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        Arc::make_mut(&mut self.inner).context.idempotent = true;
        self
    }

    /// The same service with this time for a call, or less where its policy writes less. It covers the whole call, the response's body
    /// included, and is sent to the server as its deadline; without it, silence alone ends a call (`docs/proxy.md`, Timeouts).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        Arc::make_mut(&mut self.inner).context.timeout = Some(timeout);
        self
    }

    /// The same service, whose calls must be over by then: what a server does for a caller ends when the caller waits no
    /// longer. Of this, the timeout and what the request says, the earliest counts. A call whose deadline has passed is
    /// not sent.
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

    /// What is known of the service now: for tools that show it.
    pub fn view(&self) -> Arc<View<impl Lane>> {
        self.inner.subscription.view()
    }

    /// Waits until calls can be decided, so that the first one does not have to; fails as a call would.
    pub async fn ready(&self) -> Result<(), Fault> {
        let timeout = self.inner.context.timeout.unwrap_or(FIRST_CONTACT);
        send::ready(&self.called(), timeout).await.map(|_| ())
    }

    /// What calls with the handle's own key and role go by.
    fn called(&self) -> Arc<Subscription<Arc<Line>>> {
        let Handle { mesh, subscription, context, .. } = &*self.inner;
        match mesh.source.leases() {
            None => Arc::clone(subscription),
            Some(leases) => Arc::clone(&leases.called(subscription.name(), context).subscription),
        }
    }

    /// Waits, however long it takes, until what there is to know of the service is known: calls can be decided, or nobody
    /// declared it. For those who must not begin to serve before.
    pub async fn known(&self) {
        let subscription = self.called();
        let mut view = subscription.view();
        while matches!(&*view, View::Waiting | View::Unavailable(_)) {
            subscription.newer(&view).await;
            view = subscription.view();
        }
    }

    /// Sends one request and waits for the head of the answer.
    ///
    /// Its key and role come from the handle, or from the headers `x-fairmesh-key` and `x-fairmesh-role`;
    /// `x-fairmesh-deadline`, `grpc-timeout` and a [`Deadline`] in its extensions bound the time it has, and
    /// `x-fairmesh-idempotent: true` allows to repeat it. A header `host` says the host before the URI, which says it before the
    /// service's own name. A [`RawPath`](crate::RawPath) in its extensions is sent in place of the URI's path, and a
    /// [`Trace`](crate::Trace) there keeps what becomes of its tries. Dropping the future, or the answer's body, cancels the call.
    ///
    /// # Errors
    /// When no server answered; see [`FaultKind`]. Answers of servers are no errors, whatever their status.
    pub async fn send<B>(&self, request: Request<B>) -> Result<Response<Body>, Fault>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        let mut body = Outgoing::take(body).await.map_err(send::untaken)?;
        self.call_with(&mut parts, &mut body).await
    }

    /// The same for a body that can be moved, which costs no memory of its own where it is all at hand.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_movable<B>(&self, request: Request<B>) -> Result<Response<Body>, Fault>
    where
        B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        let mut body = Outgoing::take_movable(body).await.map_err(send::untaken)?;
        self.call_with(&mut parts, &mut body).await
    }

    /// Begins a call with a request that is passed on as it lies in memory, to the host that it names or, unless it
    /// `keeps_host`, to the service's own; it `began` when its request came. `None` where it has to be taken apart before anything is
    /// decided, and nothing was counted.
    #[inline]
    pub fn pass(
        &self,
        request: &BorrowedRequest<'_>,
        keeps_host: bool,
        began: Instant,
    ) -> Option<Result<Passage<'_>, Box<Apart<'_>>>> {
        send::pass(&self.inner, request, keeps_host, began)
    }

    async fn call_with(&self, parts: &mut Parts, body: &mut Outgoing) -> Result<Response<Body>, Fault> {
        match self.inner.mesh.source.leases() {
            None => send::call(&self.inner, parts, body).await,
            Some(leases) => Box::pin(leases.call(&self.inner, parts, body)).await,
        }
    }
}

impl ServiceHandle {
    /// Connects to a server of the service, for bytes that are no HTTP. It is picked as for a request with this head, and
    /// where it cannot be reached, another one is.
    ///
    /// Key, role and deadline come as for [`send`](Self::send); the deadline, like the policy's timeout, is for connecting. Without
    /// either, that may take 15 s.
    ///
    /// # Errors
    /// When no server could be connected to; see [`FaultKind`].
    pub async fn connect(&self, request: Request<()>) -> Result<Tunnel, Fault> {
        send::connect(&self.inner, request.into_parts().0).await
    }

    /// Makes the tunnel that a request with the method CONNECT asks for. It is routed as any request, and the limits, redirects, faults,
    /// splits and timeouts of its route apply to it. Its path is `/`, and its host what its URI names.
    ///
    /// It has to be `allowed`, or its route has to name CONNECT among its methods: what goes through a tunnel is seen by no route.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn open_tunnel(&self, request: Request<()>, allowed: bool) -> Result<Connected, Fault> {
        send::open(&self.inner, request.into_parts().0, allowed).await
    }
}

impl Handle {
    /// What the handle and the request say together, and the time that they leave by deadlines alone.
    pub(crate) fn terms(&self, parts: &Parts) -> Result<(Cow<'_, CallContext>, Option<Duration>), Fault> {
        let deadlines = [self.deadline, parts.extensions.get().copied()];
        let left = deadlines.into_iter().flatten().min().map(Deadline::left);
        if !has_call_options(&parts.headers) {
            return Ok((Cow::Borrowed(&self.context), left));
        }
        let limit = [left, read_deadline(&parts.headers)].into_iter().flatten().min();
        Ok((self.context(&parts.headers)?, limit))
    }

    /// What the handle and the request's headers say together; the handle wins.
    pub(crate) fn context(&self, headers: &HeaderMap) -> Result<Cow<'_, CallContext>, Fault> {
        let mut context = Cow::Borrowed(&self.context);
        if self.context.key.is_none()
            && let Some(key) = parsed(headers, &KEY)?
        {
            context.to_mut().key = Some(key);
        }
        if self.context.role.is_none()
            && let Some(role) = parsed(headers, &ROLE)?
        {
            context.to_mut().role = Some(role);
        }
        if !self.context.idempotent && headers.get(&IDEMPOTENT).is_some_and(|value| value == "true") {
            context.to_mut().idempotent = true;
        }
        Ok(context)
    }
}

/// The host of requests to a service that name none: `cart.shop`.
pub(crate) fn authority(name: &ServiceName) -> Authority {
    let ServiceName { tenant, service } = name;
    // Names hold only what hosts may hold; the fallback is never used.
    format!("{service}.{tenant}").parse().unwrap_or(Authority::from_static("fairmesh"))
}

fn parsed<T: std::str::FromStr<Err = Invalid>>(
    headers: &HeaderMap,
    name: &http::HeaderName,
) -> Result<Option<T>, Fault> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = value.to_str().unwrap_or("(not text)");
    text.parse().map(Some).map_err(|problem: Invalid| {
        Fault::new(FaultKind::Invalid, format!("header {name}")).caused_by(problem)
    })
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
        Box::pin(async move { this.send(request).await })
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
