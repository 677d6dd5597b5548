use std::{
    future::{Ready, ready},
    task::{Context, Poll},
};

use fairmesh_listen::RequestGuard;
use futures_util::future::Either;
use http::header::AUTHORIZATION;
use tonic::Status;
use tower_layer::Layer;
use tower_service::Service;

use super::BearerToken;

/// Paths of the calls that a peer without a certificate may make.
const JOIN_PATHS: [&str; 2] = ["/fairmesh.v1.Rib/Hello", "/fairmesh.v1.Identity/Join"];

/// Marks requests of a peer that has not sent a certificate on a secured connection. The peer can join, or send a
/// user token if the process accepts user tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithoutCertificate {
    /// Whether the process accepts user tokens.
    pub takes_tokens: bool,
}

impl WithoutCertificate {
    /// Whether a call needs neither certificate nor token.
    pub fn is_joining(path: &str) -> bool {
        JOIN_PATHS.contains(&path)
    }

    /// The status of refused calls.
    pub fn refusal(self) -> Status {
        let or = if self.takes_tokens { ", or send the token of a user" } else { "" };
        Status::unauthenticated(format!(
            "this mesh has a trust domain, and the caller shows no certificate; call through an agent that has joined{or}"
        ))
    }

    /// Whether a call may proceed. The process verifies its token later.
    fn permits<T>(self, request: &http::Request<T>) -> bool {
        let mut tokens = request.headers().get_all(AUTHORIZATION).iter().filter_map(BearerToken::in_header);
        Self::is_joining(request.uri().path()) || (self.takes_tokens && tokens.next().is_some())
    }
}

/// Layer that checks calls of peers without a certificate: only calls for joining, and calls with a user token, may
/// proceed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JoinCheck;

impl<S> Layer<S> for JoinCheck {
    type Service = JoinChecked<S>;

    fn layer(&self, inner: S) -> Self::Service {
        JoinChecked { inner }
    }
}

/// Inner service wrapped by [`JoinCheck`].
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
        let without = request.extensions().get::<WithoutCertificate>().copied();
        if let Some(without) = without.filter(|without| !without.permits(&request)) {
            if let Some(guard) = request.extensions().get::<RequestGuard>() {
                guard.count_refusal();
            }
            return Either::Left(ready(Ok(without.refusal().into_http())));
        }
        Either::Right(self.inner.call(request))
    }
}
