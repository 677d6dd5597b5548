//! Large shard maps: each lies once in sealed memory, which every program of the machine reads where it is (ServiceRouter §3.3).
//!
//! A program asks for a map over a socket of its own and gets the tables handed over, again whenever they change. What they
//! are made of, the chunks, stays on disk and is read when a table is made: holding them beside the tables was rejected,
//! since it would double what a map costs the machine, and following a map for programs through the node would hold them.
//!
//! A change makes the tables anew that it concerns, and new versions share the rest: a copy of all for each of many moves in
//! a row would write tens of megabytes for each. A list of recent moves over a table that is folded in now and then was
//! rejected: every look-up would search both.

mod build;
mod keep;
mod serve;
mod source;
mod store;

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
use fairmesh_rib::{Entry, Update, cache::Cache, covering, follower::FollowerHandle};
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use build::Built;
pub(crate) use serve::{limits, serve};
use source::Source;
use store::Store;
pub(crate) use store::is_left_out;

use crate::feed::Shared;

/// How many tables are made at a time, for all maps: each takes a core and memory for a while.
const BUILDS: usize = 2;
/// How long a map is kept after the last who followed it: who comes and goes does not make the machine build it each time.
const LINGER: Duration = Duration::from_secs(5);
/// So many maps that nobody follows are kept.
const MOST_LINGERING: usize = 16;

/// Which map: of a service, with the copies of one region or of all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MapName {
    pub(crate) service: ServiceName,
    pub(crate) region: Option<Region>,
}

impl MapName {
    /// What it is made of.
    pub(crate) fn prefixes(&self) -> Vec<Prefix> {
        let part = |part| Prefix::shards(&self.service, Some(&part));
        match &self.region {
            None => vec![Prefix::shards(&self.service, None)],
            Some(region) => vec![part(ShardPart::Ranges), part(ShardPart::Region(region.clone()))],
        }
    }
}

/// What there is of a map.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latest {
    pub(crate) built: Option<Arc<Built>>,
    /// Why the version after it cannot be used: the version, 0 where even that is not known, and the reason.
    pub(crate) failure: Option<(u64, String)>,
}

/// Every map that programs of this machine follow, and what they are made of.
#[derive(Debug)]
pub(crate) struct Maps {
    inner: Mutex<Inner>,
    cache: Arc<Cache>,
    /// Those who make maps and hand them over. The folder of copies is theirs, too, so that it is free when they are done.
    tasks: TaskTracker,
    /// Ticks when a map was made or could not be.
    made: watch::Sender<u64>,
    /// Numbers tables, so that none is handed over twice.
    tables: Arc<AtomicU64>,
    builds: Arc<Semaphore>,
    /// Nothing is kept any longer than it is followed.
    ending: CancellationToken,
}

#[derive(Debug, Default)]
struct Inner {
    store: Option<StoreId>,
    stores: BTreeMap<Prefix, Store>,
    followed: BTreeMap<MapName, Followed>,
}

#[derive(Debug)]
struct Followed {
    users: watch::Sender<usize>,
    latest: Latest,
    changed: Arc<Notify>,
}

/// What those who make a map and give it up go by.
#[derive(Debug)]
struct Keepers {
    users: watch::Receiver<usize>,
    changed: Arc<Notify>,
    /// Ends the one who makes it.
    gone: CancellationToken,
}

/// One more follows a map.
pub(crate) fn follow(shared: &Arc<Shared>, upstream: &FollowerHandle, name: &MapName) {
    if let Some(followed) = shared.maps.join(name) {
        let told = (Arc::clone(&followed.changed), followed.gone.clone());
        shared.maps.tasks.spawn(keep::keep(Arc::clone(shared), upstream.clone(), name.clone(), told));
        let (lingering, name) = (Arc::clone(shared), name.clone());
        shared.maps.tasks.spawn(async move { lingering.maps.linger(&name, followed).await });
    }
}

impl Maps {
    pub(crate) fn new(cache: Arc<Cache>) -> Self {
        Self {
            inner: Mutex::default(),
            cache,
            tasks: TaskTracker::new(),
            made: watch::Sender::new(0),
            tables: Arc::default(),
            builds: Arc::new(Semaphore::new(BUILDS)),
            ending: CancellationToken::new(),
        }
    }

