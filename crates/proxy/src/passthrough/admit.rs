//! Requests on connections that their programs meant for somebody else.
//!
//! Over HTTP/1.1 the first request of a connection tells whom it is for, and what is for no service never comes here. Over
//! HTTP/2 nothing tells before both sides have spoken, so that each request is looked at, and passed on by itself.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher as _, Hasher as _},
    sync::LazyLock,
};

use bytes::Bytes;
use fairmesh_client::{Body, BoxError};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body_util::BodyExt as _;

use crate::{
    forward::{error_response, forwarder::Forwarder},
    observe::counter::increment,
    passthrough::http2::CapturedConnection,
};

/// In requests that came by capture: which proxies captured them.
const CAPTURED_BY: HeaderName = HeaderName::from_static("x-fairmesh-captured-by");

/// How often a request may come by: programs that call each other in a chain pass headers on, so that once more says nothing.
/// A loop comes by without end.
const MAX_PASSES: usize = 8;

/// What this process calls itself there: it need not be told from anybody but other proxies that the request meets.
static OWN_ID: LazyLock<HeaderValue> = LazyLock::new(|| RandomState::new().build_hasher().finish().into());

impl Forwarder {
    /// Lets a request through that is for a service and was not captured here before; else the answer to it.
    pub(crate) async fn admit<B>(
        &self,
        mut request: Request<B>,
        captured: &CapturedConnection,
    ) -> Result<Request<B>, Response<Body>>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let times = request.headers().get_all(CAPTURED_BY).iter().filter(|by| *by == *OWN_ID).count();
        if times >= MAX_PASSES {
            increment(&self.metrics.capture.looped);
            let message =
                "the proxy's own call was redirected to it; except the proxy from what is captured\n";
            return Err(error_response::plain_text(StatusCode::LOOP_DETECTED, message.to_owned()));
        }
        let authority = request.uri().authority().map(|authority| authority.as_str());
        let header = || request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        let host = authority.or_else(header).unwrap_or_default();
        // Where nothing is passed on, who calls a service that does not exist is told so as by any other listener.
        if captured.only_services || self.services.is_declared(host).await {
            request.headers_mut().append(CAPTURED_BY, OWN_ID.clone());
            return Ok(request);
        }
        // Nothing carries a tunnel on to where this connection was meant to go.
        if request.version() == Version::HTTP_2 && request.method() != Method::CONNECT {
            // Boxed, since most are for services, and hold the memory for it as well.
            return Err(Box::pin(self.pass_through(request, captured)).await);
        }
        increment(&self.metrics.capture.refused);
        let message = format!(
            "'{host}' is no service, and this connection carries calls of services; open another one\n"
        );
        Err(error_response::plain_text(StatusCode::MISDIRECTED_REQUEST, message))
    }

    async fn pass_through<B>(&self, request: Request<B>, captured: &CapturedConnection) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        increment(&self.metrics.capture.requests_passed_through);
        let mut request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        // Nothing of the connection it came on belongs to the other.
        request.extensions_mut().clear();
        match captured.send(request, &self.connector).await {
            Ok(response) => response,
            Err(error) => {
                increment(&self.metrics.capture.failed);
                let message = format!("{} did not answer: {error}\n", captured.original);
                error_response::plain_text(StatusCode::BAD_GATEWAY, message)
            }
        }
    }
}
