//! Handles the requests of a connection as calls of services.

use std::sync::Arc;

use fairmesh_calls::Body;
use fairmesh_http::h2::RequestBody;
use http::{Request, Response};

use crate::{
    forward::{connection_info::ConnectionInfo, connection_origin::Origin, forwarder::Forwarder},
    http2::connection::StreamHandler,
};

/// Handles the requests of one connection, over either version of HTTP. Owns its data, since HTTP/2 requests
/// run as separate tasks.
#[derive(Debug)]
pub(crate) struct ConnectionHandler<O> {
    pub(crate) forwarder: Arc<Forwarder>,
    pub(crate) client_info: ConnectionInfo,
    pub(crate) origin: O,
}

impl<O: Origin> StreamHandler for ConnectionHandler<O> {
    fn handle(&self, request: Request<RequestBody>) -> impl Future<Output = Response<Body>> + Send {
        self.forwarder.handle(request, &self.client_info, &self.origin)
    }
}
