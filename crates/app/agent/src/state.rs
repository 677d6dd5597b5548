//! State of the agent: applies upstream updates to the node, which serves programs and the disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{Prefix, RecordKey, Revision};
use fairmesh_rib::{
    Node, Update,
    disk_cache::SavedCopy,
    follower::{FollowerHandle, Freshness, Sink},
};
use fairmesh_wire::LogLimiter;
use tokio::{sync::watch, time::Instant};

use crate::{
    disk_writer::{Disk, wall_clock},
    shard_maps::{self, MapName, ShardMaps},
    subscriptions::Subscriptions,
};

/// State shared by the parts of an agent.
#[derive(Debug)]
pub(crate) struct AgentState {
    pub(crate) node: Node,
    subscriptions: Mutex<Subscriptions>,
    pub(crate) disk: Disk,
    pub(crate) maps: ShardMaps,
    /// Notified when some data may have started or stopped aging.
    ages: watch::Sender<u64>,
    pub(crate) deltas: AtomicU64,
    pub(crate) snapshots: AtomicU64,
}

/// Applies the upstream's updates to the agent's state.
#[derive(Debug)]
pub(crate) struct UpstreamSink {
    shared: Arc<AgentState>,
}

impl UpstreamSink {
    pub(crate) fn new(shared: Arc<AgentState>) -> Self {
        Self { shared }
    }
}

impl Sink for UpstreamSink {
    const TAKES_PATCHES: bool = true;

    fn patch_base(&self, key: &str) -> Option<Bytes> {
        let node = || self.shared.node.get(key).map(|entry| entry.value);
        self.shared.maps.value(key).or_else(node)
    }

    fn update(&mut self, update: Update) {
        self.shared.update(update);
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        // Programs name the prefixes.
        static REFUSED: LogLimiter = LogLimiter::new();
        if let Some(suppressed) = REFUSED.next() {
            tracing::info!(%prefix, reason, suppressed, "upstream refused the subscription");
        }
        self.shared.subscriptions().set(prefix, Freshness::Refused(reason.to_owned()));
        // The progress mark on disk covers all copies, but this one is no longer current.
        self.shared.disk.jobs().remove(prefix);
        self.shared.maps.refused(prefix, reason);
    }

    fn age_update(&mut self, age: Duration) {
        self.shared.subscriptions().contact(age, Instant::now());
        self.shared.aged();
    }

    fn disconnected(&mut self) {
        self.shared.subscriptions().disconnected(Instant::now());
        self.shared.aged();
    }
}

impl AgentState {
    pub(crate) fn new(node: Node, disk: Disk) -> Self {
        Self {
            node,
            subscriptions: Mutex::default(),
            maps: ShardMaps::new(disk.cache()),
            disk,
            ages: watch::Sender::new(0),
            deltas: AtomicU64::new(0),
            snapshots: AtomicU64::new(0),
        }
    }

    /// Locks the subscriptions. Lock order: subscriptions, disk jobs, node, upstream subscriptions.
    pub(crate) fn subscriptions(&self) -> MutexGuard<'_, Subscriptions> {
        // No code that holds the lock panics.
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notified when some data may have started or stopped aging.
    pub(crate) fn ages(&self) -> watch::Receiver<u64> {
        self.ages.subscribe()
    }

