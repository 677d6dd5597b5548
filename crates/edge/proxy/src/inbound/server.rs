//! The server in front of a local program.
//!
//! It does for the program what the server library does in process: registers and drains the endpoint, reports the
//! number of requests in flight with each response, refuses keys of shards that the instance does not hold, and limits
//! concurrency.
//!
//! The library provides listener, authorization, limits and load reports. The shared parts of proxies serve and forward the connections, as
//! for clients of the other listeners.

use std::{sync::Arc, time::Duration};

use fairmesh_calls::forwarding::DirectClient;
use fairmesh_edge::{
    forward::body_limit::UNLIMITED, limits::Limits, metrics::EdgeMetrics, observe::served::ServedObserver,
    server::http::HttpServer, shutdown::Shutdown, tunnel::Tunnels,
};
use fairmesh_server::{CallerConnection, MeshServer, serve_connections};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::task::TaskTracker;

use crate::{
    error::ProxyError,
    inbound::{
        caller_handler::{CallerHandler, RequestHandler},
        caller_stream::CallerStream,
        config::{InboundConfig, InboundEndpoint},
        local_forwarder::{LocalForwarder, Revocation},
        peer::Peer,
    },
};

/// Idle timeout of callers' connections. Longer than callers keep one, so that none is closed that a caller is about to use.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(180);

/// A running inbound server.
#[derive(Debug)]
pub struct InboundServer {
    endpoint: ServedEndpoint,
    serving: JoinHandle<()>,
}

/// The registered endpoint, and what is seen of its requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServedEndpoint {
    pub(crate) server: MeshServer,
    pub(crate) observer: Arc<ServedObserver>,
    /// Counters of its connections.
    pub(crate) connections: Arc<EdgeMetrics>,
}

impl ServedEndpoint {
    /// Drains and deregisters the endpoint.
    pub async fn shutdown(&self) {
        self.server.shutdown().await;
    }
}

/// The address of an inbound server, bound and not registered yet.
#[derive(Debug)]
pub struct BoundInbound {
    listener: TcpListener,
    config: InboundConfig,
}

impl BoundInbound {
    /// Binds the address.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(config: InboundConfig) -> Result<Self, ProxyError> {
        let address = config.inbound.address;
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| ProxyError::Listen { address, source })?;
        Ok(Self { listener, config })
    }

    /// Registers the endpoint and serves. Every other listener of the process is bound by then.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub async fn start(self) -> Result<InboundServer, ProxyError> {
        let Self { listener, config } = self;
        let InboundEndpoint { service, address, program } = config.inbound.clone();
        let client = DirectClient::start("the program", program, config.protocol);
        let client = client.map_err(ProxyError::Inbound)?;
        let limits = config.limits;
        let server = server_builder(config).start().await.map_err(ProxyError::Inbound)?;
        tracing::info!(%service, %address, %program, "serving in front of a program");
        let observer = Arc::new(ServedObserver::new(service));
        let endpoint = ServedEndpoint { server, observer, connections: Arc::default() };
        let serving = tokio::spawn(serve(listener, client, endpoint.clone(), limits));
        Ok(InboundServer { endpoint, serving })
    }
}

/// Serves until the endpoint is deregistered and every connection and tunnel has ended.
async fn serve(listener: TcpListener, program: DirectClient, endpoint: ServedEndpoint, limits: Limits) {
    let ServedEndpoint { server, observer, connections: metrics } = endpoint;
    let shutdown = Arc::<Shutdown>::default();
    let tasks = TaskTracker::new();
    let bounds = fairmesh_listen::Limits::program().with_connections(limits.connections);
    let limits = Limits { idle_timeout: IDLE_TIMEOUT, ..limits };
    let tunnels = Tunnels::new(limits, Arc::clone(&metrics), Arc::clone(&shutdown), tasks.clone());
    let (revocation, max_body) = (Revocation::Calls(server.layer()), limits.body.unwrap_or(UNLIMITED));
    let forwarder = LocalForwarder { program, tunnels, metrics: Arc::clone(&metrics), max_body, revocation };
    let handler = RequestHandler { server: server.layer(), forwarder: Arc::new(forwarder), observer };
    let closing = async { shutdown.start_without_grace(server.closing().await) };
    let served = serve_connections(listener, &server, bounds, {
        let (shutdown, server) = (Arc::clone(&shutdown), server.clone());
        move |connection: CallerConnection| {
            let (metrics, shutdown) = (Arc::clone(&metrics), Arc::clone(&shutdown));
            let (handler, own) = (handler.clone(), server.identity());
            async move {
                let caller = connection.layer();
                let stream = connection.into_stream();
                let Some(peer) = Peer::of(&stream, own.as_ref()) else { return };
                let _open = metrics.connections.count_open();
                let address = peer.address;
                let handler = CallerHandler { caller, peer, handler };
                let http = HttpServer {
                    idle_timeout: IDLE_TIMEOUT,
                    metrics: &metrics.connections,
                    shutdown: &shutdown,
                };
                http.serve(CallerStream(stream), address, handler).await;
            }
        }
    });
    // Fails only if the listener has no address, and it is bound.
    let _ = tokio::join!(served, closing);
    tasks.close();
    tasks.wait().await;
}

impl InboundServer {
    /// The registered endpoint.
    pub fn server(&self) -> ServedEndpoint {
        self.endpoint.clone()
    }

    /// Drains: callers move away, requests in flight complete, and the endpoint is deregistered, all within the
    /// deadline.
    pub async fn stop(self) {
        self.endpoint.shutdown().await;
        // Ends with the drain.
        let _ = self.serving.await;
    }
}

fn server_builder(config: InboundConfig) -> fairmesh_server::ServerBuilder {
    let InboundConfig {
        transport,
        inbound,
        protocol,
        instance,
        location,
        requests,
        adaptive,
        limits,
        agent,
        control,
    } = config;
    let mut builder = MeshServer::builder(inbound.service.to_string())
        .address(inbound.address)
        .protocol(protocol)
        .remember_traces()
        .at_most(requests)
        .drain_deadline(limits.drain);
    if let Some(transport) = transport {
        builder = builder.transport(transport);
    }
    if adaptive {
        builder = builder.adaptive();
    }
    if let Some(instance) = instance {
        builder = builder.instance(instance);
    }
    if let Some(location) = location {
        builder = builder.location(location);
    }
    if let Some(agent) = agent {
        builder = builder.agent(agent);
    }
    if let Some(control) = control {
        builder = builder.control(control);
    }
    builder
}
