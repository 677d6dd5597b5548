//! Follows the service's shard map: determines which shards are held here, and runs the hooks that load and release
//! them (ServiceRouter §4.1).

mod held_shards;
mod hooks;
pub(crate) mod ownership;
pub(crate) mod shard_load;
mod shard_map;

use std::{future::Future, sync::Arc, time::Duration};

use fairmesh_model::{EndpointState, Region, ShardId, ShardMap};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::task::AbortOnDropHandle;

use self::{
    held_shards::HeldShards,
    hooks::HookRunner,
    ownership::Ownership,
    shard_map::{MapState, MapSubscription},
};
use crate::{
    Lease, Registration, RegistryClient,
    layer::LayerState,
    registration::{backoff::Backoff, registry_client::instance_ref},
};
pub use hooks::{HookResult, ShardHooks};

/// How long a starting server waits for the shard map before it serves without one.
const MAP_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval at which shards of waiting moves are reported again, in case the registry has forgotten them.
const REPORT_INTERVAL: Duration = Duration::from_secs(3);

/// State of the task that follows the shard map.
pub(super) struct ShardWatch {
    pub(super) registry: Arc<RegistryClient>,
    pub(super) lease: Arc<Lease>,
    pub(super) shared: Arc<LayerState>,
    pub(super) registration: Registration,
    pub(super) hooks: Option<ShardHooks>,
    pub(super) serves_when_loaded: bool,
}

/// A running [`ShardWatch`]. Dropping it stops following the map.
#[derive(Debug)]
pub(super) struct RunningShardWatch {
    map: Arc<MapSubscription>,
    _task: AbortOnDropHandle<()>,
}

impl RunningShardWatch {
    /// Tells the agent that this server no longer follows the map, so that drains of other servers do not wait for it
    /// to reconnect. Returns within a second.
    pub(super) async fn close(&self) {
        self.map.close().await;
    }
}

impl ShardWatch {
    pub(super) fn start(self) -> RunningShardWatch {
        let (publisher, maps) = watch::channel(MapState::default());
        let map = Arc::new(shard_map::follow(&self.registry, &self.registration.service, publisher));
        let task = AbortOnDropHandle::new(tokio::spawn(self.run(Arc::clone(&map), maps)));
        RunningShardWatch { map, _task: task }
    }

    async fn run(self, upstream: Arc<MapSubscription>, mut maps: watch::Receiver<MapState>) {
        let region = self.region();
        let start_by = Instant::now() + MAP_TIMEOUT;
        let mut controller = ShardController::new(self);
        tokio::pin!(region);
        let mut region_known = false;
        loop {
            controller.serve_when_loaded(start_by);
            let reports = controller.next_report(start_by);
            tokio::select! {
                region = &mut region, if !region_known => {
                    region_known = true;
                    controller.region.clone_from(&region);
                    upstream.subscribe(region);
                }
                Ok(()) = maps.changed() => {
                    let seen = maps.borrow_and_update().clone();
                    if seen.known {
                        controller.follow(seen.map);
                    }
                    seen.revision.into_iter().for_each(|revision| upstream.applied(revision));
                }
                Some(loaded) = controller.running.ended() => controller.task_ended(loaded),
                // The next report is scheduled by the loop.
                Some(_) = controller.reports.join_next() => {}
                () = sleep_until(reports) => controller.report(),
            }
        }
    }

    /// The region whose part of the map concerns this endpoint, once known; `None` for an endpoint without a region.
    fn region(&self) -> impl Future<Output = Option<Region>> + use<> {
        let given = self.registration.location.as_ref().map(|location| location.region.clone());
        let registry = Arc::clone(&self.registry);
        async move {
            if given.is_some() {
                return given;
            }
            let mut backoff = Backoff::default();
            loop {
                match registry.location().await {
                    Ok(location) => return location.map(|location| location.region),
                    Err(_) => sleep(backoff.next()).await,
                }
            }
        }
    }
}

/// Controls the shards that this server holds.
struct ShardController {
    watching: ShardWatch,
    held: HeldShards,
    /// The region whose part of the map is followed; `None` for the whole map, or before the region is known.
    region: Option<Region>,
    map: Option<Arc<ShardMap>>,
    /// Version of the map for which the warning was logged that this server holds no shard.
    idle_in: Option<u64>,
    map_seen: bool,
    served: bool,
    running: HookRunner,
    report_at: Option<Instant>,
    /// The report in flight.
    reports: JoinSet<()>,
}

