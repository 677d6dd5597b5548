//! Handles the requests of a caller: the library's layers decide, and the forwarder sends.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use fairmesh_calls::{Body, BoxError, forwarding::foreign_body};
use fairmesh_edge::server::http::HttpHandler;
use fairmesh_server::{CallerLayer, ServerLayer};
use http::{Request, Response};
use tower::{Layer as _, Service as _, service_fn};

use crate::inbound::local_forwarder::LocalForwarder;

/// Handles the requests of one connection.
#[derive(Debug)]
pub(crate) struct CallerHandler {
    /// Who calls, and the connection that the listener bounds.
    pub(crate) caller: CallerLayer,
    /// Authorization, limits, deadlines and load reports.
    pub(crate) server: ServerLayer,
    pub(crate) forwarder: Arc<LocalForwarder>,
}

impl HttpHandler for CallerHandler {
    async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let forward =
            service_fn(async |request| Ok::<_, Infallible>(self.forwarder.forward::<B>(request).await));
        let mut service = self.caller.layer(self.server.layer(forward));
        let Ok(response) = service.call(request).await;
        response.map(foreign_body)
    }
}
