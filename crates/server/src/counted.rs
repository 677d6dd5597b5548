use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use fairmesh_listen::{Connection, GuardedCall, RequestGuard, ResponseBody};
use http::{Method, Request, Response};
use http_body::Body;
use tower_service::Service;

use fairmesh_http::BoxError;

/// A service whose requests keep their connection from being taken for a quiet one.
#[derive(Clone, Debug)]
pub(super) struct Counted<S> {
    inner: S,
    connection: Option<Arc<Connection>>,
}

impl<S> Counted<S> {
    pub(super) const fn new(inner: S, connection: Option<Arc<Connection>>) -> Self {
        Self { inner, connection }
    }
}

impl<S, A, B> Service<Request<A>> for Counted<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = GuardedCall<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        if let Some(connection) = self.connection.as_ref().filter(|_| request.method() == Method::CONNECT) {
            connection.exempt();
        }
        let guard = self.connection.as_ref().map(RequestGuard::new);
        GuardedCall::new(self.inner.call(request), guard)
    }
}
