//! Handles the requests of a caller: the library's layers authorize and limit them, and the forwarder sends
//! them.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use fairmesh_calls::{Body, BoxError, forwarding::foreign_body};
use fairmesh_edge::{
    observe::{request_info::Arrival, served_requests::ServedObserver},
    server::http::HttpHandler,
};
use fairmesh_headers::asks_for_local;
use fairmesh_server::{CallerLayer, MeshServer, ServerLayer};
use http::{Request, Response};
use tokio::time::Instant;
use tower::{Layer as _, Service as _, service_fn};

use crate::inbound::{
    local_forwarder::LocalForwarder,
    local_transport::{self, NeedsFront},
    peer::Peer,
};

/// Handles the requests of all connections. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct RequestHandler {
    /// Authorization, limits, deadlines and load reports.
    pub(crate) server: ServerLayer,
    pub(crate) forwarder: Arc<LocalForwarder>,
    pub(crate) observer: Arc<ServedObserver>,
    pub(crate) local: LocalFront,
}

/// What the kernel needs to know to send requests to the program in place of this proxy. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct LocalFront {
    pub(crate) server: MeshServer,
    /// Where the program listens; or why all requests have to pass this proxy.
    pub(crate) program: Result<SocketAddr, NeedsFront>,
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
        if asks_for_local(&request) {
            return self.respond_local(request).await;
        }
        let (RequestHandler { server, forwarder, observer, .. }, peer) = (&self.handler, &self.peer);
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

impl CallerHandler {
    /// Says whether the kernel may carry the peer's requests. The question counts as activity of its connection.
    async fn respond_local<B>(&self, request: Request<B>) -> Response<Body> {
        let (peer, RequestHandler { server, local, .. }) = (&self.peer, &self.handler);
        let respond = service_fn(async |request: Request<B>| {
            let decided = server.decide_local(peer.caller.as_ref());
            let response = local_transport::respond((peer, request.headers()), decided, local.program());
            Ok::<_, Infallible>(response)
        });
        let Ok(response) = self.caller.layer(respond).call(request).await;
        response.map(foreign_body)
    }
}

impl LocalFront {
    /// The program, while the endpoint does not drain.
    fn program(&self) -> Result<SocketAddr, NeedsFront> {
        match self.server.is_running() {
            true => self.program,
            false => Err(NeedsFront::Drains),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairmesh_model::{Location, Region};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn draining_endpoint_keeps_kernel_from_its_program() {
        let [front, program] = [9000, 9001].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let server = MeshServer::builder("shop/cart")
            .address(front)
            .location(Location::in_region(Region::new("eu").unwrap()))
            // Nothing listens there, and nothing is registered.
            .control("127.0.0.1:1".parse().unwrap())
            .register_later();
        let server = server.start().await.unwrap();
        let local = LocalFront { server: server.clone(), program: Ok(program) };
        assert_eq!(local.program(), Ok(program));
        server.hand_over(Duration::ZERO);
        assert_eq!(local.program(), Err(NeedsFront::Drains));
    }
}
