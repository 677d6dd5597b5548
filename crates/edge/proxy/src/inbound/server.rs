//! The server in front of a local program.
//!
//! It does for the program what the server library does within a process: registers and drains the endpoint,
//! reports the number of requests in flight with each response, refuses keys of shards that the instance does
//! not hold, and limits concurrency.
//!
//! The library provides listener, authorization, limits and load reports. The code shared by all proxies
//! serves and forwards the connections, as for clients of other listeners.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::forwarding::DirectClient;
use fairmesh_edge::{
    forward::request_body_rules::UNLIMITED, limits::Limits, metrics::EdgeMetrics,
    observe::served_requests::ServedObserver, server::http::HttpServer, shutdown::Shutdown, tunnel::Tunnels,
};
use fairmesh_server::{CallerConnection, Cpu, MeshServer, ServerBuilder, serve_connections};
use tokio::{
    net::TcpListener,
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    error::ProxyError,
    inbound::{
        caller_handler::{CallerHandler, LocalFront, RequestHandler},
        caller_stream::CallerStream,
        config::{InboundConfig, InboundEndpoint},
        local_forwarder::{LocalForwarder, Revocation},
        local_transport::NeedsFront,
        peer::Peer,
    },
};

/// Idle timeout of callers' connections. Callers close idle connections earlier, so that no connection is closed that
/// a caller is about to use.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(180);

/// A registered endpoint, and the observer of its requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServedEndpoint {
    pub(crate) server: MeshServer,
    pub(crate) observer: Arc<ServedObserver>,
    /// Where the kernel may send requests of callers on this machine.
    local_program: Result<SocketAddr, NeedsFront>,
    /// Counters of the endpoint's connections.
    pub(crate) connections: Arc<EdgeMetrics>,
    succession: Arc<Succession>,
    serving: TaskTracker,
}

/// The state of a hot upgrade, from and to this process.
#[derive(Debug, Default)]
struct Succession {
    /// Cancelled when this process starts to accept connections: at once if there is no predecessor.
    begins: CancellationToken,
    /// Whether a successor serves the endpoint.
    has_successor: AtomicBool,
}

impl ServedEndpoint {
    /// Registers the endpoint, and serves it at `listener`. All other listeners of the process must already
    /// be bound. With a predecessor, waits for [`succeed`](Self::succeed) before both.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub(crate) async fn start(
        listener: TcpListener,
        config: InboundConfig,
        has_predecessor: bool,
    ) -> Result<Self, ProxyError> {
        let InboundEndpoint { service, address, program } = config.inbound.clone();
        let client = DirectClient::start("the program", program, config.protocol);
        let client = client.map_err(ProxyError::Inbound)?;
        let (limits, local_program) = (config.limits, config.local_program());
        let builder = server_builder(config);
        let builder = if has_predecessor { builder.register_later() } else { builder };
        let server = builder.start().await.map_err(ProxyError::Inbound)?;
        tracing::info!(%service, %address, %program, "serving in front of a program");
        let endpoint = Self {
            server,
            observer: Arc::new(ServedObserver::new(service)),
            local_program,
            connections: Arc::default(),
            succession: Arc::default(),
            serving: TaskTracker::new(),
        };
        if !has_predecessor {
            endpoint.succession.begins.cancel();
        }
        endpoint.serving.spawn(serve(listener, client, endpoint.clone(), limits));
        endpoint.serving.close();
        Ok(endpoint)
    }

    /// Replaces the predecessor's registration of the endpoint, and accepts connections beside the
    /// predecessor.
    ///
    /// # Errors
    /// The registry does not respond within `time_limit`.
    pub(crate) async fn succeed(&self, time_limit: Duration) -> Result<(), ProxyError> {
        self.succession.begins.cancel();
        let registered = timeout(time_limit, self.server.register()).await;
        registered.map_err(|_| ProxyError::Unregistered { waited: time_limit })
    }

    /// Closes connections gracefully, after a successor has registered the endpoint and accepts new
    /// connections.
    pub(crate) fn hand_over(&self, drain: Duration) {
        self.succession.has_successor.store(true, Relaxed);
        self.server.hand_over(Shutdown::idle_grace(drain));
    }

    /// Drains the endpoint, unless a successor serves it: callers move away, requests in flight complete, and
    /// the endpoint is deregistered, all within the deadline.
    pub async fn shutdown(&self) {
        self.server.shutdown().await;
        // Ends when the drain ends.
        self.serving.wait().await;
    }
}

/// Serves until the endpoint is deregistered and every connection and tunnel has ended.
async fn serve(listener: TcpListener, program: DirectClient, endpoint: ServedEndpoint, limits: Limits) {
    let ServedEndpoint { server, observer, local_program, connections: metrics, succession, .. } = endpoint;
    tokio::select! {
        () = succession.begins.cancelled() => {}
        // The process stops before it has taken over from its predecessor.
        () = server.draining() => return,
    }
    let shutdown = Arc::<Shutdown>::default();
    let tasks = TaskTracker::new();
    let bounds = fairmesh_listen::Limits::program().with_connections(limits.connections);
    let limits = Limits { idle_timeout: IDLE_TIMEOUT, ..limits };
    let tunnels = Tunnels::new(limits, Arc::clone(&metrics), Arc::clone(&shutdown), tasks.clone());
    let (revocation, max_body) = (Revocation::Calls(server.layer()), limits.body.unwrap_or(UNLIMITED));
    let forwarder = LocalForwarder { program, tunnels, metrics: Arc::clone(&metrics), max_body, revocation };
    let local = LocalFront { server: server.clone(), program: local_program };
    let handler = RequestHandler { server: server.layer(), forwarder: Arc::new(forwarder), observer, local };
    let closing = async {
        let deadline = server.closing().await;
        match succession.has_successor.load(Relaxed) {
            true => shutdown.start(deadline - Instant::now()),
            false => shutdown.start_without_grace(deadline),
        }
    };
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
    // Fails only if the listener has no address, but it is bound.
    let _ = tokio::join!(served, closing);
    tasks.close();
    tasks.wait().await;
}

fn server_builder(config: InboundConfig) -> ServerBuilder {
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
        .cpu(Cpu::of_listener(inbound.program))
        .remember_traces()
        .forwards_bodies()
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
    control.into_iter().fold(builder, ServerBuilder::control)
}
