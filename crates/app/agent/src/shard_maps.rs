//! Large shard maps: each is stored once per machine, in sealed memory that every program maps read-only (ServiceRouter
//! §3.3).
//!
//! A program follows a map over a socket of its own and receives its tables as file descriptors, again whenever they
//! change. The chunks for building tables stay on disk and are read for each build. Keeping them in memory was
//! rejected, since it would double a map's cost, and so would following a map through the node.
//!
//! A change rebuilds only the affected tables, and versions share the others: copying the whole map for each move
//! would write tens of megabytes. A list of recent moves that is merged into a table now and then was rejected,
//! because every look-up would search both.

mod build_loop;
mod map_records;
mod prefix_records;
mod table_builder;
mod table_server;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{ChunkHash, Prefix, RecordKey, Region, ServiceName, ShardPart, StoreId};
use fairmesh_rib::{Entry, Update, covering, disk_cache::Cache, follower::FollowerHandle};
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use map_records::MapRecords;
use prefix_records::PrefixRecords;
pub(crate) use prefix_records::is_value_on_disk;
pub(crate) use table_builder::BuiltMap;
pub(crate) use table_server::{limits, serve};

use crate::state::AgentState;

/// Maximum number of concurrent builds of all maps: each needs a core and memory for a while.
const MAX_CONCURRENT_BUILDS: usize = 2;
/// Time for which a map stays after its last follower left, so that a program that reconnects causes no rebuild.
const LINGER: Duration = Duration::from_secs(5);
/// Maximum number of maps kept without a follower.
const MAX_LINGERING: usize = 16;

/// A map of one service, with the copies of one region or all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MapName {
    pub(crate) service: ServiceName,
    pub(crate) region: Option<Region>,
}

impl MapName {
    /// Prefixes of the map's records.
    pub(crate) fn prefixes(&self) -> Vec<Prefix> {
        let part = |part| Prefix::shards(&self.service, Some(&part));
        match &self.region {
            None => vec![Prefix::shards(&self.service, None)],
            Some(region) => vec![part(ShardPart::Ranges), part(ShardPart::Region(region.clone()))],
        }
    }
}

/// Status of a map.
#[derive(Clone, Debug, Default)]
pub(crate) struct MapStatus {
    pub(crate) built: Option<Arc<BuiltMap>>,
    /// Why the next version of the map cannot be used: the number of the version (0 if unknown) and the reason.
    pub(crate) failure: Option<(u64, String)>,
}

/// The maps followed by programs of this machine, and their records.
#[derive(Debug)]
pub(crate) struct ShardMaps {
    inner: Mutex<Inner>,
    cache: Arc<Cache>,
    /// Tasks of builds and sessions. They use the state directory, which is unlocked only after they end.
    tasks: TaskTracker,
    /// Notified when a map was built or its build failed.
    build_results: watch::Sender<u64>,
    /// The next table ID. Sessions use the IDs to send each table only once.
    tables: Arc<AtomicU64>,
    builds: Arc<Semaphore>,
    /// Cancelled at shutdown; maps without followers are then dropped at once.
    ending: CancellationToken,
}

#[derive(Debug, Default)]
struct Inner {
    store: Option<StoreId>,
    stores: BTreeMap<Prefix, PrefixRecords>,
    followed: BTreeMap<MapName, FollowedMap>,
}

#[derive(Debug)]
struct FollowedMap {
    users: watch::Sender<usize>,
    latest: MapStatus,
    changed: Arc<Notify>,
}

/// Signals for the tasks that build and drop a map.
#[derive(Debug)]
struct MapSignals {
    users: watch::Receiver<usize>,
    changed: Arc<Notify>,
    /// Stops the build task.
    gone: CancellationToken,
}

/// Adds a follower of a map. The first follower starts the map's tasks.
pub(crate) fn follow(shared: &Arc<AgentState>, upstream: &FollowerHandle, name: &MapName) {
    if let Some(followed) = shared.maps.join(name) {
        let run_signals = (Arc::clone(&followed.changed), followed.gone.clone());
        shared.maps.tasks.spawn(build_loop::run(
            Arc::clone(shared),
            upstream.clone(),
            name.clone(),
            run_signals,
        ));
        let (lingering, name) = (Arc::clone(shared), name.clone());
        shared.maps.tasks.spawn(async move { lingering.maps.linger(&name, followed).await });
    }
}

