//! Handles the requests of a caller: the library's layers decide, and the forwarder sends.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use fairmesh_calls::{Body, BoxError, forwarding::foreign_body};
use fairmesh_edge::server::http::HttpHandler;
use fairmesh_server::{Caller, CallerLayer, ServerLayer};
use http::{Request, Response};
use tower::{Layer as _, Service as _, service_fn};

use crate::inbound::{local_forwarder::LocalForwarder, observation::InboundObservation};

/// Handles the requests of all connections. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct RequestHandler {
    /// Authorization, limits, deadlines and load reports.
    pub(crate) server: ServerLayer,
    pub(crate) forwarder: Arc<LocalForwarder>,
    pub(crate) observation: Arc<InboundObservation>,
}

/// Handles the requests of one connection.
#[derive(Debug)]
pub(crate) struct CallerHandler {
    /// Who calls, and the connection that the listener bounds.
    pub(crate) caller: CallerLayer,
    /// The address of the caller.
    pub(crate) peer: SocketAddr,
    pub(crate) handler: RequestHandler,
}

impl HttpHandler for CallerHandler {
    async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let RequestHandler { server, forwarder, observation } = &self.handler;
        let (request, call) = observation.begin(request, self.peer);
        // Known once the request is accepted: the peer, or the caller that an intermediary states.
        let accepted = OnceLock::<Caller>::new();
        let forward = service_fn(async |request: Request<B>| {
            if let Some(caller) = request.extensions().get::<Caller>() {
                accepted.get_or_init(|| caller.clone());
            }
            Ok::<_, Infallible>(forwarder.forward(request, self.peer.ip()).await)
        });
        let mut service = self.caller.layer(server.layer(forward));
        let Ok(response) = service.call(request).await;
        let mut response = response.map(foreign_body);
        if let Some(call) = call {
            let caller = accepted.get().or_else(|| self.caller.caller());
            observation.response_started(call, &mut response, caller);
        }
        response
    }
}
