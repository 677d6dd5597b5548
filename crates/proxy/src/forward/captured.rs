//! Requests on connections that their programs meant for somebody else.
//!
//! Over HTTP/1.1 the first request of a connection tells whom it is for, and what is for no service never comes here. Over
//! HTTP/2 nothing tells before both sides have spoken, so that each request is looked at, and passed on by itself.

use std::{io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use fairmesh_client::{Body, BoxError};
use http::{Method, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::Mutex;

use super::Forwarder;
use crate::{answer, metrics::count, onward::Onward};

type Upload = UnsyncBoxBody<Bytes, BoxError>;

/// Where such a connection was meant to go.
#[derive(Clone, Debug)]
pub(crate) struct Captured {
    original: SocketAddr,
    /// Whether nothing but calls of services is let through.
    only_services: bool,
    /// The connection to there, once a request was passed on.
    server: Arc<Mutex<Option<SendRequest<Upload>>>>,
}

impl Captured {
    pub(crate) fn new(original: SocketAddr, only_services: bool) -> Self {
        Self { original, only_services, server: Arc::default() }
    }

    async fn send(&self, request: Request<Upload>, onward: &Onward) -> Result<Response<Body>, BoxError> {
        let mut server = self.server(onward).await?;
        server.ready().await?;
        Ok(server.send_request(request).await?.map(Body::foreign))
    }

    /// One for all requests of a connection, as its program meant it to be.
    async fn server(&self, onward: &Onward) -> io::Result<SendRequest<Upload>> {
        let mut server = self.server.lock().await;
        if let Some(open) = server.as_ref().filter(|server| !server.is_closed()) {
            return Ok(open.clone());
        }
        let passage = TokioIo::new(onward.connect(self.original).await?);
        let shaken = http2::handshake(TokioExecutor::new(), passage).await;
        let (opened, connection) = shaken.map_err(io::Error::other)?;
        // It ends when nobody can send over it any more.
        tokio::spawn(connection);
        Ok(server.insert(opened).clone())
    }
}

impl Forwarder {
    /// Lets a request through that is for a service; else the answer to it.
    pub(super) async fn admit<B>(
        &self,
        request: Request<B>,
        captured: &Captured,
    ) -> Result<Request<B>, Response<Body>>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let authority = request.uri().authority().map(|authority| authority.as_str());
        let header = || request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        let host = authority.or_else(header).unwrap_or_default();
        // Where nothing is passed on, who calls a service that does not exist is told so as by any other listener.
        if captured.only_services || self.services.has(host).await {
            return Ok(request);
        }
        // Nothing carries a tunnel on to where this connection was meant to go.
        if request.version() == Version::HTTP_2 && request.method() != Method::CONNECT {
            // Boxed, since most are for services, and hold the memory for it as well.
            return Err(Box::pin(self.pass_on(request, captured)).await);
        }
        count(&self.metrics.captured.refused);
        let words = format!(
            "'{host}' is no service, and this connection carries calls of services; open another one\n"
        );
        Err(answer::of_http(StatusCode::MISDIRECTED_REQUEST, words))
    }

    async fn pass_on<B>(&self, request: Request<B>, captured: &Captured) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        count(&self.metrics.captured.requests_passed_on);
        let mut request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        // Nothing of the connection it came on belongs to the other.
        request.extensions_mut().clear();
        match captured.send(request, &self.onward).await {
            Ok(answer) => answer,
            Err(error) => {
                count(&self.metrics.captured.in_vain);
                let words = format!("{} did not answer: {error}\n", captured.original);
                answer::of_http(StatusCode::BAD_GATEWAY, words)
            }
        }
    }
}
