use std::{
    future::{Ready, ready},
    task::{Context, Poll},
};

use futures_util::future::Either;
use tower_layer::Layer;
use tower_service::Service;

use super::server::check;

/// The only call that is accepted before a version is negotiated.
const HELLO_PATH: &str = "/fairmesh.v1.Rib/Hello";
/// Path prefix of the services that require a version. Standard health checks and services in packages with their own
/// version do not require one.
const OWN_PATHS: &str = "/fairmesh.v1.";

/// Layer that rejects calls with an unsupported version. [`crate::transport::serve`] applies it.
#[derive(Clone, Copy, Debug, Default)]
pub struct VersionCheck;

impl<S> Layer<S> for VersionCheck {
    type Service = VersionChecked<S>;

    fn layer(&self, inner: S) -> Self::Service {
        VersionChecked { inner }
    }
}

/// Inner service wrapped by [`VersionCheck`].
#[derive(Clone, Debug)]
pub struct VersionChecked<S> {
    inner: S,
}

impl<S, Req, Res> Service<http::Request<Req>> for VersionChecked<S>
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
        let path = request.uri().path();
        let checked =
            if path.starts_with(OWN_PATHS) && path != HELLO_PATH { check(request.headers()) } else { Ok(()) };
        match checked {
            Ok(()) => Either::Right(self.inner.call(request)),
            Err(status) => Either::Left(ready(Ok(status.into_http()))),
        }
    }
}
