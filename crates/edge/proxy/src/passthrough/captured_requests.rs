//! Routes requests on captured connections.
//!
//! Over HTTP/1.1 the first request determines the destination of the whole connection, so other traffic does
//! not reach this code. Over HTTP/2 the destination is unknown until both sides have exchanged settings, so
//! each request is routed or passed through individually.

use bytes::Bytes;
use fairmesh_calls::{Body, BoxError};
use fairmesh_edge::{
    counter::increment,
    forward::{connection_origin::Origin, error_response},
    http1::request_offload::NoOffload,
    metrics::requests::RequestMetrics,
    services::Services,
};
use http::{Method, Request, Response, StatusCode, Version, header};
use http_body_util::BodyExt as _;

use crate::passthrough::http2_passthrough::CapturedConnection;

impl Origin for CapturedConnection {
    type Offload = NoOffload;

    const ADMITS_ALL: bool = false;

    async fn admit<B>(&self, request: Request<B>, services: &Services) -> Result<Request<B>, Response<Body>>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let authority = request.uri().authority().map(|authority| authority.as_str());
        let header = || request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        let host = authority.or_else(header).unwrap_or_default();
        // With `+only-services`, calls to undeclared services get the usual error.
        if self.destination.only_services || services.is_declared(host).await {
            return Ok(request);
        }
        // Tunnels cannot be passed through to the original destination.
        if request.version() == Version::HTTP_2 && request.method() != Method::CONNECT {
            // Boxed, since most requests are to services and would otherwise reserve the space too.
            return Err(Box::pin(self.pass_through(request)).await);
        }
        increment(&self.passthrough.metrics.refused);
        let message = format!(
            "'{host}' is not a service, and this connection carries calls of services; open another one\n"
        );
        Err(error_response::plain_text(StatusCode::MISDIRECTED_REQUEST, message))
    }

    fn count_loop(&self, _: &RequestMetrics) -> &'static str {
        increment(&self.passthrough.metrics.loops);
        "the proxy's own call was redirected to it; except the proxy from what is captured"
    }
}

impl CapturedConnection {
    async fn pass_through<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let metrics = &self.passthrough.metrics;
        increment(&metrics.requests_passed_through);
        let mut request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        // Extensions belong to the client's connection.
        request.extensions_mut().clear();
        match self.send(request).await {
            Ok(response) => response,
            Err(error) => {
                increment(&metrics.failed);
                let message = format!("{} did not respond: {error}\n", self.destination.address);
                error_response::plain_text(StatusCode::BAD_GATEWAY, message)
            }
        }
    }
}
