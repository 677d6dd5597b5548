//! Compiles records to snapshots, off the request path.

mod call_reports;
mod config;
mod count_reports;
mod data_age;
mod endpoint_list;
mod event_queue;
mod policy_defaults;
mod rate_limit_claims;
mod service_records;
mod shard_maps;
mod shard_parts;
mod subscription_registry;
mod topology;
mod tracked_service;
mod worker;
mod worker_event;

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
    count_reports::CountReports,
    data_age::DataAge,
    event_queue::EventQueue,
    shard_maps::MapFollower,
    subscription_registry::SubscriptionRegistry,
    topology::Topology,
    worker::{Worker, WorkerParams},
    worker_event::{Event, EventSink},
};
use super::{endpoint_transport::EndpointTransport, subscription::Subscription};
use crate::call::Clock;

/// Keeps one subscription per service, and publishes a compiled snapshot whenever its records change.
pub struct Resolver<T> {
    registry: Arc<SubscriptionRegistry<T>>,
    state: watch::Receiver<FollowerState>,
    upstream: FollowerHandle,
    /// Age of data whose source cannot be reached now.
    age: watch::Receiver<DataAge>,
    clock: Clock,
    counts: CountReports,
    _worker: DropGuard,
}

impl<T: EndpointTransport> Resolver<T> {
    /// Starts to follow the upstream. Must be called within a tokio runtime. The resolver runs until it is dropped.
    pub fn start(config: ResolverConfig) -> Self {
        Self::start_with(config, |config, sink| Follower::spawn(config.upstream.clone(), sink))
    }

    /// Starts to follow a node in this process. Must be called within a tokio runtime. The resolver runs until it is
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
            let ((commands, received), events) = (mpsc::unbounded_channel(), Arc::clone(&events));
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
        tokio::spawn(rate_limit_claims::claim_periodically(
            Arc::clone(&registry),
            handle.clone(),
            caller_id(&config),
            stop.clone(),
        ));
        let sender = (config.client_id.clone(), stop.clone());
        tokio::spawn(call_reports::report_periodically(Arc::clone(&registry), handle.clone(), sender));
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

    /// Returns the subscription of a service. The first use of a service starts to follow it.
    pub fn subscription(&self, name: &ServiceName) -> Arc<Subscription<T>> {
        self.registry.get_or_track(name)
    }

    /// Reports the calls counted so far, then closes the follower as [`FollowerHandle::close`] does. Returns within two
    /// seconds.
    pub async fn close(&self) {
        self.counts.close().await;
        self.upstream.close().await;
    }

    /// Waits without a limit until the first snapshot has arrived, from the agent or from its copy on disk.
    pub async fn first_snapshot(&self) {
        // Fails only if the sender is gone, but `self` holds the sender.
        let _ = self.registry.first_snapshot.subscribe().wait_for(|arrived| *arrived).await;
    }

    /// Number of regions, over all services in use, in which health verdicts are currently ignored.
    pub fn health_panics(&self) -> u64 {
        self.registry.health_panics()
    }

    /// Clock used for picks. Snapshots record the times of the caller's own evidence with this clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// State of the connection to the agent.
    pub fn state(&self) -> watch::Receiver<FollowerState> {
        self.state.clone()
    }

    /// Time since the data was last confirmed. While the agent is connected, this is the age that the agent reports.
    pub fn data_age(&self) -> Duration {
        let now = Instant::now();
        let known = self.age.borrow().at(now);
        let state = self.state.borrow();
        match known {
            Some(age) => age,
            None if state.connected => Duration::ZERO,
            // Nothing was ever received, or the worker has not yet processed the disconnection.
            None => now.saturating_duration_since(state.since),
        }
    }
}

/// Returns a number unique to this process, with which the control plane recognises its successive quota claims.
fn caller_id(config: &ResolverConfig) -> u64 {
    RandomState::new().hash_one(&config.client_id)
}

impl<T> fmt::Debug for Resolver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("state", &self.state).finish_non_exhaustive()
    }
}
