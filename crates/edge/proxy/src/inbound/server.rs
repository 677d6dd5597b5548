//! The server in front of a local program.
//!
//! It does for the program what the server library does in process: registers and drains the endpoint, reports the
//! number of requests in flight with each response, refuses keys of shards that the instance does not hold, and limits
//! concurrency.
//!
//! Its listener, authorization, limits and load reports are those of the library; what is spoken on its connections is served and forwarded by
//! the shared parts of proxies, as for the clients of the other listeners.

use std::{sync::Arc, time::Duration};

use fairmesh_calls::forwarding::DirectClient;
use fairmesh_edge::{
    limits::Limits, metrics::EdgeMetrics, server::http::HttpServer, shutdown::Shutdown, tunnel::Tunnels,
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
        local_forwarder::LocalForwarder,
        observation::InboundObservation,
    },
};

/// Idle timeout of callers' connections. Longer than callers keep one, so that none is closed that a caller is about to use.
const IDLE_TIMEOUT: Duration = Duration::from_secs(180);

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
    pub(crate) observation: Arc<InboundObservation>,
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
        let server = server_builder(config).start().await.map_err(ProxyError::Inbound)?;
        tracing::info!(%service, %address, %program, "serving in front of a program");
        let endpoint = ServedEndpoint { server, observation: Arc::new(InboundObservation::new(service)) };
        let serving = tokio::spawn(serve(listener, client, endpoint.clone()));
        Ok(InboundServer { endpoint, serving })
    }
}

/// Serves until the endpoint is deregistered and every connection and tunnel has ended.
async fn serve(listener: TcpListener, program: DirectClient, endpoint: ServedEndpoint) {
    let ServedEndpoint { server, observation } = endpoint;
    let (metrics, shutdown) = (Arc::<EdgeMetrics>::default(), Arc::<Shutdown>::default());
    let tasks = TaskTracker::new();
    let limits = Limits { idle_timeout: IDLE_TIMEOUT, ..Limits::default() };
    let tunnels = Tunnels::new(limits, Arc::clone(&metrics), Arc::clone(&shutdown), tasks.clone());
    let forwarder = Arc::new(LocalForwarder { program, tunnels, layer: server.layer() });
    let handler = RequestHandler { server: server.layer(), forwarder, observation };
    let closing = async { shutdown.start_without_grace(server.closing().await) };
    let served = serve_connections(listener, &server, {
        let shutdown = Arc::clone(&shutdown);
        move |connection: CallerConnection| {
            let (metrics, shutdown) = (Arc::clone(&metrics), Arc::clone(&shutdown));
            let handler = handler.clone();
            async move {
                let Some(caller) = connection.peer_address() else { return };
                let handler = CallerHandler { caller: connection.layer(), peer: caller, handler };
                let http = HttpServer {
                    idle_timeout: IDLE_TIMEOUT,
                    metrics: &metrics.connections,
                    shutdown: &shutdown,
                };
                http.serve(CallerStream(connection), caller, handler).await;
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
        drain,
        agent,
        control,
    } = config;
    let mut builder = MeshServer::builder(inbound.service.to_string())
        .address(inbound.address)
        .protocol(protocol)
        .remember_traces()
        .at_most(requests)
        .drain_deadline(drain);
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
