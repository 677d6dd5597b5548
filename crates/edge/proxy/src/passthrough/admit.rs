//! Routes requests on captured connections.
//!
//! Over HTTP/1.1 the first request of a connection determines its destination, so that other traffic does not get here.
//! Over HTTP/2 the destination is unknown until both sides have exchanged settings, so that each request is routed or
//! passed through individually.

use bytes::Bytes;
use fairmesh_calls::{Body, BoxError};
use http::{Method, Request, Response, StatusCode, Version, header};
use http_body_util::BodyExt as _;

use crate::{
    counter::increment,
    forward::{error_response, forwarder::Forwarder},
    passthrough::http2::CapturedConnection,
};

impl Forwarder {
    /// Accepts a request to a service; otherwise returns the response to it.
    pub(crate) async fn admit<B>(
        &self,
        request: Request<B>,
        captured: &CapturedConnection,
    ) -> Result<Request<B>, Response<Body>>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let authority = request.uri().authority().map(|authority| authority.as_str());
        let header = || request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        let host = authority.or_else(header).unwrap_or_default();
        // With `+only-services`, calls to undeclared services get the usual error.
        if captured.only_services || self.services.is_declared(host).await {
            return Ok(request);
        }
        // Tunnels cannot be passed through to the original destination.
        if request.version() == Version::HTTP_2 && request.method() != Method::CONNECT {
            // Boxed: most requests are to services, and would reserve the space as well.
            return Err(Box::pin(self.pass_through(request, captured)).await);
        }
        increment(&self.metrics.capture.refused);
        let message = format!(
            "'{host}' is not a service, and this connection carries calls of services; open another one\n"
        );
        Err(error_response::plain_text(StatusCode::MISDIRECTED_REQUEST, message))
    }

    async fn pass_through<B>(&self, request: Request<B>, captured: &CapturedConnection) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        increment(&self.metrics.capture.requests_passed_through);
        let mut request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        // Extensions belong to the client's connection.
        request.extensions_mut().clear();
        match captured.send(request, &self.connector).await {
            Ok(response) => response,
            Err(error) => {
                increment(&self.metrics.capture.failed);
                let message = format!("{} did not respond: {error}\n", captured.original);
                error_response::plain_text(StatusCode::BAD_GATEWAY, message)
            }
        }
    }
}
