//! From records to snapshots, off the request path.

mod config;
mod counts;
mod data_age;
mod endpoint_list;
mod event;
mod event_queue;
mod policy_defaults;
mod quota;
mod records;
mod registry;
mod service;
mod shard_maps;
mod shard_parts;
mod signals;
mod topology;
mod worker;

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use fairmesh_model::{ServiceName, arith::hash_text};
#[cfg(feature = "fixed")]
use fairmesh_rib::Node;
use fairmesh_rib::follower::{Follower, FollowerHandle, FollowerState};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::config::{DEFAULT_IDLE_TIMEOUT, ResolverConfig};
use self::{
    counts::CountReports,
    data_age::DataAge,
    event::{Event, EventSink},
    event_queue::EventQueue,
    registry::SubscriptionRegistry,
    shard_maps::MapFollower,
    topology::Topology,
    worker::{Worker, WorkerParams},
};
use super::{endpoint_transport::EndpointTransport, subscription::Subscription};
use crate::call::Clock;

/// Keeps one subscription per service, and publishes a compiled snapshot whenever its records change.
pub struct Resolver<T> {
    registry: Arc<SubscriptionRegistry<T>>,
    state: watch::Receiver<FollowerState>,
    upstream: FollowerHandle,
    /// The age of the data, where it is not followed to its source.
    age: watch::Receiver<DataAge>,
    clock: Clock,
    counts: CountReports,
    _worker: DropGuard,
}

impl<T: EndpointTransport> Resolver<T> {
    /// Starts to follow the upstream; must be called within a tokio runtime. The resolver runs until it is dropped.
    pub fn start(config: ResolverConfig) -> Self {
        Self::start_with(config, |config, sink| Follower::spawn(config.upstream.clone(), sink))
    }

    /// Starts to follow a node of this process; must be called within a tokio runtime. The resolver runs until it is
    /// dropped.
    #[cfg(feature = "fixed")]
    pub fn start_local(config: ResolverConfig, node: &Node) -> Self {
        Self::start_with(config, |config, sink| Follower::spawn_local(node, &config.upstream.software, sink))
    }

    fn start_with(
        config: ResolverConfig,
        follow: impl FnOnce(&ResolverConfig, EventSink<T>) -> FollowerHandle,
    ) -> Self {
        let events = Arc::<EventQueue<T>>::default();
        let registry = Arc::new(SubscriptionRegistry::new(Arc::clone(&events)));
        let handle = follow(&config, EventSink(Arc::clone(&events)));
        let (state, upstream) = (handle.state(), handle.clone());
        let (age_sender, age) = watch::channel(DataAge::default());
        let (stop, clock) = (CancellationToken::new(), Clock::start());
        let topology = Topology {
            regions: Default::default(),
            round_trips: Default::default(),
            hosts: Default::default(),
            location: config.location.clone(),
            client_id: config.client_id.clone(),
            client: hash_text(&config.client_id),
            caller: config.caller.clone(),
            transport: config.upstream.transport.clone(),
            has_trust_domain: false,
            clock,
            authorizes_callers: config.authorizes_callers,
        };
        let maps = shard_maps::address(&config.upstream.addresses).map(|address| {
            let (commands, received) = mpsc::unbounded_channel();
            let events = Arc::clone(&events);
            let follower = MapFollower {
                transport: config.upstream.transport.clone(),
                address,
                software: config.upstream.software.clone(),
                publish: move |event| events.push(Event::Map(event)),
                wanted: Default::default(),
            };
            tokio::spawn(follower.run(received));
            commands
        });
        tokio::spawn(quota::claim_periodically(
            Arc::clone(&registry),
            handle.clone(),
            caller_id(&config),
            stop.clone(),
        ));
        tokio::spawn(signals::report_periodically(Arc::clone(&registry), handle.clone(), stop.clone()));
        let counts = CountReports::start(Arc::clone(&registry), handle.clone(), stop.child_token());
        let worker = Worker::new(WorkerParams {
            config,
            handle,
            registry: Arc::clone(&registry),
            topology,
            age: age_sender,
            maps,
        });
        tokio::spawn(worker.run(events, stop.clone()));
        Self { registry, state, upstream, age, clock, counts, _worker: stop.drop_guard() }
    }

    /// The subscription of a service; the first use of a service starts to follow it.
    pub fn subscription(&self, name: &ServiceName) -> Arc<Subscription<T>> {
        self.registry.get_or_track(name)
    }

    /// Reports what was counted of calls until now, and then as [`FollowerHandle::close`]. Returns within two seconds.
    pub async fn close(&self) {
        self.counts.close().await;
        self.upstream.close().await;
    }

    /// Waits without a bound until the first snapshot has arrived, from the agent or from its copy on disk.
    pub async fn first_snapshot(&self) {
        // Fails only when the sender is gone, and `self` holds it.
        let _ = self.registry.first_snapshot.subscribe().wait_for(|arrived| *arrived).await;
    }

    /// The number of regions of services in use where health verdicts are ignored now.
    pub fn health_panics(&self) -> u64 {
        self.registry.health_panics()
    }

    /// The clock of picks from its snapshots: snapshots date the caller's own evidence by it.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The connection to the agent.
    pub fn state(&self) -> watch::Receiver<FollowerState> {
        self.state.clone()
    }

    /// How long ago the data was last confirmed: by the agent's own report while it is connected.
    pub fn data_age(&self) -> Duration {
        let now = Instant::now();
        let known = self.age.borrow().at(now);
        let state = self.state.borrow();
        match known {
            Some(age) => age,
            None if state.connected => Duration::ZERO,
            // Nothing was ever received, or the worker has not processed the disconnection yet.
            None => now.saturating_duration_since(state.since),
        }
    }
}

/// A number unique to this process, by which the control plane recognises it from one quota claim to the next.
fn caller_id(config: &ResolverConfig) -> u64 {
    RandomState::new().hash_one(&config.client_id)
}

impl<T> fmt::Debug for Resolver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("state", &self.state).finish_non_exhaustive()
    }
}