impl ShardMaps {
    pub(crate) fn new(cache: Arc<Cache>) -> Self {
        Self {
            inner: Mutex::default(),
            cache,
            tasks: TaskTracker::new(),
            build_results: watch::Sender::new(0),
            tables: Arc::default(),
            builds: Arc::new(Semaphore::new(MAX_CONCURRENT_BUILDS)),
            ending: CancellationToken::new(),
        }
    }

    /// Waits for all builds and sessions to end, after their cancellation.
    pub(crate) async fn wait_stopped(&self) {
        self.ending.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Locks the maps. This lock is the last in the lock order.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code that holds the lock panics.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restores the saved records of a prefix. The values of chunks stay on disk.
    pub(crate) fn restore(&self, prefix: Prefix, store: StoreId, entries: Vec<(Arc<str>, Entry)>) {
        let mut inner = self.lock();
        inner.store = Some(store);
        inner.stores.entry(prefix).or_default().replace(entries);
    }

    /// Starts to hold a prefix. Its `entries` are given if they are complete.
    pub(crate) fn track_prefix(
        &self,
        prefix: &Prefix,
        store: Option<StoreId>,
        entries: Option<Vec<(Arc<str>, Entry)>>,
    ) {
        let mut inner = self.lock();
        inner.store = inner.store.or(store);
        let held = inner.stores.entry(prefix.clone()).or_default();
        if let Some(entries) = entries {
            held.replace(entries);
        }
    }

    pub(crate) fn tracks_prefix(&self, prefix: &Prefix) -> bool {
        self.lock().stores.contains_key(prefix)
    }

    pub(crate) fn forget(&self, prefix: &Prefix) {
        self.lock().stores.remove(prefix);
    }

    /// Applies an update to the maps' prefixes, and removes from the update the records that `in_node` excludes.
    /// Returns the prefixes that changed here.
    pub(crate) fn apply(&self, update: &mut Update, in_node: impl Fn(&str) -> bool) -> Vec<Prefix> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        if inner.stores.is_empty() {
            return Vec::new();
        }
        if inner.store.replace(update.revision.store).is_some_and(|store| store != update.revision.store) {
            inner.stores.values_mut().for_each(|store| *store = PrefixRecords::default());
        }
        let mut changed = Vec::new();
        for snapshot in &update.snapshots {
            if let Some(store) = inner.stores.get_mut(&snapshot.prefix) {
                store.replace(snapshot.entries.clone());
                changed.push(snapshot.prefix.clone());
            }
        }
        let puts = update.puts.iter().map(|(key, entry)| (key, Some(entry)));
        for (key, entry) in puts.chain(update.deletes.iter().map(|key| (key, None))) {
            for text in covering(key) {
                let Some(store) = inner.stores.get_mut(text) else { continue };
                store.set(key, entry.cloned());
                // An incomplete prefix must not be saved as if it were complete.
                changed.extend(Prefix::new(text).ok().filter(|_| store.is_complete()));
            }
        }
        update.snapshots.retain(|snapshot| in_node(snapshot.prefix.as_str()));
        update.puts.retain(|(key, _)| in_node(key));
        inner
            .followed
            .iter()
            .filter(|(name, _)| name.prefixes().iter().any(|prefix| changed.contains(prefix)))
            .for_each(|(_, followed)| followed.changed.notify_one());
        changed
    }

    /// The records of a prefix, to be saved; `None` unless the prefix is held here and complete.
    pub(crate) fn records_to_save(&self, prefix: &Prefix) -> Option<Vec<(Arc<str>, Entry)>> {
        self.lock().stores.get(prefix).filter(|store| store.is_complete()).map(PrefixRecords::entries)
    }

    /// Drops chunk values that are now on disk. Returns the number of freed bytes.
    pub(crate) fn drop_saved_values(&self, prefix: &Prefix, entries: &[(Arc<str>, Entry)]) -> usize {
        self.lock().stores.get_mut(prefix).map_or(0, |store| store.drop_saved_values(entries))
    }

    /// All records of a prefix, with chunks read from disk; `None` if a chunk is missing on disk or the prefix is
    /// incomplete.
    pub(crate) fn read_all(&self, prefix: &Prefix) -> Option<Vec<(Arc<str>, Entry)>> {
        let entries =
            self.lock().stores.get(prefix).filter(|store| store.is_complete()).map(PrefixRecords::entries)?;
        let fill = |(key, mut entry): (Arc<str>, Entry)| {
            if is_value_on_disk(&key, &entry) {
                entry.value = self.cache.chunk(prefix, &key).ok()??;
            }
            Some((key, entry))
        };
        entries.into_iter().map(fill).collect()
    }

