use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{Invalid, Role, ServiceName, ShardKey};
use http::{Request, Response};

use crate::{BoxError, CallContext, Fault, FaultKind, body::Body, mesh::Mesh};

/// A service to call: cheap to clone, and a `tower::Service` that is always ready.
#[derive(Clone, Debug)]
pub struct ServiceHandle {
    mesh: Mesh,
    name: ServiceName,
    context: CallContext,
}

impl ServiceHandle {
    pub(crate) fn new(mesh: Mesh, name: ServiceName) -> Self {
        Self { mesh, name, context: CallContext::default() }
    }

    /// The service's name.
    pub fn name(&self) -> &ServiceName {
        &self.name
    }

    /// The same service with the key that its calls are for.
    #[must_use]
    pub fn key(mut self, key: impl Into<ShardKey>) -> Self {
        self.context.key = Some(key.into());
        self
    }

    /// The same service, calling only replicas of this role.
    pub fn role(mut self, role: impl AsRef<str>) -> Result<Self, Invalid> {
        self.context.role = Some(Role::new(role)?);
        Ok(self)
    }

    /// The same service, whose calls may be repeated although their methods do not say so.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.context.idempotent = true;
        self
    }

    /// The same service with less time a call than its policy gives.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.context.timeout = Some(timeout);
        self
    }

    /// Sends one request and waits for the head of the answer.
    pub async fn send<B>(&self, request: Request<B>) -> Result<Response<Body>, Fault>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let _ = (request, &self.mesh);
        Err(Fault::new(FaultKind::Unavailable, format!("nothing is known about {} yet", self.name)))
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
        Box::pin(async move { this.send(request).await })
    }
}
