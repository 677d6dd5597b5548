//! Runs a node from start to drain.

use std::{
    future::Future,
    hash::{BuildHasher as _, RandomState},
    io,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use fairmesh_edge::{
    lifecycle::process_succession::{Ended, Stop, Succession, SuccessionError},
    listen::{
        accept::{connection_limit, next_connection},
        transparent_proxying::set_transparent,
        unidentified_peers::Unidentified,
    },
    shutdown::Shutdown,
};
use fairmesh_listen::Listeners;
use fairmesh_model::Invalid;
use fairmesh_pages::AdminServer;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    admin_pages::{self, Pages},
    config::NodeConfig,
    gateway_replicas::Gateways,
    inbound::Arriving,
    metrics::NodeMetrics,
    outbound::{Captured, ConnectionIds},
    placements::Placements,
    pod_probes::{INTERVALS, PodProbes},
    pod_registration::RegisteredPod,
    pods::{Ends, Pods},
};

/// Interval at which a node without a certificate checks whether it has one.
const READY_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of connections whose peer is not yet authenticated as a gateway. Few gateways connect, and
/// they keep their connections.
const MAX_HANDSHAKES: usize = 1024;

/// Reason why a node cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// An address cannot be bound, or the running node cannot be replaced.
    #[error(transparent)]
    Succession(#[from] SuccessionError),
    /// The listener cannot accept connections to other addresses.
    #[error(
        "cannot accept connections to other addresses on {address}: {source}; --capture requires CAP_NET_RAW or CAP_NET_ADMIN"
    )]
    Transparent {
        /// The address of the listener.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The configuration is invalid.
    #[error("{}: {}; {}", .0.field, .0.problem, .0.hint)]
    Invalid(Invalid),
}

/// Runs a node until `stop` completes or a successor takes over, and then drains it: callers leave its pods,
/// it accepts no more connections, and open connections have until the drain deadline.
///
/// # Errors
/// The configuration is invalid, an address cannot be bound, or the running node cannot be replaced; the
/// running node then continues.
pub async fn run(config: NodeConfig, stop: impl Future<Output = ()>) -> Result<(), NodeError> {
    config.check().map_err(NodeError::Invalid)?;
    let node = Node::new(&config);
    let of_pods = node.pods.listeners.iter().map(|listener| listener.address);
    let addresses: Vec<SocketAddr> = of_pods.chain([config.capture]).chain(config.admin).collect();
    let mut succession =
        Succession::bind(&addresses, (config.handover.as_deref(), &config.kept_options())).await?;
    let admin = config.admin.and_then(|_| succession.listeners.pop());
    if let Some(capture) = succession.listeners.last() {
        let opened = set_transparent(capture);
        opened.map_err(|source| NodeError::Transparent { address: config.capture, source })?;
    }
    let mut probes = PodProbes::new(INTERVALS);
    let served = config.pods.iter().filter_map(|(pod, transport)| Some((pod, pod.served?, transport)));
    let registered = served.map(|(pod, served, transport)| {
        let probed = probes.follow(served.pod);
        RegisteredPod::new(&pod.service, served, (&config.registry, transport), probed)
    });
    let registered = registered.collect::<Result<Vec<_>, _>>().map_err(NodeError::Invalid)?;
    // Each registration follows the probes of its pod, which end with the last one.
    drop(probes);
    let mut admin = admin.map(|bound| admin_pages::start(bound, node.pages()));
    let ended = node.run((succession, &mut admin), registered, &config, stop).await;
    if let Some(admin) = admin {
        admin.stop().await;
    }
    ended
}

struct Node {
    pods: Arc<Pods>,
    metrics: Arc<NodeMetrics>,
    ends: Ends,
    permits: Permits,
}

/// Connection permits by direction. Neither direction uses up permits of the other, and unauthenticated peers use up
/// neither.
struct Permits {
    /// Permits of captured connections.
    captured: Arc<Semaphore>,
    /// Permits of peers that are not yet authenticated as gateways.
    handshakes: Arc<Semaphore>,
    /// Permits of connections from gateways.
    arriving: Arc<Semaphore>,
}

impl Permits {
    fn new(connections: usize) -> Self {
        let [captured, arriving] = [(); 2].map(|()| connection_limit(connections));
        Self { captured, handshakes: connection_limit(MAX_HANDSHAKES), arriving }
    }
}

