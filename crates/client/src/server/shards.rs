//! Follows the service's shard map: which shards are held here, and loading and letting go of them (S12).

mod holding;
mod map;

use std::{collections::BTreeMap, error::Error, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use fairmesh_model::{EndpointState, KeyRange, Region, ShardId, ShardMap};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinError, JoinSet},
    time::{Instant, sleep, sleep_until},
};

use super::{
    Lease, Link, Registration, backoff::Backoff, layer::Shared, link::instance_ref, ownership::Ownership,
};
use holding::Holding;

/// How long a server that starts waits for the shard map before it takes calls without one.
const MAP_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the registry hears again which shards wait for their move to go on, in case it has forgotten.
const REPORT_AGAIN: Duration = Duration::from_secs(3);

/// What a hook says: done, or why not.
pub type HookResult = Result<(), Box<dyn Error + Send + Sync>>;

type HookFuture = Pin<Box<dyn Future<Output = HookResult> + Send>>;
type StartHook = Arc<dyn Fn(ShardId, KeyRange) -> HookFuture + Send + Sync>;
type StopHook = Arc<dyn Fn(ShardId) -> HookFuture + Send + Sync>;

/// What a program does when shards come and go.
#[derive(Clone, Default)]
pub struct ShardHooks {
    pub(super) start: Option<StartHook>,
    pub(super) stop: Option<StopHook>,
}

impl fmt::Debug for ShardHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, stop } = self;
        f.debug_struct("ShardHooks").field("start", &start.is_some()).field("stop", &stop.is_some()).finish()
    }
}

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
                Some(loaded) = keeper.tasks.join_next() => keeper.task_ended(loaded),
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

/// What is held here, and the hooks that are running.
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
    /// Hooks and a report that are running; which shard is loaded once one ends.
    tasks: JoinSet<Option<ShardId>>,
    loading: BTreeMap<ShardId, AbortHandle>,
    report_at: Option<Instant>,
    /// The last report, which may be under way.
    reporting: Option<AbortHandle>,
}

impl Keeper {
    fn new(watching: Watching) -> Self {
        let aware = watching.hooks.is_some();
        Self {
            holding: Holding::new(watching.registration.instance.clone(), aware),
            served: !(aware && watching.serves_when_loaded),
            watching,
            region: None,
            map: None,
            idle_in: None,
            map_seen: false,
            tasks: JoinSet::new(),
            loading: BTreeMap::new(),
            report_at: None,
            reporting: None,
        }
    }

    /// Goes by a new map; `None` where the service has none (any more).
    fn follow(&mut self, map: Option<Arc<ShardMap>>) {
        self.map_seen = true;
        let changes = self.holding.follow(map.as_deref());
        self.map = map;
        self.tell_when_idle();
        for (shard, range) in changes.start {
            self.load(shard, range);
        }
        for shard in changes.stop {
            self.let_go(shard);
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
        let own =
            |map: &Arc<ShardMap>| Arc::new(Ownership::new(map, &self.watching.registration.instance, ready));
        self.watching.shared.ownership.store(self.map.as_ref().map(own));
        self.report_at = (!self.holding.waiting().is_empty()).then(Instant::now);
    }

    fn load(&mut self, shard: ShardId, range: KeyRange) {
        let hook = self.watching.hooks.as_ref().and_then(|hooks| hooks.start.clone());
        let loading = self.tasks.spawn(async move {
            if let Some(hook) = hook {
                let mut backoff = Backoff::default();
                while let Err(error) = hook(shard, range).await {
                    tracing::warn!(%shard, %range, error, "a shard could not be loaded; trying again");
                    sleep(backoff.next()).await;
                }
            }
            Some(shard)
        });
        self.loading.insert(shard, loading);
    }

    fn let_go(&mut self, shard: ShardId) {
        if let Some(loading) = self.loading.remove(&shard) {
            loading.abort();
        }
        let Some(hook) = self.watching.hooks.as_ref().and_then(|hooks| hooks.stop.clone()) else {
            return;
        };
        self.tasks.spawn(async move {
            if let Err(error) = hook(shard).await {
                tracing::warn!(%shard, error, "a shard was not let go of cleanly");
            }
            None
        });
    }

    fn task_ended(&mut self, ended: Result<Option<ShardId>, JoinError>) {
        match ended {
            Ok(Some(shard)) => {
                // One that was taken away in the last moment is not among those loading any more.
                if self.loading.remove(&shard).is_some() {
                    self.holding.load(shard);
                    self.publish();
                }
            }
            Err(error) if error.is_panic() => {
                tracing::error!(%error, "a shard hook panicked; its shard stays unloaded")
            }
            Ok(None) | Err(_) => {}
        }
    }

    /// Takes calls once everything held at start is loaded, or when no map came for too long: a control plane that is
    /// away is no reason to refuse calls.
    fn serve_when_loaded(&mut self, start_by: Instant) {
        let late = !self.map_seen && Instant::now() >= start_by;
        if !self.served && (late || self.map_seen && self.loading.is_empty()) {
            self.served = true;
            self.watching.lease.set(EndpointState::Serving);
        }
    }

    /// When to look at reports or the start again.
    fn next_report(&self, start_by: Instant) -> Instant {
        let never = Instant::now() + Duration::from_secs(3600);
        let start = if self.served || self.map_seen { never } else { start_by };
        // One that is under way is waited for; what became due meanwhile follows at once.
        let idle = self.reporting.as_ref().is_none_or(AbortHandle::is_finished);
        self.report_at.filter(|_| idle).unwrap_or(never).min(start)
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
        self.reporting = Some(self.tasks.spawn(async move {
            if let Err(error) = link.report_shards(instance, waiting).await {
                tracing::warn!(%error, "the registry has not heard that shards are loaded; trying again");
            }
            None
        }));
    }
}