    /// The value at a key, from memory or disk; `None` unless it belongs to a complete prefix.
    pub(crate) fn value(&self, key: &str) -> Option<Bytes> {
        let (prefix, entry) = {
            let inner = self.lock();
            let held = covering(key).find_map(|text| {
                let (prefix, store) = inner.stores.get_key_value(text)?;
                Some((prefix.clone(), store.get(key)?.clone()))
            });
            held?
        };
        match is_value_on_disk(key, &entry) {
            true => self.cache.chunk(&prefix, key).ok()?,
            false => Some(entry.value),
        }
    }

    /// Notified when a map was built or its build failed.
    pub(crate) fn build_results(&self) -> watch::Receiver<u64> {
        self.build_results.subscribe()
    }

    /// The status of a followed map.
    pub(crate) fn latest(&self, name: &MapName) -> MapStatus {
        self.lock().followed.get(name).map(|followed| followed.latest.clone()).unwrap_or_default()
    }

    /// Adds a follower. If it is the first one, returns the signals for the map's tasks.
    fn join(&self, name: &MapName) -> Option<MapSignals> {
        let mut inner = self.lock();
        if let Some(followed) = inner.followed.get(name) {
            followed.users.send_modify(|users| *users += 1);
            followed.changed.notify_one();
            return None;
        }
        let (users, counted) = watch::channel(1);
        let (changed, gone) = (Arc::new(Notify::new()), CancellationToken::new());
        changed.notify_one();
        let signals = MapSignals { users: counted, changed: Arc::clone(&changed), gone: gone.clone() };
        let followed = FollowedMap { users, latest: MapStatus::default(), changed };
        inner.followed.insert(name.clone(), followed);
        Some(signals)
    }

    /// Removes a follower.
    pub(crate) fn leave(&self, name: &MapName) {
        if let Some(followed) = self.lock().followed.get(name) {
            followed.users.send_modify(|users| *users = users.saturating_sub(1));
        }
    }

    /// Drops a map and its tables after it had no follower for [`LINGER`].
    async fn linger(&self, name: &MapName, mut signals: MapSignals) {
        loop {
            // The sender is dropped only with the map, below.
            let _ = signals.users.wait_for(|users| *users == 0).await;
            let lingering = self.lock().followed.values().filter(|f| *f.users.borrow() == 0).count();
            if lingering <= MAX_LINGERING {
                let came = tokio::select! {
                    came = timeout(LINGER, signals.users.changed()) => came.is_ok(),
                    () = self.ending.cancelled() => false,
                };
                // Starts again after each new follower, even one that has left already.
                if came {
                    continue;
                }
            }
            let mut inner = self.lock();
            // Followers join under the lock.
            if *signals.users.borrow() == 0 {
                inner.followed.remove(name);
                signals.gone.cancel();
                return;
            }
        }
    }

    /// Publishes the result of a build, unless the map or its records were dropped meanwhile: a stale build must not
    /// overwrite the status of its successor, and records that may no longer be read must not be published.
    fn publish(&self, name: &MapName, changed: &Arc<Notify>, update: impl FnOnce(&mut MapStatus)) {
        let mut inner = self.lock();
        let is_held = |prefix| inner.stores.get(prefix).is_some_and(PrefixRecords::is_complete);
        if !name.prefixes().iter().all(is_held) {
            return;
        }
        let followed = inner.followed.get_mut(name);
        let Some(followed) = followed.filter(|followed| Arc::ptr_eq(&followed.changed, changed)) else {
            return;
        };
        update(&mut followed.latest);
        drop(inner);
        self.build_results.send_modify(|ticks| *ticks += 1);
    }

    /// Drops the records of a prefix that the upstream refused, so that no further program gets data that this
    /// machine may no longer read. Programs that already have the map keep their tables.
    pub(crate) fn refused(&self, prefix: &Prefix, reason: &str) {
        let mut inner = self.lock();
        if let Some(held) = inner.stores.get_mut(prefix) {
            *held = PrefixRecords::default();
        }
        for (name, followed) in &mut inner.followed {
            if name.prefixes().contains(prefix) {
                followed.latest = MapStatus { built: None, failure: Some((0, reason.to_owned())) };
            }
        }
        drop(inner);
        self.build_results.send_modify(|ticks| *ticks += 1);
    }

    /// The current records of a map; `None` while they are incomplete.
    fn source(&self, name: &MapName) -> Option<MapRecords> {
        let inner = self.lock();
        let stores: Option<Vec<_>> = name
            .prefixes()
            .into_iter()
            .map(|prefix| {
                Some((prefix.clone(), inner.stores.get(&prefix).filter(|store| store.is_complete())?))
            })
            .collect();
        Some(MapRecords::new(inner.store?, stores?, Arc::clone(&self.cache)))
    }

