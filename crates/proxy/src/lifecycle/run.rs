//! The life of a proxy: it learns what to serve, serves, and stops when it is told to or succeeded.

use std::{
    future::{Future, pending},
    path::Path,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use fairmesh_client::Mesh;
use tokio::{
    net::TcpListener,
    time::{Instant, timeout},
};
use tokio_util::task::TaskTracker;

use crate::{
    admin::{
        proxy_info::ProxyInfo,
        server::{self, AdminServer},
        state::AdminState,
    },
    config::ProxyConfig,
    error::ProxyError,
    forward::{forwarder::Forwarder, services::Services},
    lifecycle::{
        handover::{Handover, Inherited, Predecessor, Successor},
        shutdown::Shutdown,
        supervisor,
    },
    listen::{
        bind::BoundListener,
        cores::Cores,
        listener_config::ListenerConfig,
        server::ConnectionServer,
        tls::{LoadedTls, Tls},
    },
    metrics::ProxyMetrics,
    observe::observer::{ObserverConfig, RequestObserver},
    tunnel::Tunnels,
};

/// How long the last spans may take at the end: within the deadline, but for a moment that they get even after it.
const MIN_SPAN_EXPORT: Duration = Duration::from_millis(500);
const MAX_SPAN_EXPORT: Duration = Duration::from_secs(5);

/// Runs a proxy until `shutdown` completes or another one takes over, then drains: it accepts no more, tells connections to
/// go, and what has not ended within [`Limits::drain`](crate::Limits::drain) is cut off.
///
/// A listener accepts once it is known what to do with what comes to it, from the agent or from what it left on disk: a
/// program that starts beside it must not find an empty table. Where a proxy runs at [`ProxyConfig::handover`] already,
/// this one takes its listeners over, accepts once all is known, and only then lets it stop.
///
/// # Errors
/// When an address cannot be listened on, or a proxy that runs cannot be succeeded: it goes on then.
pub async fn run(
    config: ProxyConfig,
    mesh: Mesh,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ProxyError> {
    let tls = Tls::load(config.tls.clone(), &config.listen)?;
    let (predecessor, mut inherited) = predecessor(config.handover.as_deref()).await?;
    // Bound before anything is waited for, so that an address that is taken is said at once.
    let bound = BoundListener::bind_all(&config.listen, &mut inherited).await?;
    let admin_listener = match config.admin {
        Some(address) => Some(BoundListener::bind(address, &mut inherited).await?.listener),
        None => None,
    };
    let sockets = bound.iter().map(|bound| &bound.listener).chain(&admin_listener);
    let handover =
        config.handover.as_deref().map(|path| open_handover(path, inherited, sockets)).transpose()?;
    let drain = config.limits.drain;
    let proxy = RunningProxy::new(config, mesh, tls, admin_listener.is_some())?;

    let mut served = None;
    let succession = Succession { predecessor, handover: handover.as_ref() };
    let sockets = Sockets { listeners: bound, admin: admin_listener };
    let serving = proxy.serve_until_succeeded(sockets, &mut served, succession);
    let successor = tokio::select! {
        successor = serving => Some(successor?),
        () = shutdown => None,
    };
    proxy.state.set_ready(false);
    match &successor {
        Some(successor) => supervisor::notify_successor(successor.process()),
        None => supervisor::notify_draining(),
    }
    tracing::info!(connections = proxy.serving.open_connections(), "draining");
    proxy.shutdown.start(drain);
    let deadline = Instant::now() + drain;
    proxy.accepting.close();
    proxy.accepting.wait().await;
    drop(handover);
    if let Some(successor) = successor {
        // The admin_listener are the successor's from now on.
        stop(&mut served).await;
        successor.confirm_stopped().await;
    }
    proxy.wait_drained(deadline).await;
    stop(&mut served).await;
    Ok(())
}

/// Sockets that were bound before anything is served.
struct Sockets {
    listeners: Vec<BoundListener>,
    admin: Option<TcpListener>,
}

/// The proxies before and after this one.
struct Succession<'a> {
    predecessor: Option<Predecessor>,
    handover: Option<&'a Handover>,
}

/// What a proxy consists of while it serves.
struct RunningProxy {
    listen: Vec<ListenerConfig>,
    serving: ConnectionServer,
    services: Arc<Services>,
    state: AdminState,
    observer: Arc<RequestObserver>,
    shutdown: Arc<Shutdown>,
    accepting: TaskTracker,
    connections: TaskTracker,
}

impl RunningProxy {
    /// All of it but sockets.
    fn new(
        config: ProxyConfig,
        mesh: Mesh,
        tls: Option<LoadedTls>,
        has_admin_pages: bool,
    ) -> Result<Self, ProxyError> {
        let about = ProxyInfo::of(&config);
        let ProxyConfig { listen, cores, limits, access_log, traces, endpoints, inbound, .. } = config;
        let metrics = Arc::new(ProxyMetrics::default());
        let services = Services::start(mesh.clone(), limits);
        let observer_config = ObserverConfig { log: access_log, traces, endpoints, pages: has_admin_pages };
        let observer = RequestObserver::start(observer_config);
        let state =
            AdminState::new(mesh, Arc::clone(&services), Arc::clone(&metrics), Arc::clone(&observer), about)
                .with_inbound(inbound);
        let (shutdown, connections) = (Arc::new(Shutdown::default()), TaskTracker::new());
        let tunnels = Tunnels::new(limits, Arc::clone(&metrics), Arc::clone(&shutdown), connections.clone());
        let tls = tls.map(|loaded| loaded.watch(&metrics, &shutdown));
        let forwarder = Forwarder::new(Arc::clone(&services), metrics, Arc::clone(&observer), tunnels);
        let forwarder = Arc::new(forwarder.with_max_body(limits.body));
        let cores = Cores::start(cores).map_err(|source| ProxyError::Cores { count: cores, source })?;
        let serving = ConnectionServer::new(forwarder, Arc::clone(&shutdown), cores, limits).with_tls(tls);
        let accepting = TaskTracker::new();
        Ok(Self { listen, serving, services, state, observer, shutdown, accepting, connections })
    }

    /// Serves until somebody has taken over.
    async fn serve_until_succeeded(
        &self,
        sockets: Sockets,
        served: &mut Option<AdminServer>,
        succession: Succession<'_>,
    ) -> Result<Successor, ProxyError> {
        let Sockets { listeners, admin } = sockets;
        let Succession { predecessor, handover } = succession;
        let time_limit = self.serving.handover_timeout();
        let start_admin = || admin.map(|listener| server::start(listener, self.state.clone()));
        let mut succeeded = pin!(async {
            match handover {
                Some(handover) => handover.wait_successor().await,
                None => pending().await,
            }
        });
        if let Some(predecessor) = predecessor {
            self.wait_informed(time_limit).await?;
            self.accept(listeners);
            // Before the other's are gone, so that whoever watches finds them at all times.
            self.state.set_ready(true);
            *served = start_admin();
            predecessor.take_over().await;
        } else {
            supervisor::notify_listening();
            *served = start_admin();
            self.accept(listeners);
            // Who was told wrongly where to learn it is succeeded by one that was told better.
            tokio::select! {
                () = self.services.wait_ready(&self.listen) => self.state.set_ready(true),
                successor = &mut succeeded => return Ok(successor),
            }
        }
        supervisor::notify_serving();
        Ok(succeeded.await)
    }

    /// Waits until all is known. Nothing is accepted before, since a connection that is would be lost if it never came.
    async fn wait_informed(&self, time_limit: Duration) -> Result<(), ProxyError> {
        let known = timeout(time_limit, self.services.wait_ready(&self.listen)).await;
        known.map_err(|_| ProxyError::Uninformed { waited: time_limit })
    }

    /// Waits until the last connection has ended, by itself or at the deadline.
    async fn wait_drained(&self, deadline: Instant) {
        self.connections.close();
        self.connections.wait().await;
        match self.serving.drain_timeouts() {
            0 => tracing::info!("drained"),
            timed_out => tracing::warn!(
                connections = timed_out,
                "cut off at the deadline, with what was under way on them; --drain-deadline gives them longer"
            ),
        }
        let now = Instant::now();
        self.observer.stop(deadline.clamp(now + MIN_SPAN_EXPORT, now + MAX_SPAN_EXPORT)).await;
    }

    /// Lets each listener accept as soon as it is known what to do with what comes there.
    fn accept(&self, bound: Vec<BoundListener>) {
        for (bound, listen) in bound.into_iter().zip(&self.listen) {
            let (services, own) = (Arc::clone(&self.services), listen.clone());
            let known = async move { services.wait_ready(std::slice::from_ref(&own)).await };
            let serving = self.serving.clone();
            let listen = Arc::new(listen.clone());
            self.accepting.spawn(serving.accept(bound, listen, known, self.connections.clone()));
        }
    }
}

async fn predecessor(path: Option<&Path>) -> Result<(Option<Predecessor>, Inherited), ProxyError> {
    let Some(path) = path else { return Ok((None, Inherited::default())) };
    let found = Predecessor::find(path).await;
    let found = found.map_err(|source| ProxyError::Handover { path: path.to_owned(), source })?;
    Ok(found.map_or_else(Default::default, |(predecessor, inherited)| (Some(predecessor), inherited)))
}

fn open_handover<'a>(
    path: &Path,
    inherited: Inherited,
    sockets: impl Iterator<Item = &'a TcpListener>,
) -> Result<Handover, ProxyError> {
    let opened = Handover::open(path, inherited, sockets);
    opened.map_err(|source| ProxyError::Handover { path: path.to_owned(), source })
}

async fn stop(served: &mut Option<AdminServer>) {
    if let Some(server) = served.take() {
        server.stop().await;
    }
}
