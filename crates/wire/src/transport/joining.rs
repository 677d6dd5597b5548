use std::{
    future::{Ready, ready},
    task::{Context, Poll},
};

use futures_util::future::Either;
use tonic::Status;
use tower_layer::Layer;
use tower_service::Service;

/// The calls of a peer that has no certificate yet.
const JOIN_PATHS: [&str; 2] = ["/fairmesh.v1.Rib/Hello", "/fairmesh.v1.Identity/Join"];

/// Marks requests of a peer that has shown no certificate on a secured connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joining;

/// The layer that refuses all calls but those by which an agent joins to peers without a certificate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JoinCheck;

impl<S> Layer<S> for JoinCheck {
    type Service = JoinChecked<S>;

    fn layer(&self, inner: S) -> Self::Service {
        JoinChecked { inner }
    }
}

/// A service behind [`JoinCheck`].
#[derive(Clone, Debug)]
pub(super) struct JoinChecked<S> {
    inner: S,
}

impl<S, Req, Res> Service<http::Request<Req>> for JoinChecked<S>
where
    S: Service<http::Request<Req>, Response = http::Response<Res>>,
    Res: Default,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<Ready<Result<S::Response, S::Error>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Req>) -> Self::Future {
        let is_joining = request.extensions().get::<Joining>().is_some();
        if is_joining && !JOIN_PATHS.contains(&request.uri().path()) {
            let status = Status::unauthenticated(
                "this mesh has a trust domain, and the caller shows no certificate; call through an agent that has joined",
            );
            return Either::Left(ready(Ok(status.into_http())));
        }
        Either::Right(self.inner.call(request))
    }
}