impl Node {
    fn new(config: &NodeConfig) -> Self {
        let (shutdown, connections) = (Arc::new(Shutdown::default()), TaskTracker::new());
        let ends = Ends { limits: config.limits, shutdown, connections };
        let pods = Arc::new(Pods::new(config.pods.clone(), &ends));
        let metrics = Arc::new(NodeMetrics::new(Unidentified::new(MAX_HANDSHAKES)));
        Self { pods, metrics, ends, permits: Permits::new(config.limits.connections) }
    }

    async fn run(
        self,
        (succession, admin): (Succession, &mut Option<AdminServer>),
        registered: Vec<RegisteredPod>,
        config: &NodeConfig,
        stop: impl Future<Output = ()>,
    ) -> Result<(), NodeError> {
        let (leaving, left, leases) =
            (CancellationToken::new(), CancellationToken::new(), TaskTracker::new());
        let drain = config.limits.drain;
        let ends = Stop {
            shutdown: Arc::clone(&self.ends.shutdown),
            drain,
            ready_within: config.limits.handover_timeout,
        };
        let accept = |listeners: Vec<TcpListener>, accepting: &TaskTracker| {
            self.accept(listeners, accepting, config);
            for pod in registered {
                let kept = pod.keep(leaving.clone(), drain / 2);
                leases.spawn(left.clone().run_until_cancelled_owned(kept));
            }
        };
        let stop = async {
            stop.await;
            // Callers leave before connections are refused.
            leaving.cancel();
            leases.close();
            leases.wait().await;
        };
        let ended = succession.run(self.ready(), accept, ends, stop).await;
        // Leases end without deregistration: a successor keeps the endpoints.
        left.cancel();
        if ended? == Ended::Succeeded {
            // The successor also serves the admin pages.
            if let Some(admin) = admin.take() {
                admin.stop().await;
            }
        }
        self.ends.connections.close();
        self.ends.connections.wait().await;
        Ok(())
    }

    fn pages(&self) -> Pages {
        Pages {
            metrics: Arc::clone(&self.metrics),
            pods: Arc::clone(&self.pods),
            listeners: Listeners::default(),
        }
    }

    /// Completes once every pod has its certificate.
    async fn ready(&self) {
        while let Some(problem) = self.pods.lacks_certificate() {
            tracing::debug!(problem, "not ready");
            sleep(READY_INTERVAL).await;
        }
    }

    /// Accepts connections of gateways on all listeners except the last one, which accepts captured
    /// connections.
    fn accept(&self, mut listeners: Vec<TcpListener>, accepting: &TaskTracker, config: &NodeConfig) {
        let Some(capture) = listeners.pop() else { return };
        let captured = Arc::new(Captured {
            at: config.capture,
            pods: Arc::clone(&self.pods),
            gateways: Gateways::new(config.gateways.clone(), RandomState::new().hash_one(()) as usize),
            metrics: Arc::clone(&self.metrics),
            logs: config.logs_connections,
            ids: ConnectionIds::new(),
            placements: Placements::follow(config),
        });
        accepting.spawn(self.accept_on((capture, &self.permits.captured), move |stream, peer, permit| {
            let captured = Arc::clone(&captured);
            async move {
                captured.serve(stream, peer).await;
                drop(permit);
            }
        }));
        for (listener, of) in listeners.into_iter().zip(&self.pods.listeners) {
            let arriving = Arc::new(Arriving {
                listener: Arc::clone(of),
                metrics: Arc::clone(&self.metrics),
                permits: Arc::clone(&self.permits.arriving),
                idle_timeout: config.limits.idle_timeout,
                logs: config.logs_connections,
            });
            accepting.spawn(self.accept_on(
                (listener, &self.permits.handshakes),
                move |stream, peer, permit| {
                    let arriving = Arc::clone(&arriving);
                    async move { arriving.serve(stream, peer, permit).await }
                },
            ));
        }
    }

    /// Accepts connections within the limit until the shutdown starts. Further ones wait in the accept queue.
    fn accept_on<S, F>(
        &self,
        (listener, permits): (TcpListener, &Arc<Semaphore>),
        serve: S,
    ) -> impl Future<Output = ()> + Send + use<S, F>
    where
        S: Fn(TcpStream, SocketAddr, OwnedSemaphorePermit) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (permits, ends, metrics) = (Arc::clone(permits), self.ends.clone(), Arc::clone(&self.metrics));
        async move {
            let stopped = ends.shutdown.started().clone();
            let accepting = async move {
                loop {
                    let accepted = next_connection(&listener, &permits, &metrics.accepts_delayed, None).await;
                    if let Some((stream, peer, permit)) = accepted {
                        ends.connections.spawn(serve(stream, peer, permit));
                    }
                }
            };
            let _: Option<()> = stopped.run_until_cancelled(accepting).await;
        }
    }
}
