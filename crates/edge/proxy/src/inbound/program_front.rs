//! Forwards requests of connections that were authorized as a whole to a program. `fairmesh register` uses
//! this in front of a program.
//!
//! Callers choose the HTTP version by the declaration of the service, which is not known here. A request is
//! therefore sent in the version in which it arrived.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use fairmesh_calls::{
    Body, BoxError, Deadline,
    forwarding::{DirectClient, foreign_body},
};
use fairmesh_edge::{
    forward::request_body_rules::UNLIMITED,
    limits::Limits,
    metrics::EdgeMetrics,
    observe::{
        observer::RequestObserver,
        request_info::Arrival,
        served_requests::{ServedObserver, ServedRequest},
    },
    server::http::{HttpHandler, HttpServer},
    shutdown::Shutdown,
    tunnel::Tunnels,
};
use fairmesh_headers::{asks_for_local, is_distance_probe, read_deadline};
use fairmesh_listen::GuardedStream;
use fairmesh_metrics::{DurationFamily, Side, families};
use fairmesh_model::{Invalid, Protocol, ServiceName};
use fairmesh_server::{ConnectionAuthorizer, Stream, Transport};
use http::{Request, Response, StatusCode, Version};
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::inbound::{
    caller_stream::CallerStream,
    local_forwarder::{LocalForwarder, Revocation},
    local_transport, metrics,
    peer::Peer,
    server::IDLE_TIMEOUT,
};

/// Forwards the requests of callers to a program, and observes them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ProgramFront {
    authorizer: ConnectionAuthorizer,
    program: SocketAddr,
    /// Transport that accepts callers' connections. The certificate that identifies this process may arrive later.
    transport: Transport,
    /// Clients of the program over HTTP/1.1 and over HTTP/2.
    http1: Arc<LocalForwarder>,
    http2: Arc<LocalForwarder>,
    observer: Arc<ServedObserver>,
    metrics: Arc<EdgeMetrics>,
    shutdown: Arc<Shutdown>,
}

impl ProgramFront {
    /// Starts in front of the program of `service` at this address. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The address cannot be the host of a URI.
    pub fn start(
        (service, program): (ServiceName, SocketAddr),
        (authorizer, transport): (ConnectionAuthorizer, Transport),
        observer: Arc<RequestObserver>,
    ) -> Result<Self, Invalid> {
        let (metrics, shutdown) = (Arc::<EdgeMetrics>::default(), Arc::<Shutdown>::default());
        let limits = Limits { idle_timeout: IDLE_TIMEOUT, ..Limits::default() };
        let tunnels = Tunnels::new(limits, Arc::clone(&metrics), Arc::clone(&shutdown), TaskTracker::new());
        let forwarder = |protocol| {
            let program = DirectClient::start("the program", program, protocol)?;
            Ok(Arc::new(LocalForwarder {
                program,
                tunnels: tunnels.clone(),
                metrics: Arc::clone(&metrics),
                max_body: UNLIMITED,
                revocation: Revocation::Connections(authorizer.clone()),
            }))
        };
        let (http1, http2) = (forwarder(Protocol::Http1)?, forwarder(Protocol::Http2)?);
        let served = ServedObserver::new(service);
        served.set_observer(observer);
        Ok(Self {
            authorizer,
            program,
            transport,
            http1,
            http2,
            observer: Arc::new(served),
            metrics,
            shutdown,
        })
    }

    /// Serves an accepted connection until it ends, or until its caller is no longer allowed to use the
    /// service.
    pub async fn serve(&self, stream: GuardedStream<Stream>) {
        let Some(peer) = Peer::of(&stream, self.transport.id().as_ref()) else { return };
        let _open = self.metrics.connections.count_open();
        let (address, identity) = (peer.address, peer.identity.clone());
        let server = HttpServer {
            idle_timeout: IDLE_TIMEOUT,
            metrics: &self.metrics.connections,
            shutdown: &self.shutdown,
        };
        let handler = FrontHandler { front: self.clone(), peer };
        tokio::select! {
            () = server.serve(CallerStream(stream), address, handler) => {}
            () = self.authorizer.revoked(&identity) => {}
        }
    }

    /// Ends upgraded connections.
    pub fn stop(&self) {
        self.shutdown.start_without_grace(Instant::now());
    }

    /// Durations of requests, by caller.
    pub fn calls(&self) -> Vec<DurationFamily> {
        families(Side::Server, self.observer.metrics().call_rows())
    }

    /// Registers the requests by caller, and the connections.
    pub fn register(&self, registry: &mut Registry) {
        metrics::register_front(registry, &self.observer, &self.metrics);
    }
}

/// Handles the requests of one connection.
struct FrontHandler {
    front: ProgramFront,
    peer: Peer,
}

impl HttpHandler for FrontHandler {
    async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        if is_distance_probe(&request) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            return response;
        }
        let Self { front, peer } = self;
        if asks_for_local(&request) {
            let decided = front.authorizer.decide_local(peer.caller.as_ref());
            return local_transport::respond((peer, request.headers()), decided, Ok(front.program));
        }
        let length = request.body().size_hint().exact();
        let arrival = Arrival { caller: peer.address, began: Instant::now(), length, is_outside: false };
        let (mut request, served) = front.observer.begin(request, arrival, peer.served.clone());
        let caller = match front.authorizer.caller_of(&mut request, peer.caller.as_ref()) {
            Ok(caller) => caller,
            Err(refusal) => {
                front.authorizer.count_refused(peer.caller.as_ref());
                return respond((*refusal).map(foreign_body), served);
            }
        };
        let counted = served.as_ref().map(|_| front.authorizer.count(&mut request, caller.as_ref()));
        if let Some(served) = &served {
            served.accept(peer.served_caller(caller.as_ref()));
        }
        if let Some(caller) = caller {
            request.extensions_mut().insert(caller);
        }
        if let Some(deadline) = read_deadline(request.headers()).and_then(Deadline::after) {
            request.extensions_mut().insert(deadline);
        }
        let forwarder = if request.version() == Version::HTTP_2 { &front.http2 } else { &front.http1 };
        let response = forwarder.forward(request, peer).await;
        let response = match counted {
            Some(counted) => counted.response(response).map(foreign_body),
            // A poll of the load is not a call.
            None => response.map(foreign_body),
        };
        respond(response, served)
    }
}

/// Starts the observation of a response.
fn respond(mut response: Response<Body>, served: Option<ServedRequest>) -> Response<Body> {
    if let Some(served) = served {
        served.response_started(&mut response);
    }
    response
}
