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
    Listen, ProxyConfig, ProxyError,
    admin::{self, About, Pages, State},
    cores::Cores,
    forward::Forwarder,
    handover::{Handover, Inherited, Predecessor, Successor},
    insight::{Looks, Seeing},
    metrics::Metrics,
    serve::{Bound, Serving},
    service::Services,
    stopping::Stopping,
    supervisor,
    tls::{Opened, Tls},
    tunnel::Tunnels,
};

/// How long the last spans may take at the end: within the deadline, but for a moment that they get even after it.
const LAST_SPANS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

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
    let tls = Tls::of(config.tls.clone(), &config.listen)?;
    let (predecessor, mut inherited) = predecessor(config.handover.as_deref()).await?;
    // Bound before anything is waited for, so that an address that is taken is said at once.
    let bound = Bound::all(&config.listen, &mut inherited).await?;
    // A connection to one of them would forward a request in a circle.
    mesh.exclude_addresses(bound.iter().map(|bound| bound.address));
    let pages = match config.admin {
        Some(address) => Some(Bound::at(address, &mut inherited).await?.listener),
        None => None,
    };
    let sockets = bound.iter().map(|bound| &bound.listener).chain(&pages);
    let handover = config.handover.as_deref().map(|path| wait_at(path, inherited, sockets)).transpose()?;
    let (listen, drain) = (config.listen.clone(), config.limits.drain);
    let lead = Lead::of(config, mesh, tls, pages.is_some())?;

    let mut served = None;
    let life = lead.lives((bound, listen), (pages, &mut served), predecessor, handover.as_ref());
    let successor = tokio::select! {
        successor = life => Some(successor?),
        () = shutdown => None,
    };
    lead.state.set_ready(false);
    match &successor {
        Some(successor) => supervisor::succeeded(successor.process()),
        None => supervisor::drains(),
    }
    tracing::info!(connections = lead.serving.open(), "draining");
    lead.stopping.begin(drain);
    let deadline = Instant::now() + drain;
    lead.accepting.close();
    lead.accepting.wait().await;
    drop(handover);
    if let Some(successor) = successor {
        // The pages are the successor's from now on.
        stop(&mut served).await;
        successor.goes_alone().await;
    }
    lead.ended(deadline).await;
    stop(&mut served).await;
    Ok(())
}

/// What a proxy consists of while it serves.
struct Lead {
    serving: Serving,
    services: Arc<Services>,
    state: State,
    seeing: Arc<Seeing>,
    stopping: Arc<Stopping>,
    accepting: TaskTracker,
    connections: TaskTracker,
}

impl Lead {
    /// All of it but sockets.
    fn of(config: ProxyConfig, mesh: Mesh, tls: Option<Opened>, has_pages: bool) -> Result<Self, ProxyError> {
        let about = About::of(&config);
        let ProxyConfig { cores, limits, access_log, traces, endpoints, inbound, .. } = config;
        let metrics = Arc::new(Metrics::default());
        let services = Services::start(mesh.clone(), limits);
        let looks = Looks { log: access_log, traces, endpoints, pages: has_pages };
        let seeing = Seeing::start(looks, Arc::clone(&metrics));
        let counted = (Arc::clone(&metrics), Arc::clone(&seeing));
        let state = State::new(mesh, Arc::clone(&services), counted, about).showing(inbound);
        let (stopping, connections) = (Arc::new(Stopping::default()), TaskTracker::new());
        let tunnels = Tunnels::new(limits, Arc::clone(&metrics), Arc::clone(&stopping), connections.clone());
        let tls = tls.map(|opened| opened.followed(&metrics, &stopping));
        let forwarder = Forwarder::new(Arc::clone(&services), metrics, Arc::clone(&seeing), tunnels);
        let forwarder = Arc::new(forwarder.limited(limits.body));
        let cores = Cores::start(cores).map_err(|source| ProxyError::Cores { count: cores, source })?;
        let serving = Serving::new(forwarder, Arc::clone(&stopping), cores, limits).with_tls(tls);
        let accepting = TaskTracker::new();
        Ok(Self { serving, services, state, seeing, stopping, accepting, connections })
    }

    /// Serves until somebody has taken over.
    async fn lives(
        &self,
        (bound, listen): (Vec<Bound>, Vec<Listen>),
        (pages, served): (Option<TcpListener>, &mut Option<Pages>),
        predecessor: Option<Predecessor>,
        handover: Option<&Handover>,
    ) -> Result<Successor, ProxyError> {
        let patience = self.serving.first_contact();
        let show = || pages.map(|listener| admin::start(listener, self.state.clone()));
        let mut handed = pin!(async {
            match handover {
                Some(handover) => handover.handed().await,
                None => pending().await,
            }
        });
        if let Some(predecessor) = predecessor {
            self.is_informed(&listen, patience).await?;
            self.accept(bound, &listen);
            // Before the other's are gone, so that whoever watches finds them at all times.
            self.state.set_ready(true);
            *served = show();
            predecessor.relieve().await;
        } else {
            supervisor::listens();
            *served = show();
            self.accept(bound, &listen);
            // Who was told wrongly where to learn it is succeeded by one that was told better.
            tokio::select! {
                () = self.services.known(&listen) => self.state.set_ready(true),
                successor = &mut handed => return Ok(successor),
            }
        }
        supervisor::serves();
        Ok(handed.await)
    }

    /// Waits until all is known. Nothing is accepted before, since a connection that is would be lost if it never came.
    async fn is_informed(&self, listen: &[Listen], patience: Duration) -> Result<(), ProxyError> {
        let known = timeout(patience, self.services.known(listen)).await;
        known.map_err(|_| ProxyError::Uninformed { waited: patience })
    }

    /// Waits until the last connection has ended, by itself or at the deadline.
    async fn ended(&self, deadline: Instant) {
        self.connections.close();
        self.connections.wait().await;
        match self.serving.cut() {
            0 => tracing::info!("drained"),
            cut => tracing::warn!(
                connections = cut,
                "cut off at the deadline, with what was under way on them; --drain-deadline gives them longer"
            ),
        }
        let (least, most) = LAST_SPANS;
        let now = Instant::now();
        self.seeing.stop(deadline.clamp(now + least, now + most)).await;
    }

    /// Lets each listener accept as soon as it is known what to do with what comes there.
    fn accept(&self, bound: Vec<Bound>, listen: &[Listen]) {
        for (bound, listen) in bound.into_iter().zip(listen) {
            let (services, own) = (Arc::clone(&self.services), listen.clone());
            let known = async move { services.known(std::slice::from_ref(&own)).await };
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

fn wait_at<'a>(
    path: &Path,
    inherited: Inherited,
    sockets: impl Iterator<Item = &'a TcpListener>,
) -> Result<Handover, ProxyError> {
    let opened = Handover::open(path, inherited, sockets);
    opened.map_err(|source| ProxyError::Handover { path: path.to_owned(), source })
}

async fn stop(served: &mut Option<Pages>) {
    if let Some(pages) = served.take() {
        pages.stop().await;
    }
}
