//! Passes HTTP/2 requests through to the original destination of their connection.

use std::{io, sync::Arc};

use bytes::Bytes;
use fairmesh_calls::{Body, BoxError, forwarding::foreign_body};
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::Mutex;

use crate::passthrough::{original_dst::Destination, traffic_classification::Passthrough};

type BoxedBody = UnsyncBoxBody<Bytes, BoxError>;

/// A captured HTTP/2 connection. Requests that are not for a service go to its original destination.
#[derive(Debug)]
pub(crate) struct CapturedConnection {
    pub(crate) destination: Destination,
    pub(crate) passthrough: Arc<Passthrough>,
    /// Connection to the original destination, opened by the first request that is passed through.
    server: Mutex<Option<SendRequest<BoxedBody>>>,
}

impl CapturedConnection {
    pub(crate) fn new(destination: Destination, passthrough: Arc<Passthrough>) -> Self {
        Self { destination, passthrough, server: Mutex::default() }
    }

    pub(crate) async fn send(&self, request: Request<BoxedBody>) -> Result<Response<Body>, BoxError> {
        let mut server = self.server().await?;
        server.ready().await?;
        Ok(server.send_request(request).await?.map(foreign_body))
    }

    /// Returns the connection to the original destination. All requests share it, as the client intended.
    async fn server(&self) -> io::Result<SendRequest<BoxedBody>> {
        let mut server = self.server.lock().await;
        if let Some(open) = server.as_ref().filter(|server| !server.is_closed()) {
            return Ok(open.clone());
        }
        let io = TokioIo::new(self.passthrough.connector.connect(self.destination.address).await?);
        let handshake = http2::handshake(TokioExecutor::new(), io).await;
        let (opened, connection) = handshake.map_err(io::Error::other)?;
        // Ends when all senders are dropped.
        tokio::spawn(connection);
        Ok(server.insert(opened).clone())
    }
}
