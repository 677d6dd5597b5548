//! The HTTP/2 connection to the original destination.

use std::{io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use fairmesh_client::{Body, BoxError};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::Mutex;

use crate::passthrough::original_dst::PassthroughConnector;

type BoxedBody = UnsyncBoxBody<Bytes, BoxError>;

/// Where such a connection was meant to go.
#[derive(Clone, Debug)]
pub(crate) struct CapturedConnection {
    pub(crate) original: SocketAddr,
    /// Whether nothing but calls of services is let through.
    pub(crate) only_services: bool,
    /// The connection to there, once a request was passed on.
    server: Arc<Mutex<Option<SendRequest<BoxedBody>>>>,
}

impl CapturedConnection {
    pub(crate) fn new(original: SocketAddr, only_services: bool) -> Self {
        Self { original, only_services, server: Arc::default() }
    }

    pub(crate) async fn send(
        &self,
        request: Request<BoxedBody>,
        connector: &PassthroughConnector,
    ) -> Result<Response<Body>, BoxError> {
        let mut server = self.server(connector).await?;
        server.ready().await?;
        Ok(server.send_request(request).await?.map(Body::foreign))
    }

    /// One for all requests of a connection, as its program meant it to be.
    async fn server(&self, connector: &PassthroughConnector) -> io::Result<SendRequest<BoxedBody>> {
        let mut server = self.server.lock().await;
        if let Some(open) = server.as_ref().filter(|server| !server.is_closed()) {
            return Ok(open.clone());
        }
        let io = TokioIo::new(connector.connect(self.original).await?);
        let handshake = http2::handshake(TokioExecutor::new(), io).await;
        let (opened, connection) = handshake.map_err(io::Error::other)?;
        // It ends when nobody can send over it any more.
        tokio::spawn(connection);
        Ok(server.insert(opened).clone())
    }
}
