use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use fairmesh_listen::{Connection, GuardedCall, RequestGuard, ResponseBody};
use http::{Request, Response};
use http_body::Body;
use tonic::transport::server::TcpConnectInfo;
use tower_service::Service;

use crate::Caller;

/// Service that marks the connection as active with each request, and adds the caller to the request.
#[derive(Clone, Debug)]
pub struct CallerService<S> {
    inner: S,
    connection: Option<Arc<Connection>>,
    caller: Option<Caller>,
    /// Source address of the connection.
    tcp: TcpConnectInfo,
}

impl<S> CallerService<S> {
    pub(super) fn new(
        inner: S,
        connection: Option<Arc<Connection>>,
        (caller, tcp): (Option<Caller>, TcpConnectInfo),
    ) -> Self {
        Self { inner, connection, caller, tcp }
    }
}

impl<S, A, B> Service<Request<A>> for CallerService<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    B: Body<Data = Bytes, Error: Into<fairmesh_http::BoxError>>,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = GuardedCall<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<A>) -> Self::Future {
        if let Some(caller) = &self.caller {
            request.extensions_mut().insert(caller.clone());
        }
        request.extensions_mut().insert(self.tcp.clone());
        let guard = self.connection.as_ref().map(RequestGuard::new);
        let method = request.method().clone();
        GuardedCall::new(self.inner.call(request), guard).of_method(&method)
    }
}