    /// Waits until nothing is made or handed over any more, after all were asked to stop.
    pub(crate) async fn ended(&self) {
        self.ending.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Locked last of all.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that runs under the lock panics.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what was saved of a prefix; chunks are on disk.
    pub(crate) fn restore(&self, prefix: Prefix, store: StoreId, entries: Vec<(Arc<str>, Entry)>) {
        let mut inner = self.lock();
        inner.store = Some(store);
        inner.stores.entry(prefix).or_default().replace(entries);
    }

    /// From now on a prefix is held here; what there is of it already is in `entries`, where it is complete.
    pub(crate) fn hold(
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

    pub(crate) fn holds(&self, prefix: &Prefix) -> bool {
        self.lock().stores.contains_key(prefix)
    }

    pub(crate) fn forget(&self, prefix: &Prefix) {
        self.lock().stores.remove(prefix);
    }

    /// Takes from an update what belongs to maps, and leaves to the node what `in_node` says is wanted there. Returns the
    /// prefixes that changed here.
    pub(crate) fn take(&self, update: &mut Update, in_node: impl Fn(&str) -> bool) -> Vec<Prefix> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        if inner.stores.is_empty() {
            return Vec::new();
        }
        if inner.store.replace(update.revision.store).is_some_and(|store| store != update.revision.store) {
            inner.stores.values_mut().for_each(|store| *store = Store::default());
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
                // What is not complete must not be saved as if it were.
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

    /// What is to be saved of a prefix, where it is held here.
    pub(crate) fn to_save(&self, prefix: &Prefix) -> Option<Vec<(Arc<str>, Entry)>> {
        self.lock().stores.get(prefix).filter(|store| store.is_complete()).map(Store::entries)
    }

    /// What was saved need not be held any more. Returns how many bytes were let go.
    pub(crate) fn saved(&self, prefix: &Prefix, entries: &[(Arc<str>, Entry)]) -> usize {
        self.lock().stores.get_mut(prefix).map_or(0, |store| store.saved(entries))
    }

    /// All of a prefix with its chunks, read back from disk; `None` where one is missing or the prefix has not come yet.
    pub(crate) fn whole(&self, prefix: &Prefix) -> Option<Vec<(Arc<str>, Entry)>> {
        let entries =
            self.lock().stores.get(prefix).filter(|store| store.is_complete()).map(Store::entries)?;
        let fill = |(key, mut entry): (Arc<str>, Entry)| {
            if is_left_out(&key, &entry) {
                entry.value = self.cache.chunk(prefix, &key).ok()??;
            }
            Some((key, entry))
        };
        entries.into_iter().map(fill).collect()
    }

    /// What is at a key, from memory or disk; `None` where no map that has come whole is made of it.
    pub(crate) fn held(&self, key: &str) -> Option<Bytes> {
        let (prefix, entry) = {
            let inner = self.lock();
            let held = covering(key).find_map(|text| {
                let (prefix, store) = inner.stores.get_key_value(text)?;
                Some((prefix.clone(), store.get(key)?.clone()))
            });
            held?
        };
        match is_left_out(key, &entry) {
            true => self.cache.chunk(&prefix, key).ok()?,
            false => Some(entry.value),
        }
    }

    /// Ticks when a map was made or could not be.
    pub(crate) fn made(&self) -> watch::Receiver<u64> {
        self.made.subscribe()
    }

    /// What there is of a map that is followed.
    pub(crate) fn latest(&self, name: &MapName) -> Latest {
        self.lock().followed.get(name).map(|followed| followed.latest.clone()).unwrap_or_default()
    }

    /// One more follows a map; where there was none, what its keepers go by.
    fn join(&self, name: &MapName) -> Option<Keepers> {
        let mut inner = self.lock();
        if let Some(followed) = inner.followed.get(name) {
            followed.users.send_modify(|users| *users += 1);
            followed.changed.notify_one();
            return None;
        }
        let (users, counted) = watch::channel(1);
        let (changed, gone) = (Arc::new(Notify::new()), CancellationToken::new());
        changed.notify_one();
        let keepers = Keepers { users: counted, changed: Arc::clone(&changed), gone: gone.clone() };
        let followed = Followed { users, latest: Latest::default(), changed };
        inner.followed.insert(name.clone(), followed);
        Some(keepers)
    }

    /// One follows it no more.
    pub(crate) fn leave(&self, name: &MapName) {
        if let Some(followed) = self.lock().followed.get(name) {
            followed.users.send_modify(|users| *users = users.saturating_sub(1));
        }
    }

    /// Gives a map up, and its tables, when nobody has followed it for a while.
    async fn linger(&self, name: &MapName, mut keepers: Keepers) {
        loop {
            // Its sender goes only with the map, below.
            let _ = keepers.users.wait_for(|users| *users == 0).await;
            let lingering = self.lock().followed.values().filter(|f| *f.users.borrow() == 0).count();
            if lingering <= MOST_LINGERING {
                let came = tokio::select! {
                    came = timeout(LINGER, keepers.users.changed()) => came.is_ok(),
                    () = self.ending.cancelled() => false,
                };
                // Counts anew after each who came, also where that one is gone already.
                if came {
                    continue;
                }
            }
            let mut inner = self.lock();
            // Whoever joins does so under the lock.
            if *keepers.users.borrow() == 0 {
                inner.followed.remove(name);
                keepers.gone.cancel();
                return;
            }
        }
    }

    /// Says what has become of a map, unless whoever hears of changes by `changed` makes it no more: one who was given up
    /// while tables were under way must not tell those who ask its successor.
    fn tell(&self, name: &MapName, changed: &Arc<Notify>, tell: impl FnOnce(&mut Latest)) {
        let mut inner = self.lock();
        let followed = inner.followed.get_mut(name);
        let Some(followed) = followed.filter(|followed| Arc::ptr_eq(&followed.changed, changed)) else {
            return;
        };
        tell(&mut followed.latest);
        drop(inner);
        self.made.send_modify(|ticks| *ticks += 1);
    }

    /// The upstream does not serve a prefix.
    pub(crate) fn refused(&self, prefix: &Prefix, reason: &str) {
        for (name, followed) in &mut self.lock().followed {
            if name.prefixes().contains(prefix) {
                followed.latest.failure = Some((0, reason.to_owned()));
            }
        }
        self.made.send_modify(|ticks| *ticks += 1);
    }

    /// What a map is made of now; `None` while not all of it has come.
    fn source(&self, name: &MapName) -> Option<Source> {
        let inner = self.lock();
        let stores: Option<Vec<_>> = name
            .prefixes()
            .into_iter()
            .map(|prefix| {
                Some((prefix.clone(), inner.stores.get(&prefix).filter(|store| store.is_complete())?))
            })
            .collect();
        Some(Source::new(inner.store?, stores?, Arc::clone(&self.cache)))
    }

    /// Whether a map has this chunk now.
    fn names(&self, name: &MapName, chunk: ChunkHash) -> bool {
        let inner = self.lock();
        let stores = name.prefixes().into_iter().filter_map(|prefix| inner.stores.get(&prefix));
        stores.flat_map(Store::keys).any(
            |key| matches!(RecordKey::parse(key), Ok(RecordKey::ShardChunk(_, _, hash)) if hash == chunk),
        )
    }

    /// How many tables are held, and how many bytes they have, for metrics.
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
    use crate::disk::Disk;

    async fn maps(folder: &tempfile::TempDir) -> Maps {
        let here = Location::in_region(Region::new("eu").unwrap());
        let (disk, _) = Disk::open(folder.path().into(), here).await.unwrap();
        Maps::new(disk.cache())
    }

    fn name() -> MapName {
        MapName { service: ServiceName::new("shop/cart").unwrap(), region: None }
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_was_given_up_says_nothing_to_those_who_ask_its_successor() {
        let folder = tempfile::tempdir().unwrap();
        let maps = maps(&folder).await;
        let first = maps.join(&name()).unwrap();
        let given_up = Arc::clone(&first.changed);
        maps.leave(&name());
        maps.linger(&name(), first).await;
        let own = maps.join(&name()).unwrap().changed;
        let fails = |version| move |latest: &mut Latest| latest.failure = Some((version, String::new()));
        maps.tell(&name(), &given_up, fails(1));
        assert!(maps.latest(&name()).failure.is_none());
        maps.tell(&name(), &own, fails(2));
        assert_eq!(maps.latest(&name()).failure, Some((2, String::new())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_map_outlives_who_comes_and_goes_and_is_given_up_when_nobody_came_for_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let maps = maps(&folder).await;
        let keepers = maps.join(&name()).unwrap();
        let gone = keepers.gone.clone();
        let came_and_went = async {
            for _ in 0..100 {
                maps.leave(&name());
                tokio::time::sleep(LINGER / 2).await;
                assert!(maps.join(&name()).is_none(), "another would make it anew");
            }
            maps.leave(&name());
            assert!(!gone.is_cancelled());
            tokio::time::Instant::now()
        };
        let lingers = async {
            maps.linger(&name(), keepers).await;
            tokio::time::Instant::now()
        };
        let (left, given_up) = tokio::join!(came_and_went, lingers);
        assert!(given_up - left >= LINGER && gone.is_cancelled());
        assert!(maps.lock().followed.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_maps_linger_and_none_beyond_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let maps = maps(&folder).await;
        let named = |i| MapName { region: Some(Region::new(format!("r{i}")).unwrap()), ..name() };
        let keepers: Vec<_> = (0..2 * MOST_LINGERING).map(|i| maps.join(&named(i)).unwrap()).collect();
        (0..keepers.len()).for_each(|i| maps.leave(&named(i)));
        let began = tokio::time::Instant::now();
        for (i, keepers) in keepers.into_iter().enumerate().take(MOST_LINGERING) {
            maps.linger(&named(i), keepers).await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO, "too many went at one time");
        assert_eq!(maps.lock().followed.len(), MOST_LINGERING);
        let last = maps.join(&name()).unwrap();
        maps.leave(&name());
        maps.ended().await;
        maps.linger(&name(), last).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
