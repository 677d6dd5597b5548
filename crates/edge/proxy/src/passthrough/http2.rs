//! Passes HTTP/2 requests through to the original destination of their connection.

use std::{io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use fairmesh_calls::{Body, BoxError, forwarding::foreign_body};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::Mutex;

use crate::passthrough::original_dst::PassthroughConnector;

type BoxedBody = UnsyncBoxBody<Bytes, BoxError>;

/// The original destination of a captured connection.
#[derive(Clone, Debug)]
pub(crate) struct CapturedConnection {
    pub(crate) original: SocketAddr,
    /// Whether only calls of services are allowed.
    pub(crate) only_services: bool,
    /// Opened by the first request that is passed through.
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
        Ok(server.send_request(request).await?.map(foreign_body))
    }

    /// One connection for all requests, as the client intended.
    async fn server(&self, connector: &PassthroughConnector) -> io::Result<SendRequest<BoxedBody>> {
        let mut server = self.server.lock().await;
        if let Some(open) = server.as_ref().filter(|server| !server.is_closed()) {
            return Ok(open.clone());
        }
        let io = TokioIo::new(connector.connect(self.original).await?);
        let handshake = http2::handshake(TokioExecutor::new(), io).await;
        let (opened, connection) = handshake.map_err(io::Error::other)?;
        // Ends when all senders are dropped.
        tokio::spawn(connection);
        Ok(server.insert(opened).clone())
    }
}