    /// Restores saved copies from one store. If they were saved at different revisions, the earliest is used, which
    /// is valid for all.
    pub(crate) fn restore(&self, mut saved: Vec<SavedCopy>) {
        let numbers = saved.iter().map(|saved| saved.revision.number);
        let (Some(earliest), Some(latest)) = (numbers.clone().min(), numbers.max()) else { return };
        saved.sort_by_key(|saved| saved.revision.number);
        let revision = Revision { number: earliest, ..saved[0].revision };
        let (subscriptions, store) = (saved.len(), revision.store);
        tracing::info!(subscriptions, %revision, %store, "starting from saved copies");
        let (now, today) = (Instant::now(), wall_clock());
        let mut entries = BTreeMap::new();
        let mut subscriptions = self.subscriptions();
        for copy in saved {
            let age = today.duration_since(copy.at).unwrap_or_default();
            // The values stay on disk until a watcher subscribes to the raw records.
            let for_maps = copy.entries.iter().any(|(key, entry)| shard_maps::is_value_on_disk(key, entry));
            subscriptions.restore(copy.prefix.clone(), now, age, !for_maps);
            match for_maps {
                true => self.maps.restore(copy.prefix, copy.revision.store, copy.entries),
                false => entries.extend(copy.entries),
            }
        }
        self.node.restore(revision, latest, entries);
    }

    /// Serves the copy on disk of a prefix that was followed before and has not arrived from the upstream. A program
    /// that uses the prefix again while no control plane responds thus gets its last state. Does nothing without such a
    /// copy.
    pub(crate) async fn serve_retired(&self, prefix: &Prefix) {
        let (cache, wanted) = (self.disk.cache(), prefix.clone());
        match tokio::task::spawn_blocking(move || cache.load(&wanted, wall_clock())).await {
            Ok(Ok(Some(copy))) => self.restore_retired(copy),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::warn!(%prefix, %error, "the saved copy cannot be read"),
            Err(panicked) => tracing::warn!(%prefix, %panicked, "the saved copy cannot be read"),
        }
    }

    /// Restores a retired copy. Keys that the node also has through other prefixes keep their values, because those
    /// prefixes were followed for longer.
    fn restore_retired(&self, SavedCopy { prefix, revision, at, mut entries }: SavedCopy) {
        let age = wall_clock().duration_since(at).unwrap_or_default();
        let mut subscriptions = self.subscriptions();
        // The prefix may have arrived meanwhile, or may no longer be used.
        if subscriptions.freshness(&prefix) != Some(&Freshness::Missing) {
            return;
        }
        match self.node.store() {
            None => self.node.restore(revision, revision.number, entries),
            Some(store) if store != revision.store => return,
            Some(_) => {
                let is_held = |key: &str| subscriptions.is_held_by_another(&prefix, key);
                entries.retain(|(key, _)| !is_held(key));
                let (_, held) = self.node.read(std::slice::from_ref(&prefix));
                entries.extend(held.into_iter().filter(|(key, _)| is_held(key)));
                if let Err(behind) = self.node.replace(prefix.clone(), entries, self.node.revision()) {
                    tracing::debug!(%behind, %prefix, "an update arrived before the saved copy");
                    return;
                }
            }
        }
        tracing::info!(%prefix, ?age, "serving the copy of the last use");
        subscriptions.set(&prefix, Freshness::Held { at: Instant::now(), age });
        drop(subscriptions);
        self.aged();
    }

    /// Drops a prefix; the caller unsubscribes at the upstream. The copy on disk stays for a while unless the users of the prefix moved
    /// to a narrower one.
    pub(crate) fn forget(&self, subscriptions: &mut Subscriptions, prefix: &Prefix) {
        // Keep the mesh-wide default on disk: without it, a starting server refuses calls rather than admit callers by
        // outdated rules.
        let is_default = *prefix == Prefix::from(&RecordKey::DefaultAuthorization);
        let is_removed = is_default || subscriptions.is_narrowed(prefix);
        subscriptions.remove(prefix);
        match is_removed {
            true => self.disk.jobs().remove(prefix),
            false => self.disk.jobs().retire(prefix),
        }
        self.maps.forget(prefix);
        self.node.forget(prefix, |key| subscriptions.in_node(key));
    }

