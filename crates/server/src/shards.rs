//! Follows the service's shard map: which shards are held here, and loading and letting go of them (ServiceRouter §4.1).

mod holding;
mod hooks;
mod map;

use std::{future::Future, sync::Arc, time::Duration};

use fairmesh_model::{EndpointState, Region, ShardId, ShardMap};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::{
    Lease, Link, Registration, backoff::Backoff, layer::Shared, link::instance_ref, ownership::Ownership,
};
use holding::Holding;
use hooks::Running;
pub use hooks::{HookResult, ShardHooks};

/// How long a server that starts waits for the shard map before it takes calls without one.
const MAP_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the registry hears again which shards wait for their move to go on, in case it has forgotten.
const REPORT_AGAIN: Duration = Duration::from_secs(3);

/// Everything that the watching task needs.
pub(super) struct Watching {
    pub(super) link: Arc<Link>,
    pub(super) lease: Arc<Lease>,
    pub(super) shared: Arc<Shared>,
    pub(super) registration: Registration,
    pub(super) hooks: Option<ShardHooks>,
    pub(super) serves_when_loaded: bool,
}

impl Watching {
    /// Watches until it is dropped.
    pub(super) async fn run(self) {
        let (tell, mut maps) = watch::channel(map::Seen::default());
        let upstream = map::follow(&self.link, &self.registration.service, tell);
        let region = self.region();
        let start_by = Instant::now() + MAP_TIMEOUT;
        let mut keeper = Keeper::new(self);
        tokio::pin!(region);
        let mut region_known = false;
        loop {
            keeper.serve_when_loaded(start_by);
            let reports = keeper.next_report(start_by);
            tokio::select! {
                region = &mut region, if !region_known => {
                    region_known = true;
                    keeper.region.clone_from(&region);
                    upstream.subscribe(region);
                }
                Ok(()) = maps.changed() => {
                    let seen = maps.borrow_and_update().clone();
                    if seen.known {
                        keeper.follow(seen.map);
                    }
                    seen.revision.into_iter().for_each(|revision| upstream.applied(revision));
                }
                Some(loaded) = keeper.running.ended() => keeper.task_ended(loaded),
                // Whether the next is due is looked at anew.
                Some(_) = keeper.reports.join_next() => {}
                () = sleep_until(reports) => keeper.report(),
            }
        }
    }

    /// The region whose part of the map speaks of this endpoint, once it is known; `None` where nobody knows.
    fn region(&self) -> impl Future<Output = Option<Region>> + use<> {
        let given = self.registration.location.as_ref().map(|location| location.region.clone());
        let link = Arc::clone(&self.link);
        async move {
            if given.is_some() {
                return given;
            }
            let mut backoff = Backoff::default();
            loop {
                match link.location().await {
                    Ok(location) => return location.map(|location| location.region),
                    Err(_) => sleep(backoff.next()).await,
                }
            }
        }
    }
}

/// What is held here.
struct Keeper {
    watching: Watching,
    holding: Holding,
    /// Whose part of the map is followed; `None` where all of it is, or before it is known.
    region: Option<Region>,
    map: Option<Arc<ShardMap>>,
    /// The version of the map of which was said that it names nothing here.
    idle_in: Option<u64>,
    map_seen: bool,
    served: bool,
    running: Running,
    report_at: Option<Instant>,
    /// The last report, while it is under way.
    reports: JoinSet<()>,
}

impl Keeper {
    fn new(watching: Watching) -> Self {
        let aware = watching.hooks.is_some();
        Self {
            holding: Holding::new(watching.registration.instance.clone(), aware),
            served: !(aware && watching.serves_when_loaded),
            running: Running::new(watching.hooks.clone().unwrap_or_default()),
            watching,
            region: None,
            map: None,
            idle_in: None,
            map_seen: false,
            report_at: None,
            reports: JoinSet::new(),
        }
    }

    /// Goes by a new map; `None` where the service has none (any more).
    fn follow(&mut self, map: Option<Arc<ShardMap>>) {
        self.map_seen = true;
        let changes = self.holding.follow(map.as_deref());
        self.map = map;
        self.tell_when_idle();
        for (shard, range) in changes.start {
            self.running.load(shard, range);
        }
        for shard in changes.stop {
            self.running.let_go(shard);
        }
        self.publish();
    }

    /// Says once a version that the map holds nothing for this server, which then refuses every call for a key.
    fn tell_when_idle(&mut self) {
        let Some(map) = self.map.as_ref().filter(|_| self.holding.is_empty()) else { return };
        if self.idle_in.replace(map.version) == Some(map.version) {
            return;
        }
        let Registration { service, instance, .. } = &self.watching.registration;
        match &self.region {
            Some(region) => tracing::warn!(
                map_version = map.version,
                "{instance} holds no shard of {service} in region {region}, so it refuses every call for a key; the map \
                 may name it in another region: compare `fairmesh get shards {service}`"
            ),
            None => tracing::warn!(
                map_version = map.version,
                "{instance} holds no shard of {service}, so it refuses every call for a key; the map may name another \
                 instance: compare `fairmesh get shards {service}`"
            ),
        }
    }

    fn publish(&mut self) {
        let ready = self.holding.loaded();
        let before = self.watching.shared.ownership.load();
        let own = |map: &Arc<ShardMap>| {
            let own = Ownership::new(map, &self.watching.registration.instance, ready);
            before.iter().for_each(|before| own.go_on_from(before));
            Arc::new(own)
        };
        self.watching.shared.ownership.store(self.map.as_ref().map(own));
        self.report_at = (!self.holding.waiting().is_empty()).then(Instant::now);
    }

    fn task_ended(&mut self, loaded: Option<ShardId>) {
        if let Some(shard) = loaded {
            self.holding.load(shard);
            self.publish();
        }
    }

    /// Takes calls once everything held at start is loaded, or when no map came for too long: a control plane that is
    /// away is no reason to refuse calls.
    fn serve_when_loaded(&mut self, start_by: Instant) {
        let late = !self.map_seen && Instant::now() >= start_by;
        if !self.served && (late || self.map_seen && !self.running.is_loading()) {
            self.served = true;
            self.watching.lease.set(EndpointState::Serving);
        }
    }

    /// When to look at reports or the start again.
    fn next_report(&self, start_by: Instant) -> Instant {
        let never = Instant::now() + Duration::from_secs(3600);
        let start = if self.served || self.map_seen { never } else { start_by };
        // One that is under way is waited for; what became due meanwhile follows at once.
        self.report_at.filter(|_| self.reports.is_empty()).unwrap_or(never).min(start)
    }

    /// Says which shards are loaded and wait for their callers. A task of its own, since a registry that hangs must not keep
    /// this server from following its map.
    fn report(&mut self) {
        let waiting = self.holding.waiting();
        if waiting.is_empty() {
            self.report_at = None;
            return;
        }
        self.report_at = Some(Instant::now() + REPORT_AGAIN);
        let Registration { service, instance, .. } = &self.watching.registration;
        let (link, instance) = (Arc::clone(&self.watching.link), instance_ref(service, instance));
        self.reports.spawn(async move {
            if let Err(error) = link.report_shards(instance, waiting).await {
                tracing::warn!(%error, "the registry has not heard that shards are loaded; trying again");
            }
        });
    }
}
