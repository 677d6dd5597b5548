//! The resolver's worker: the only task that writes service snapshots.

mod aging_tables;
mod defaults;
mod disk_copy;
mod idle_services;
mod location;
mod subscribe_and_publish;
mod updates;
mod verdict_evidence;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{DefaultsScope, Prefix, Record, RecordKey, Revision, ServiceName};
use fairmesh_rib::{Update, follower::FollowerHandle};
use fairmesh_wire::record_encoding;
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::verdict_evidence::EVIDENCE_INTERVAL;
use super::{
    config::ResolverConfig,
    data_age::DataAge,
    event_queue::EventQueue,
    policy_defaults::FollowedDefaults,
    shard_maps::{MapCommands, MapEvent},
    subscription_registry::SubscriptionRegistry,
    topology::Topology,
    tracked_service::TrackedService,
    worker_event::Event,
};
use crate::discovery::endpoint_transport::EndpointTransport;

/// Time that the first contact may take before the disk copy is read or calls fail.
const CONNECT_PATIENCE: Duration = Duration::from_millis(500);
/// Interval of checks while a service waits.
const FAST_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of checks for idle connections.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of undeclared service names that are remembered. Made-up names therefore use bounded memory here
/// and in the agent.
const MAX_UNKNOWN: usize = 1024;

/// Returns the prefix of the trust domain's roots.
fn roots() -> Prefix {
    Prefix::from(&RecordKey::TrustBundle)
}

/// Returns the policies in an update that contain expressions, with their keys.
fn policies_with_expressions(update: &Update) -> Vec<(RecordKey, Bytes)> {
    let snapshots = update.snapshots.iter().flat_map(|snapshot| &snapshot.entries);
    let all = snapshots.chain(&update.puts).filter(|(key, _)| record_encoding::is_costly(key));
    let policies = all.filter_map(|(key, entry)| Some((RecordKey::parse(key).ok()?, entry.value.clone())));
    policies.filter(|(_, value)| record_encoding::has_expressions(value)).collect()
}

/// Decodes policies. An invalid one is reported when it is stored.
fn decode_policies(policies: &[(RecordKey, Bytes)]) -> Vec<Record> {
    policies.iter().filter_map(|(key, value)| record_encoding::decode(key, value).ok()).collect()
}

pub(super) struct Worker<T> {
    config: ResolverConfig,
    handle: FollowerHandle,
    registry: Arc<SubscriptionRegistry<T>>,
    topology: Topology,
    defaults: FollowedDefaults,
    age: watch::Sender<DataAge>,
    /// Channel to the follower of large shard maps; `None` if no agent can share maps.
    maps: Option<MapCommands>,
    /// Tracked services. Boxed, since a hash table has room for up to twice its number of entries.
    services: HashMap<ServiceName, Box<TrackedService<T>>>,
    /// Services whose subscriptions or snapshot must be renewed.
    stale: HashSet<ServiceName>,
    /// Services for which calls may be waiting.
    waiting: BTreeSet<ServiceName>,
    /// Services that have shard maps.
    sharded: HashSet<ServiceName>,
    /// Undeclared service names, in the order in which they were found to be undeclared.
    unknown: VecDeque<ServiceName>,
    /// Services with a region in which verdicts find most endpoints unhealthy.
    contested: BTreeSet<ServiceName>,
    /// Times at which services' region tables next lose force.
    weakening: BTreeMap<ServiceName, Instant>,
    /// The service that owns each subscribed prefix.
    prefix_owners: HashMap<Prefix, ServiceName>,
    /// Whether regions, round trips and hosts have arrived, or are known not to come.
    has_topology: bool,
    /// Deadline until which services wait for the trust domain's roots, because plaintext endpoints are not refused
    /// without them. `None` once the roots have arrived or are known not to come.
    awaits_roots: Option<Instant>,
    revision: Option<Revision>,
    /// Whether the disk copy was read. Waiting for the first snapshot then does not read it again.
    disk_read: bool,
    idle_checked: Instant,
}

pub(super) struct WorkerParams<T> {
    pub(super) config: ResolverConfig,
    pub(super) handle: FollowerHandle,
    pub(super) registry: Arc<SubscriptionRegistry<T>>,
    pub(super) topology: Topology,
    pub(super) age: watch::Sender<DataAge>,
    pub(super) maps: Option<MapCommands>,
}

impl<T: EndpointTransport> Worker<T> {
    pub(super) fn new(params: WorkerParams<T>) -> Self {
        let WorkerParams { config, handle, registry, topology, age, maps } = params;
        handle.subscribe(roots());
        handle.subscribe(Prefix::topology());
        let mut defaults = FollowedDefaults::default();
        let of_mesh = defaults.follow(DefaultsScope::Mesh, Instant::now() + CONNECT_PATIENCE);
        of_mesh.into_iter().for_each(|prefix| handle.subscribe(prefix));
        Self {
            config,
            handle,
            registry,
            topology,
            defaults,
            age,
            maps,
            services: HashMap::new(),
            stale: HashSet::new(),
            waiting: BTreeSet::new(),
            contested: BTreeSet::new(),
            weakening: BTreeMap::new(),
            sharded: HashSet::new(),
            unknown: VecDeque::new(),
            prefix_owners: HashMap::new(),
            has_topology: false,
            awaits_roots: Some(Instant::now() + CONNECT_PATIENCE),
            revision: None,
            disk_read: false,
            idle_checked: Instant::now(),
        }
    }