impl ShardController {
    fn new(watching: ShardWatch) -> Self {
        let has_hooks = watching.hooks.is_some();
        Self {
            held: HeldShards::new(watching.registration.instance.clone(), has_hooks),
            served: !(has_hooks && watching.serves_when_loaded),
            running: HookRunner::new(watching.hooks.clone().unwrap_or_default()),
            watching,
            region: None,
            map: None,
            idle_in: None,
            map_seen: false,
            report_at: None,
            reports: JoinSet::new(),
        }
    }

    /// Applies a new map; `None` if the service has none.
    fn follow(&mut self, map: Option<Arc<ShardMap>>) {
        self.map_seen = true;
        let changes = self.held.follow(map.as_deref());
        self.map = map;
        self.warn_when_idle();
        for (shard, range) in changes.start {
            self.running.load(shard, range);
        }
        for shard in changes.stop {
            self.running.release(shard);
        }
        self.publish();
    }

    /// Logs once per version that the map assigns no shard to this server. The server then rejects every call with a
    /// key.
    fn warn_when_idle(&mut self) {
        let Some(map) = self.map.as_ref().filter(|_| self.held.is_empty()) else { return };
        if self.idle_in.replace(map.version) == Some(map.version) {
            return;
        }
        let Registration { service, instance, .. } = &self.watching.registration;
        match &self.region {
            Some(region) => tracing::warn!(
                map_version = map.version,
                "{instance} holds no shard of {service} in region {region}, so it rejects every call with a key; the \
                 map may name it in another region: compare `fairmesh get shards {service}`"
            ),
            None => tracing::warn!(
                map_version = map.version,
                "{instance} holds no shard of {service}, so it rejects every call with a key; the map may name \
                 another instance: compare `fairmesh get shards {service}`"
            ),
        }
    }

    fn publish(&mut self) {
        let ready = self.held.loaded();
        let before = self.watching.shared.ownership.load();
        let own = |map: &Arc<ShardMap>| {
            let own = Ownership::new(map, &self.watching.registration.instance, ready);
            before.iter().for_each(|before| own.carry_over(before));
            Arc::new(own)
        };
        self.watching.shared.ownership.store(self.map.as_ref().map(own));
        self.report_at = (!self.held.waiting().is_empty()).then(Instant::now);
    }

    fn task_ended(&mut self, loaded: Option<ShardId>) {
        if let Some(shard) = loaded {
            self.held.mark_loaded(shard);
            self.publish();
        }
    }

    /// Marks the server as serving once all shards held at start are loaded, or if no map arrived in time: an
    /// unreachable control plane is no reason to reject calls.
    fn serve_when_loaded(&mut self, start_by: Instant) {
        let late = !self.map_seen && Instant::now() >= start_by;
        if !self.served && (late || self.map_seen && !self.running.is_loading()) {
            self.served = true;
            self.watching.lease.set(EndpointState::Serving);
        }
    }

    /// When to check reports or the start again.
    fn next_report(&self, start_by: Instant) -> Instant {
        let never = Instant::now() + Duration::from_secs(3600);
        let start = if self.served || self.map_seen { never } else { start_by };
        // A report in flight is awaited. Reports that became due meanwhile follow at once.
        self.report_at.filter(|_| self.reports.is_empty()).unwrap_or(never).min(start)
    }

    /// Reports loaded shards whose moves are waiting. Runs in a separate task, since a hanging registry must not keep
    /// this server from following its map.
    fn report(&mut self) {
        let waiting = self.held.waiting();
        if waiting.is_empty() {
            self.report_at = None;
            return;
        }
        self.report_at = Some(Instant::now() + REPORT_INTERVAL);
        let Registration { service, instance, .. } = &self.watching.registration;
        let (registry, instance) = (Arc::clone(&self.watching.registry), instance_ref(service, instance));
        self.reports.spawn(async move {
            if let Err(error) = registry.report_shards(instance, waiting).await {
                tracing::warn!(%error, "loaded shards could not be reported; retrying");
            }
        });
    }
}