    /// Loads a prefix into the node that was held only for shard maps so far.
    pub(crate) fn hold_in_node(
        &self,
        subscriptions: &mut Subscriptions,
        prefix: &Prefix,
        upstream: &FollowerHandle,
    ) {
        if !subscriptions.freshness(prefix).is_some_and(Freshness::has_copy) {
            // The snapshot has not arrived yet, and will go to the node.
            return;
        }
        let whole = self
            .maps
            .read_all(prefix)
            .map(|entries| self.node.replace(prefix.clone(), entries, self.node.revision()));
        if !matches!(whole, Some(Ok(_))) {
            self.fetch_prefix_again(subscriptions, prefix, upstream);
        }
    }

    /// Fetches the records of a map again, because a chunk is missing on disk.
    pub(crate) fn fetch_again(&self, name: &MapName, upstream: &FollowerHandle) {
        let mut subscriptions = self.subscriptions();
        for prefix in name.prefixes() {
            self.fetch_prefix_again(&mut subscriptions, &prefix, upstream);
        }
    }

    fn fetch_prefix_again(
        &self,
        subscriptions: &mut Subscriptions,
        prefix: &Prefix,
        upstream: &FollowerHandle,
    ) {
        subscriptions.set(prefix, Freshness::Missing);
        upstream.unsubscribe(prefix);
        upstream.subscribe(prefix.clone());
    }

    fn update(&self, mut update: Update) {
        let now = Instant::now();
        let mut subscriptions = self.subscriptions();
        // A prefix dropped while this update was in flight must not return: nothing would update it.
        update.snapshots.retain(|snapshot| subscriptions.freshness(&snapshot.prefix).is_some());
        update.puts.retain(|(key, _)| subscriptions.covering_prefixes(key).next().is_some());
        // Held while the node changes, so that a progress mark on disk is never ahead of the jobs.
        let mut jobs = self.disk.jobs();
        let mut freshness_updates: Vec<(Prefix, Duration)> =
            update.snapshots.iter().map(|snapshot| (snapshot.prefix.clone(), snapshot.age)).collect();
        let mut save: BTreeSet<Prefix> = freshness_updates.iter().map(|(prefix, _)| prefix.clone()).collect();
        freshness_updates.extend(update.resumed.iter().map(|resumed| (resumed.prefix.clone(), resumed.age)));
        self.snapshots.fetch_add(update.snapshots.len() as u64, Ordering::Relaxed);
        self.deltas
            .fetch_add(u64::from(!update.puts.is_empty() || !update.deletes.is_empty()), Ordering::Relaxed);
        save.extend(self.maps.apply(&mut update, |key| subscriptions.in_node(key)));
        let changed = match self.node.apply_update(update) {
            Ok(changed) => changed,
            Err(behind) => {
                // The follower refuses lagging upstreams, so this is a bug.
                tracing::error!(%behind, "update is older than the node; skipped");
                return;
            }
        };
        let may_age = freshness_updates.iter().any(|(_, age)| !age.is_zero()) || subscriptions.any_ages();
        for (prefix, age) in freshness_updates {
            subscriptions.set(&prefix, Freshness::Followed { at: now, age });
        }
        save.extend(changed.iter().flat_map(|key| subscriptions.covering_prefixes(key)).cloned());
        jobs.save(save);
        drop((jobs, subscriptions));
        if may_age {
            self.aged();
        }
    }