    /// Whether the records of a map still contain this chunk.
    fn has_chunk(&self, name: &MapName, chunk: ChunkHash) -> bool {
        let inner = self.lock();
        let stores = name.prefixes().into_iter().filter_map(|prefix| inner.stores.get(&prefix));
        stores.flat_map(PrefixRecords::keys).any(
            |key| matches!(RecordKey::parse(key), Ok(RecordKey::ShardChunk(_, _, hash)) if hash == chunk),
        )
    }

    /// Number of built maps and bytes of their tables, for metrics.
    pub(crate) fn size(&self) -> (usize, usize) {
        let inner = self.lock();
        let built = inner.followed.values().filter_map(|followed| followed.latest.built.as_ref());
        built.fold((0, 0), |(maps, bytes), built| (maps + 1, bytes + built.bytes()))
    }

    fn next_table(&self) -> u64 {
        self.tables.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::Location;

    use super::*;
    use crate::disk_writer::Disk;

    async fn maps(folder: &tempfile::TempDir) -> ShardMaps {
        let here = Location::in_region(Region::new("eu").unwrap());
        let (disk, _) = Disk::open(folder.path().into(), here).await.unwrap();
        ShardMaps::new(disk.cache())
    }

    fn name() -> MapName {
        MapName { service: ServiceName::new("shop/cart").unwrap(), region: None }
    }

    #[tokio::test(start_paused = true)]
    async fn build_of_dropped_shard_map_does_not_overwrite_newer_one() {
        let folder = tempfile::tempdir().unwrap();
        let maps = maps(&folder).await;
        let first = maps.join(&name()).unwrap();
        let given_up = Arc::clone(&first.changed);
        maps.leave(&name());
        maps.linger(&name(), first).await;
        let own = maps.join(&name()).unwrap().changed;
        let hold_records = || {
            let stores = &mut maps.lock().stores;
            name()
                .prefixes()
                .into_iter()
                .for_each(|prefix| stores.entry(prefix).or_default().replace(Vec::new()));
        };
        hold_records();
        let fails = |version| move |latest: &mut MapStatus| latest.failure = Some((version, String::new()));
        maps.publish(&name(), &given_up, fails(1));
        assert!(maps.latest(&name()).failure.is_none());
        maps.publish(&name(), &own, fails(2));
        assert_eq!(maps.latest(&name()).failure, Some((2, String::new())));
        // Programs must not get a build of records that this machine may no longer read.
        maps.refused(&name().prefixes()[0], "refused");
        maps.publish(&name(), &own, fails(3));
        assert_eq!(maps.latest(&name()).failure, Some((0, "refused".to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn shard_map_survives_reconnects_and_is_dropped_after_linger_time() {
        let folder = tempfile::tempdir().unwrap();
        let maps = maps(&folder).await;
        let signals = maps.join(&name()).unwrap();
        let gone = signals.gone.clone();
        let came_and_went = async {
            for _ in 0..100 {
                maps.leave(&name());
                tokio::time::sleep(LINGER / 2).await;
                assert!(maps.join(&name()).is_none(), "no second build task");
            }
            maps.leave(&name());
            assert!(!gone.is_cancelled());
            tokio::time::Instant::now()
        };
        let lingers = async {
            maps.linger(&name(), signals).await;
            tokio::time::Instant::now()
        };
        let (left, given_up) = tokio::join!(came_and_went, lingers);
        assert!(given_up - left >= LINGER && gone.is_cancelled());
        assert!(maps.lock().followed.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn shard_maps_without_followers_are_bounded_and_dropped_at_shutdown() {
        let folder = tempfile::tempdir().unwrap();
        let maps = maps(&folder).await;
        let named = |i| MapName { region: Some(Region::new(format!("r{i}")).unwrap()), ..name() };
        let signals: Vec<_> = (0..2 * MAX_LINGERING).map(|i| maps.join(&named(i)).unwrap()).collect();
        (0..signals.len()).for_each(|i| maps.leave(&named(i)));
        let began = tokio::time::Instant::now();
        for (i, signals) in signals.into_iter().enumerate().take(MAX_LINGERING) {
            maps.linger(&named(i), signals).await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO, "those above the bound are dropped at once");
        assert_eq!(maps.lock().followed.len(), MAX_LINGERING);
        let last = maps.join(&name()).unwrap();
        maps.leave(&name());
        maps.wait_stopped().await;
        maps.linger(&name(), last).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
