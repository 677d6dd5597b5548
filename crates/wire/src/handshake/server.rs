use std::{
    future::{Ready, ready},
    task::{Context, Poll},
};

use futures_util::future::Either;
use http::HeaderMap;
use tonic::{
    Code, Request, Status,
    metadata::{MetadataMap, MetadataValue},
};
use tower_layer::Layer;
use tower_service::Service;

use super::{PROTOCOL, REFUSED_KEY, SOFTWARE_KEY, VERSION_KEY};
use crate::v1::HelloRequest;

/// The one call that comes before a version is agreed on.
const HELLO_PATH: &str = "/fairmesh.v1.Rib/Hello";
/// Calls to other services, such as health checks by common tools, know nothing of versions.
const OWN_PATHS: &str = "/fairmesh.";

/// Picks the newest version that both sides speak.
///
/// # Errors
/// `FAILED_PRECONDITION` when there is none, saying which side to upgrade; `INVALID_ARGUMENT` for an empty range.
pub fn negotiate(request: &HelloRequest) -> Result<u32, Status> {
    let (oldest, newest) = (request.oldest_version, request.newest_version);
    if oldest == 0 || oldest > newest {
        return Err(Status::invalid_argument(format!(
            "the caller says that it speaks versions {oldest} to {newest}; send a first version of at least 1 and a \
             last one not below it"
        )));
    }
    if newest < *PROTOCOL.start() {
        return Err(unknown_version(newest));
    }
    if oldest > *PROTOCOL.end() {
        return Err(unknown_version(oldest));
    }
    Ok(newest.min(*PROTOCOL.end()))
}

fn unknown_version(spoken: u32) -> Status {
    let (oldest, newest) = (PROTOCOL.start(), PROTOCOL.end());
    let side = if spoken < *oldest { "the caller" } else { "the side that answers" };
    version_refused(format!(
        "the caller speaks protocol version {spoken} and the side that answers speaks {oldest} to {newest}; upgrade {side}"
    ))
}

fn version_refused(reason: String) -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert(REFUSED_KEY, MetadataValue::from_static("true"));
    Status::with_metadata(Code::FailedPrecondition, reason, metadata)
}

/// Whether a call was refused for its version: greet the answerer anew with Hello, which says what to upgrade.
pub fn is_version_refusal(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition && status.metadata().contains_key(REFUSED_KEY)
}

fn check(headers: &HeaderMap) -> Result<(), Status> {
    let Some(value) = headers.get(VERSION_KEY) else {
        return Err(version_refused(format!(
            "the call carries no '{VERSION_KEY}'; call fairmesh.v1.Rib/Hello first and send the version that it answers \
             with every call"
        )));
    };
    match value.to_str().ok().and_then(|text| text.parse().ok()) {
        Some(version) if PROTOCOL.contains(&version) => Ok(()),
        Some(version) => Err(unknown_version(version)),
        None => Err(version_refused(format!(
            "'{VERSION_KEY}' is not a whole number; send the version that fairmesh.v1.Rib/Hello answered"
        ))),
    }
}

/// What the caller said it is, for people; empty when it did not. Nothing may be decided by it.
pub fn software_of<T>(request: &Request<T>) -> &str {
    request.metadata().get(SOFTWARE_KEY).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The layer that refuses calls whose version this side does not speak. [`crate::transport::serve`] applies it.
#[derive(Clone, Copy, Debug, Default)]
pub struct VersionCheck;

impl<S> Layer<S> for VersionCheck {
    type Service = VersionChecked<S>;

    fn layer(&self, inner: S) -> Self::Service {
        VersionChecked { inner }
    }
}

/// A service behind [`VersionCheck`].
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