    fn aged(&self) {
        self.ages.send_modify(|ticks| *ticks += 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fairmesh_model::{Location, Region, StoreId};
    use fairmesh_rib::{Entry, Snapshot, follower::FollowerState};
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn snapshot(prefix: &Prefix) -> Update {
        let entry = Entry { value: Bytes::from_static(b"x"), revision: 1 };
        let key: Arc<str> = format!("{}1", prefix.as_str()).into();
        let snapshot = Snapshot { prefix: prefix.clone(), entries: vec![(key, entry)], age: Duration::ZERO };
        let revision = Revision { store: StoreId(1), partition: 0, number: 1 };
        Update { snapshots: vec![snapshot], ..Update::empty(revision) }
    }

    #[tokio::test]
    async fn retired_disk_copy_is_served_when_its_prefix_is_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let here = Location::in_region(Region::new("eu").unwrap());
        let (disk, _) = Disk::open(folder.path().into(), here).await.unwrap();
        let shared = Arc::new(AgentState::new(Node::replica(), disk));
        let prefix = Prefix::new("/a/").unwrap();
        let connected = FollowerState {
            connected: true,
            since: Instant::now(),
            failures: 0,
            location: None,
            store: None,
            address: None,
            error: None,
        };
        let (state, stopping) = (watch::Sender::new(connected), CancellationToken::new());
        stopping.cancel();
        shared.subscriptions().claim(&prefix, 0);
        shared.update(snapshot(&prefix));
        shared.clone().save_all(state.subscribe(), stopping.clone()).await;
        shared.forget(&mut shared.subscriptions(), &prefix);
        shared.clone().save_all(state.subscribe(), stopping).await;
        assert!(shared.node.get("/a/1").is_none());
        shared.serve_retired(&prefix).await;
        assert!(shared.node.get("/a/1").is_none(), "not used");
        shared.subscriptions().claim(&prefix, 0);
        shared.serve_retired(&prefix).await;
        assert!(shared.node.get("/a/1").is_some());
        assert!(matches!(shared.subscriptions().freshness(&prefix), Some(Freshness::Held { .. })));
    }

    #[tokio::test]
    async fn restored_copy_does_not_overwrite_fresher_narrower_prefix() {
        let folder = tempfile::tempdir().unwrap();
        let here = Location::in_region(Region::new("eu").unwrap());
        let (disk, _) = Disk::open(folder.path().into(), here).await.unwrap();
        let shared = AgentState::new(Node::replica(), disk);
        let (broad, narrow) = (Prefix::new("/a/").unwrap(), Prefix::new("/a/eu/").unwrap());
        let entry = |key: &str, revision| {
            (Arc::<str>::from(key), Entry { value: Bytes::from_static(b"x"), revision })
        };
        let at = |number| Revision { store: StoreId(1), partition: 0, number };
        shared.subscriptions().claim(&narrow, 0);
        let entries = vec![entry("/a/eu/1", 9)];
        let snapshot = Snapshot { prefix: narrow.clone(), entries, age: Duration::ZERO };
        shared.update(Update { snapshots: vec![snapshot], ..Update::empty(at(9)) });
        shared.subscriptions().claim(&broad, 0);
        let entries = ["/a/eu/1", "/a/eu/removed", "/a/us/1"].map(|key| entry(key, 5)).into();
        shared.restore_retired(SavedCopy {
            prefix: broad.clone(),
            revision: at(5),
            at: wall_clock(),
            entries,
        });
        let (_, entries) = shared.node.read(std::slice::from_ref(&broad));
        let served: Vec<_> = entries.iter().map(|(key, entry)| (key.as_ref(), entry.revision)).collect();
        assert_eq!(served, [("/a/eu/1", 9), ("/a/us/1", 5)]);
        assert!(matches!(shared.subscriptions().freshness(&broad), Some(Freshness::Held { .. })));
    }

    #[tokio::test]
    async fn snapshot_of_dropped_prefix_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let here = Location::in_region(Region::new("eu").unwrap());
        let (disk, _) = Disk::open(folder.path().into(), here).await.unwrap();
        let shared = AgentState::new(Node::replica(), disk);
        let (kept, given_up) = (Prefix::new("/a/").unwrap(), Prefix::new("/b/").unwrap());
        for prefix in [&kept, &given_up] {
            shared.subscriptions().claim(prefix, 0);
        }
        shared.forget(&mut shared.subscriptions(), &given_up);
        shared.update(snapshot(&kept));
        shared.update(snapshot(&given_up));
        assert!(shared.node.get("/a/1").is_some());
        assert!(shared.node.get("/b/1").is_none());
        assert_eq!(shared.disk.jobs().to_save(), [kept]);
    }
}
