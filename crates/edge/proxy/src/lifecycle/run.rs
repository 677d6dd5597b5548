//! Runs a proxy from start to drain.

use std::{
    future::{Future, pending},
    net::SocketAddr,
    path::Path,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use fairmesh_calls::{
    Mesh, ServiceName,
    forwarding::{exclude_addresses, transport},
};
use fairmesh_edge::{
    forward::forwarder::Forwarder,
    lifecycle::{
        kept_options::KeptOptions,
        service_manager,
        socket_handover::{Handover, Inherited, Predecessor, Successor},
    },
    listen::event_loops::Cores,
    observe::observer::{ObserverConfig, RequestObserver},
    server::ConnectionServer,
    services::Services,
    shutdown::Shutdown,
    tls::{LoadedTls, Tls},
    tunnel::Tunnels,
};
use fairmesh_pages::AdminServer;
use tokio::{
    net::TcpListener,
    time::{Instant, interval_at, sleep, timeout},
};
use tokio_util::task::TaskTracker;

use crate::{
    admin::{metrics::ProxyMetrics, proxy_info::ProxyInfo, server, state::AdminState},
    config::ProxyConfig,
    error::ProxyError,
    inbound::{config::InboundConfig, server::ServedEndpoint},
    lifecycle::bind::BoundListener,
    listeners::{
        acceptor::Acceptor,
        listener_config::{ListenerConfig, check_tls},
    },
};

/// Interval at which an unready proxy logs what it waits for.
const WARN_INTERVAL: Duration = Duration::from_secs(10);
/// Time for which a starting proxy waits for its identity: a program asks its agent again after 5 s.
const IDENTITY_WAIT: Duration = Duration::from_secs(6);
const IDENTITY_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum and maximum time for exporting the last spans and access log lines. Within these bounds, the time until
/// the drain deadline applies.
const MIN_LAST_EXPORT: Duration = Duration::from_millis(500);
const MAX_LAST_EXPORT: Duration = Duration::from_secs(5);

/// Runs a proxy until `shutdown` completes or a successor takes over, and then drains it: the proxy stops
/// accepting, tells clients to reconnect elsewhere, and closes remaining connections after
/// [`Limits::drain`](crate::Limits::drain).
///
/// A listener accepts connections once its routing information is known, from the agent or from the agent's
/// copy on disk, so that programs that start at the same time find their services. If a proxy already runs at
/// [`ProxyConfig::handover`], this one takes over its sockets, accepts once all routing information is known,
/// and only then stops the old one.
///
/// # Errors
/// An address cannot be bound, or the running proxy cannot be replaced; the running proxy then continues.
pub async fn run(
    config: ProxyConfig,
    mesh: Mesh,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ProxyError> {
    let bound = BoundProxy::bind(&config, None).await?;
    bound.run(config, mesh, shutdown).await
}

/// A proxy with bound addresses that does not accept connections yet.
///
/// A process binds before it connects to the mesh and registers an endpoint. An address in use is then
/// reported at once, and nothing has to be undone.
#[allow(missing_debug_implementations, reason = "a signer of certificates has none")]
pub struct BoundProxy {
    metrics: Arc<ProxyMetrics>,
    tls: Option<LoadedTls>,
    sockets: Sockets,
    inbound: Option<TcpListener>,
    handover: Option<Handover>,
    predecessor: Option<Predecessor>,
}

impl BoundProxy {
    /// Binds the listeners, the address of the admin pages, and the address of an `inbound` endpoint, or
    /// takes their sockets over from the running proxy.
    ///
    /// # Errors
    /// See [`run`].
    pub async fn bind(config: &ProxyConfig, inbound: Option<&InboundConfig>) -> Result<Self, ProxyError> {
        let metrics = Arc::new(ProxyMetrics::default());
        check_tls(&config.listen, config.tls.is_some())?;
        let load = |files| Tls::load(files, config.key_servers.clone(), &metrics.edge.tls);
        let tls = config.tls.clone().map(load).transpose()?;
        let options = config.kept_options(inbound);
        let (predecessor, mut inherited) = predecessor(config.handover.as_deref(), &options).await?;
        let listeners = BoundListener::bind_all(&config.listen, &mut inherited).await?;
        let admin = bind_option(config.admin, &mut inherited).await?;
        let inbound = bind_option(inbound.map(|config| config.inbound.address), &mut inherited).await?;
        let sockets = Sockets { listeners, admin };
        let all = sockets.listeners.iter().map(|bound| &bound.listener).chain(&sockets.admin).chain(&inbound);
        // From here on a successor finds the addresses in use, so it must also find this proxy to replace.
        let open = |path| open_handover((path, &options), inherited, all);
        let handover = config.handover.as_deref().map(open).transpose()?;
        Ok(Self { metrics, tls, sockets, inbound, handover, predecessor })
    }

    /// Starts to serve an endpoint at the address that was bound for it. With a predecessor, serving begins
    /// when this proxy takes over. Returns `None` if no address was bound.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub async fn start_inbound(
        &mut self,
        config: InboundConfig,
    ) -> Result<Option<ServedEndpoint>, ProxyError> {
        let Some(listener) = self.inbound.take() else { return Ok(None) };
        ServedEndpoint::start(listener, config, self.predecessor.is_some()).await.map(Some)
    }

    /// Like [`run`], with the configuration whose addresses were bound.
    ///
    /// # Errors
    /// See [`run`]; the addresses are bound already.
    pub async fn run(
        self,
        config: ProxyConfig,
        mesh: Mesh,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ProxyError> {
        let Self { metrics, tls, sockets, inbound: _, handover, predecessor } = self;
        // A connection to a listener of this proxy would forward a request in a circle.
        exclude_addresses(&mesh, sockets.listeners.iter().map(|bound| bound.address));
        let drain = config.limits.drain;
        let proxy = RunningProxy::new(config, mesh, tls, metrics)?;
        proxy.run(sockets, (predecessor, handover), drain, shutdown).await
    }
}

impl RunningProxy {
    async fn run(
        self,
        sockets: Sockets,
        (predecessor, handover): (Option<Predecessor>, Option<Handover>),
        drain: Duration,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ProxyError> {
        let mut served = None;
        let succession = Succession { predecessor, handover: handover.as_ref() };
        let serving = self.serve_until_succeeded(sockets, &mut served, succession);
        let successor = tokio::select! {
            successor = serving => Some(successor?),
            () = shutdown => None,
        };
        self.state.set_ready(false);
        match &successor {
            Some(successor) => service_manager::notify_successor(successor.process()),
            None => service_manager::notify_draining(),
        }
        tracing::info!(connections = self.acceptor.server.open_connections(), "draining");
        self.shutdown.start(drain);
        let deadline = Instant::now() + drain;
        if let (Some(inbound), true) = (&self.inbound, successor.is_some()) {
            inbound.hand_over(drain);
        }
        self.accepting.close();
        self.accepting.wait().await;
        drop(handover);
        if let Some(successor) = successor {
            // The successor serves the admin pages from now on.
            stop(&mut served).await;
            successor.confirm_stopped().await;
        }
        self.wait_drained(deadline).await;
        if let Some(inbound) = &self.inbound {
            inbound.shutdown().await;
        }
        self.state.mesh.clone().close().await;
        stop(&mut served).await;
        Ok(())
    }
}

/// Sockets that are bound before anything is served.
#[derive(Debug)]
struct Sockets {
    listeners: Vec<BoundListener>,
    admin: Option<TcpListener>,
}

/// The proxies before and after this one.
struct Succession<'a> {
    predecessor: Option<Predecessor>,
    handover: Option<&'a Handover>,
}

/// A running proxy.
struct RunningProxy {
    listen: Vec<ListenerConfig>,
    acceptor: Acceptor,
    services: Arc<Services>,
    state: AdminState,
    inbound: Option<ServedEndpoint>,
    observer: Arc<RequestObserver>,
    shutdown: Arc<Shutdown>,
    accepting: TaskTracker,
    connections: TaskTracker,
}

impl RunningProxy {
    /// Creates all parts of the proxy except sockets.
    fn new(
        config: ProxyConfig,
        mesh: Mesh,
        tls: Option<LoadedTls>,
        metrics: Arc<ProxyMetrics>,
    ) -> Result<Self, ProxyError> {
        let about = ProxyInfo::of(&config);
        let ProxyConfig { listen, cores, limits, access_log, traces, endpoints, inbound, .. } = config;
        let has_admin_pages = config.admin.is_some();
        let services = Services::start(mesh.clone(), limits);
        config.zone.into_iter().for_each(|zone| services.set_zone(zone));
        let transport = transport(&mesh);
        let observer_config =
            ObserverConfig { log: access_log, traces, transport, endpoints, pages: has_admin_pages };
        let observer = RequestObserver::start(observer_config);
        if let Some(endpoint) = &inbound {
            endpoint.observer.set_observer(Arc::clone(&observer));
        }
        let state =
            AdminState::new(mesh, Arc::clone(&services), Arc::clone(&metrics), Arc::clone(&observer), about)
                .with_inbound(inbound.clone())
                .with_key_servers(config.key_servers);
        let (shutdown, connections) = (Arc::new(Shutdown::default()), TaskTracker::new());
        let edge = Arc::clone(&metrics.edge);
        let tunnels = Tunnels::new(limits, Arc::clone(&edge), Arc::clone(&shutdown), connections.clone());
        let tls = tls.map(|loaded| loaded.watch(&edge, &shutdown));
        let forwarder = Forwarder::new(Arc::clone(&services), edge, Arc::clone(&observer), tunnels);
        let forwarder = Arc::new(forwarder.with_max_body(limits.body));
        let cores = Cores::start(cores).map_err(|source| ProxyError::Cores { count: cores, source })?;
        let server = ConnectionServer::new(forwarder, Arc::clone(&shutdown), cores, limits).with_tls(tls);
        let acceptor =
            Acceptor::new(Arc::new(server), Arc::clone(&metrics.capture), Arc::clone(&metrics.kernel));
        let accepting = TaskTracker::new();
        Ok(Self { listen, acceptor, services, state, inbound, observer, shutdown, accepting, connections })
    }

    /// Serves until a successor has taken over.
    async fn serve_until_succeeded(
        &self,
        sockets: Sockets,
        served: &mut Option<AdminServer>,
        succession: Succession<'_>,
    ) -> Result<Successor, ProxyError> {
        let Sockets { listeners, admin } = sockets;
        let Succession { predecessor, handover } = succession;
        let time_limit = self.acceptor.server.limits.handover_timeout;
        let start_admin = || admin.map(|listener| server::start(listener, self.state.clone()));
        let mut succeeded = pin!(async {
            match handover {
                Some(handover) => handover.wait_successor().await,
                None => pending().await,
            }
        });
        if let Some(predecessor) = predecessor {
            self.wait_informed(time_limit).await?;
            // The predecessor has one, and still serves.
            self.wait_identity().await;
            if let Some(inbound) = &self.inbound {
                inbound.succeed(time_limit).await?;
            }
            self.accept(listeners);
            // Done before the predecessor stops, so that the admin pages are always served.
            self.state.set_ready(true);
            *served = start_admin();
            predecessor.take_over().await;
        } else {
            service_manager::notify_listening();
            *served = start_admin();
            self.accept(listeners);
            // A proxy with a wrong agent address never becomes ready, so it must be replaceable before that.
            tokio::select! {
                () = self.wait_equipped() => self.state.set_ready(true),
                () = self.warn_while_waiting() => {}
                successor = &mut succeeded => return Ok(successor),
            }
        }
        service_manager::notify_serving();
        Ok(succeeded.await)
    }

    /// The services with listeners of their own.
    fn named(&self) -> impl Iterator<Item = &ServiceName> {
        self.listen.iter().filter_map(ListenerConfig::service)
    }

    /// Waits for the routing information of all listeners. Connections accepted earlier would be lost if it never
    /// arrived.
    async fn wait_informed(&self, time_limit: Duration) -> Result<(), ProxyError> {
        let known = timeout(time_limit, self.services.wait_ready(self.named())).await;
        known.map_err(|_| ProxyError::Uninformed { waited: time_limit })
    }

    /// Waits for the routing information of all listeners, and some seconds for an identity, if the mesh may require one.
    async fn wait_equipped(&self) {
        self.services.wait_ready(self.named()).await;
        self.wait_identity().await;
    }

    /// Waits some seconds for an identity, if the mesh may require one.
    async fn wait_identity(&self) {
        let issued = async {
            while self.state.identity_problem().is_some() {
                sleep(IDENTITY_INTERVAL).await;
            }
        };
        // A proxy that gets none still serves calls to plaintext endpoints.
        let _ = timeout(IDENTITY_WAIT, issued).await;
    }

    /// Logs repeatedly what the proxy waits for, since waiting connections look like a hang. Never completes.
    async fn warn_while_waiting(&self) {
        let mut ticks = interval_at(Instant::now() + WARN_INTERVAL, WARN_INTERVAL);
        loop {
            ticks.tick().await;
            tracing::warn!("not ready; {}", self.state.waits_for());
        }
    }

    /// Waits until all connections have ended, up to the deadline.
    async fn wait_drained(&self, deadline: Instant) {
        self.connections.close();
        self.connections.wait().await;
        self.acceptor.wait_recorded().await;
        match self.acceptor.server.drain_timeouts() {
            0 => tracing::info!("drained"),
            timed_out => tracing::warn!(
                connections = timed_out,
                "closed at the drain deadline with requests in flight; --drain-deadline gives them more time"
            ),
        }
        let now = Instant::now();
        self.observer.stop(deadline.clamp(now + MIN_LAST_EXPORT, now + MAX_LAST_EXPORT)).await;
    }

    /// Lets each listener accept as soon as its routing information is known.
    fn accept(&self, bound: Vec<BoundListener>) {
        for (BoundListener { listener, address }, listen) in bound.into_iter().zip(&self.listen) {
            let (services, listen) = (Arc::clone(&self.services), Arc::new(listen.clone()));
            let own = Arc::clone(&listen);
            let known = async move {
                services.wait_ready(own.service()).await;
                tracing::info!(%address, service = %own.description(), "listening");
            };
            let acceptor = self.acceptor.clone();
            self.accepting.spawn(acceptor.accept(listener, listen, known, self.connections.clone()));
        }
    }
}

async fn bind_option(
    address: Option<SocketAddr>,
    inherited: &mut Inherited,
) -> Result<Option<TcpListener>, ProxyError> {
    match address {
        Some(address) => Ok(Some(BoundListener::bind(address, inherited).await?.listener)),
        None => Ok(None),
    }
}

async fn predecessor(
    path: Option<&Path>,
    options: &KeptOptions,
) -> Result<(Option<Predecessor>, Inherited), ProxyError> {
    let Some(path) = path else { return Ok((None, Inherited::default())) };
    let found = Predecessor::find(path, options).await;
    let found = found.map_err(|source| ProxyError::Handover { path: path.to_owned(), source })?;
    Ok(found.map_or_else(Default::default, |(predecessor, inherited)| (Some(predecessor), inherited)))
}

fn open_handover<'a>(
    (path, options): (&Path, &KeptOptions),
    inherited: Inherited,
    sockets: impl Iterator<Item = &'a TcpListener>,
) -> Result<Handover, ProxyError> {
    let opened = Handover::open((path, options), inherited, sockets);
    opened.map_err(|source| ProxyError::Handover { path: path.to_owned(), source })
}

async fn stop(served: &mut Option<AdminServer>) {
    if let Some(server) = served.take() {
        server.stop().await;
    }
}
