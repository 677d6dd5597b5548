//! Where what the upstream sends goes: into the node, and from there to programs and disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{Prefix, Revision};
use fairmesh_rib::{
    Node, Update,
    cache::SavedCopy,
    follower::{FollowerHandle, Freshness, Sink},
};
use tokio::{sync::watch, time::Instant};

use crate::{
    disk::{Disk, wall_clock},
    maps::{self, MapName, Maps},
    subscriptions::Subscriptions,
};

/// What the parts of an agent share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) node: Node,
    subscriptions: Mutex<Subscriptions>,
    pub(crate) disk: Disk,
    pub(crate) maps: Maps,
    /// Ticks when something may have begun or ceased to age.
    ages: watch::Sender<u64>,
    pub(crate) deltas: AtomicU64,
    pub(crate) snapshots: AtomicU64,
}

/// The sink of the agent's upstream.
#[derive(Debug)]
pub(crate) struct Feed {
    shared: Arc<Shared>,
}

impl Feed {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl Sink for Feed {
    const TAKES_PATCHES: bool = true;

    fn patch_base(&self, key: &str) -> Option<Bytes> {
        let node = || self.shared.node.get(key).map(|entry| entry.value);
        self.shared.maps.held(key).or_else(node)
    }

    fn update(&mut self, update: Update) {
        self.shared.update(update);
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        tracing::warn!(%prefix, reason, "the upstream does not serve this");
        self.shared.subscriptions().set(prefix, Freshness::Refused(reason.to_owned()));
        // The mark on disk says that all copies are current, and this one no longer is.
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

impl Shared {
    pub(crate) fn new(node: Node, disk: Disk) -> Self {
        Self {
            node,
            subscriptions: Mutex::default(),
            maps: Maps::new(disk.cache()),
            disk,
            ages: watch::Sender::new(0),
            deltas: AtomicU64::new(0),
            snapshots: AtomicU64::new(0),
        }
    }

    /// Locked before the jobs of the disk, the node and the wishes of the upstream, where several are.
    pub(crate) fn subscriptions(&self) -> MutexGuard<'_, Subscriptions> {
        // Nothing that runs under the lock panics.
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ticks when something may have begun or ceased to age.
    pub(crate) fn ages(&self) -> watch::Receiver<u64> {
        self.ages.subscribe()
    }

    /// Starts with what was saved, all of one store. Copies saved at different revisions stand together at the earliest:
    /// that much is certain of each.
    pub(crate) fn restore(&self, mut saved: Vec<SavedCopy>) {
        let numbers = saved.iter().map(|saved| saved.revision.number);
        let (Some(earliest), Some(latest)) = (numbers.clone().min(), numbers.max()) else { return };
        saved.sort_by_key(|saved| saved.revision.number);
        let revision = Revision { number: earliest, ..saved[0].revision };
        tracing::info!(subscriptions = saved.len(), %revision, store = %revision.store, "starting from saved copies");
        let (now, today) = (Instant::now(), wall_clock());
        let mut entries = BTreeMap::new();
        let mut subscriptions = self.subscriptions();
        for copy in saved {
            let age = today.duration_since(copy.at).unwrap_or_default();
            // Their values are on disk, and stay there unless somebody asks for them as they are.
            let for_maps = copy.entries.iter().any(|(key, entry)| maps::is_left_out(key, entry));
            subscriptions.restore(copy.prefix.clone(), now, age, !for_maps);
            match for_maps {
                true => self.maps.restore(copy.prefix, copy.revision.store, copy.entries),
                false => entries.extend(copy.entries),
            }
        }
        self.node.restore(revision, latest, entries);
    }

    /// No longer holds a prefix; the caller tells the upstream.
    pub(crate) fn forget(&self, subscriptions: &mut Subscriptions, prefix: &Prefix) {
        subscriptions.remove(prefix);
        self.disk.jobs().remove(prefix);
        self.maps.forget(prefix);
        self.node.forget(prefix, |key| subscriptions.in_node(key));
    }

    /// The node holds a prefix from now on that only a map was made of.
    pub(crate) fn hold_in_node(
        &self,
        subscriptions: &mut Subscriptions,
        prefix: &Prefix,
        upstream: &FollowerHandle,
    ) {
        if !subscriptions.standing(prefix).is_some_and(Freshness::has_copy) {
            // It comes, and goes to the node then.
            return;
        }
        let whole = self
            .maps
            .whole(prefix)
            .map(|entries| self.node.replace(prefix.clone(), entries, self.node.revision()));
        if !matches!(whole, Some(Ok(_))) {
            self.fetch_prefix_again(subscriptions, prefix, upstream);
        }
    }

    /// What a map is made of is not on disk any more.
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
        // What was given up while this was under way must not come back: nothing would keep it current.
        update.snapshots.retain(|snapshot| subscriptions.standing(&snapshot.prefix).is_some());
        update.puts.retain(|(key, _)| subscriptions.of(key).next().is_some());
        // Held over the change of the node, so that a mark on disk never runs ahead of the jobs.
        let mut jobs = self.disk.jobs();
        let mut standings: Vec<(Prefix, Duration)> =
            update.snapshots.iter().map(|snapshot| (snapshot.prefix.clone(), snapshot.age)).collect();
        let mut save: BTreeSet<Prefix> = standings.iter().map(|(prefix, _)| prefix.clone()).collect();
        standings.extend(update.resumed.iter().map(|resumed| (resumed.prefix.clone(), resumed.age)));
        self.snapshots.fetch_add(update.snapshots.len() as u64, Ordering::Relaxed);
        self.deltas
            .fetch_add(u64::from(!update.puts.is_empty() || !update.deletes.is_empty()), Ordering::Relaxed);
        save.extend(self.maps.take(&mut update, |key| subscriptions.in_node(key)));
        let changed = match self.node.apply_update(update) {
            Ok(changed) => changed,
            Err(behind) => {
                // The reader refuses upstreams that lag, so this is a fault of ours.
                tracing::error!(%behind, "an update is left out");
                return;
            }
        };
        let may_age = standings.iter().any(|(_, age)| !age.is_zero()) || subscriptions.any_ages();
        for (prefix, age) in standings {
            subscriptions.set(&prefix, Freshness::Followed { at: now, age });
        }
        save.extend(changed.iter().flat_map(|key| subscriptions.of(key)).cloned());
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
    use fairmesh_rib::{Entry, Snapshot};

    use super::*;

    fn snapshot(prefix: &Prefix) -> Update {
        let entry = Entry { value: Bytes::from_static(b"x"), revision: 1 };
        let key: Arc<str> = format!("{}1", prefix.as_str()).into();
        let snapshot = Snapshot { prefix: prefix.clone(), entries: vec![(key, entry)], age: Duration::ZERO };
        let revision = Revision { store: StoreId(1), partition: 0, number: 1 };
        Update { snapshots: vec![snapshot], ..Update::empty(revision) }
    }

    #[tokio::test]
    async fn a_snapshot_that_comes_after_its_prefix_was_given_up_is_neither_held_nor_saved() {
        let folder = tempfile::tempdir().unwrap();
        let here = Location::in_region(Region::new("eu").unwrap());
        let (disk, _) = Disk::open(folder.path().into(), here).await.unwrap();
        let shared = Shared::new(Node::replica(), disk);
        let (kept, given_up) = (Prefix::new("/a/").unwrap(), Prefix::new("/b/").unwrap());
        for prefix in [&kept, &given_up] {
            shared.subscriptions().claim(prefix);
        }
        shared.forget(&mut shared.subscriptions(), &given_up);
        shared.update(snapshot(&kept));
        shared.update(snapshot(&given_up));
        assert!(shared.node.get("/a/1").is_some());
        assert!(shared.node.get("/b/1").is_none());
        assert_eq!(shared.disk.jobs().to_save(), [kept]);
    }
}