    /// Runs until `stop` is cancelled.
    pub(super) async fn run(mut self, events: Arc<EventQueue<T>>, stop: CancellationToken) {
        let mut state = self.handle.state();
        let mut revoked = self.config.upstream.transport.revocation_changes();
        let mut checked = Instant::now();
        loop {
            // Counted from the last check rather than the last event, so that a steady stream of events cannot delay
            // it.
            let interval = match self.unsettled() {
                true => FAST_CHECK_INTERVAL,
                false if self.contested.is_empty() => self.idle_check_interval(),
                false => EVIDENCE_INTERVAL.min(self.idle_check_interval()),
            };
            let weakens = self.next_weakening();
            tokio::select! {
                () = stop.cancelled() => return,
                // All queued events are published together.
                waiting = events.next() => {
                    for event in waiting {
                        self.handle_precompiled(event).await;
                    }
                }
                Ok(()) = state.changed() => self.update_location(),
                Ok(()) = revoked.changed() => self.services.values().for_each(|service| service.close_ended()),
                () = sleep_until(weakens.unwrap_or(checked)), if weakens.is_some() => self.weaken_tables(),
                () = sleep_until(checked + interval) => {
                    checked = Instant::now();
                    self.check().await;
                }
            }
            self.settle().await;
        }
    }

    /// Handles an event after compiling the expressions of its policies outside the program's own tasks.
    async fn handle_precompiled(&mut self, event: Event<T>) {
        let policies = match &event {
            Event::Update(update) => policies_with_expressions(update),
            _ => Vec::new(),
        };
        let compiled = match policies.is_empty() {
            true => None,
            false => spawn_blocking(move || decode_policies(&policies)).await.ok(),
        };
        self.handle_event(event);
        // Kept until here, so that the records find the compiled expressions in use. From here on, the records keep
        // them until they are published.
        drop(compiled);
    }

    fn handle_event(&mut self, event: Event<T>) {
        match event {
            Event::Track(subscription) => {
                let name = subscription.name().clone();
                self.follow_defaults(&name.tenant);
                self.stale.insert(name.clone());
                self.waiting.insert(name.clone());
                let service = TrackedService::new(subscription, self.maps.is_some());
                self.services.insert(name, Box::new(service));
            }
            Event::Update(update) => self.apply_update(&update),
            Event::Refused(prefix, reason) => self.handle_refusal(prefix, &reason),
            Event::Age(change) => self.age.send_modify(|known| known.apply(change, Instant::now())),
            Event::Map(event) => self.handle_map(event),
        }
    }

    /// Stores a shared shard map, or drops it if it is no longer wanted.
    fn handle_map(&mut self, event: MapEvent) {
        let (MapEvent::Map(name, _) | MapEvent::Failed(name, ..)) = &event else {
            for (name, service) in self.services.iter_mut().filter(|(_, service)| service.map.is_some()) {
                if service.records.shards.read_locally() {
                    self.stale.insert(name.clone());
                }
            }
            return;
        };
        let is_wanted = |service: &&mut Box<TrackedService<T>>| service.map.as_ref() == Some(name);
        let Some(service) = self.services.get_mut(&name.service).filter(is_wanted) else { return };
        self.stale.insert(name.service.clone());
        match event {
            MapEvent::Map(_, shards) => service.records.shards.set_shared(shards),
            MapEvent::Failed(name, version, problem) => {
                tracing::warn!(service = %name.service, version, problem, "unusable shard map");
                service.records.shards.set_failed(version);
            }
            MapEvent::Unavailable => {}
        }
    }

    fn mark_all_stale(&mut self) {
        self.stale.extend(self.services.keys().cloned());
    }

    /// Whether a service waits for records, or nothing has arrived yet.
    fn unsettled(&mut self) -> bool {
        let waits = |name: &ServiceName| self.services.get(name).is_some_and(|service| service.is_waiting());
        while self.waiting.first().is_some_and(|name| !waits(name)) {
            self.waiting.pop_first();
        }
        let has_nothing = !self.disk_read && !*self.registry.first_snapshot.borrow();
        has_nothing || !self.stale.is_empty() || !self.waiting.is_empty()
    }

    /// Periodic work: checks idle connections and services, and reads the copy on disk while the agent is away.
    async fn check(&mut self) {
        let now = Instant::now();
        if now - self.idle_checked >= self.idle_check_interval() {
            self.idle_checked = now;
            self.services.values().for_each(|service| service.close_idle());
            self.remove_unused(now);
        }
        // An agent that has reached no upstream since its update has no roots on disk.
        if self.has_topology && self.awaits_roots.is_some_and(|until| now >= until) {
            self.mark_arrived(&roots());
        }
        if self.has_topology {
            self.defaults.overdue(now).iter().for_each(|scope| self.defaults_arrived(scope));
        }
        self.judge_contested();
        let state = self.handle.state().borrow().clone();
        if !state.connected && now.saturating_duration_since(state.since) >= CONNECT_PATIENCE {
            self.read_disk().await;
        }
    }
}
