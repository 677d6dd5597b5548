//! Handles the requests of a caller: the library's layers authorize and limit them, and the forwarder sends
//! them.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use fairmesh_calls::{Body, BoxError, forwarding::foreign_body};
use fairmesh_edge::{
    observe::{request_info::Arrival, served_requests::ServedObserver},
    server::http::HttpHandler,
};
use fairmesh_server::{CallerLayer, ServerLayer};
use http::{Request, Response};
use tokio::time::Instant;
use tower::{Layer as _, Service as _, service_fn};

use crate::inbound::{local_forwarder::LocalForwarder, peer::Peer};

/// Handles the requests of all connections. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct RequestHandler {
    /// Authorization, limits, deadlines and load reports.
    pub(crate) server: ServerLayer,
    pub(crate) forwarder: Arc<LocalForwarder>,
    pub(crate) observer: Arc<ServedObserver>,
}

/// Handles the requests of one caller's connection.
#[derive(Debug)]
pub(crate) struct CallerHandler {
    /// Identifies the caller, and applies the listener's limits to its connection.
    pub(crate) caller: CallerLayer,
    pub(crate) peer: Peer,
    pub(crate) handler: RequestHandler,
}

impl HttpHandler for CallerHandler {
    async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let (RequestHandler { server, forwarder, observer }, peer) = (&self.handler, &self.peer);
        let length = request.body().size_hint().exact();
        let arrival = Arrival { caller: peer.address, began: Instant::now(), length, is_outside: false };
        let (request, served) = observer.begin(request, arrival, peer.served.clone());
        let forward = service_fn(async |request: Request<B>| {
            if let Some(served) = &served {
                // The caller is the peer, or the caller that an intermediary states.
                served.accept(peer.served_caller(request.extensions().get()));
            }
            Ok::<_, Infallible>(forwarder.forward(request, peer).await)
        });
        let mut service = self.caller.layer(server.layer(forward));
        let Ok(response) = service.call(request).await;
        drop(service);
        let mut response = response.map(foreign_body);
        if let Some(served) = served {
            served.response_started(&mut response);
        }
        response
    }
}
