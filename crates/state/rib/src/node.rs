use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_model::{Cursor, Identity, Prefix, RecordKind, Revision, StoreId, Tenant};
use tokio::{sync::watch, time::Instant};

use crate::{
    Batch, Commit, Conflict, Entry, PeerInfo, PendingUpdate, Table, WatcherInfo,
    followed_prefixes::FollowedPrefixes,
    progress_schedule::ProgressSchedule,
    terminated_watches::TerminatedWatches,
    watcher_hub::{Hub, WatcherId},
};

mod disconnected_watchers;
mod lagging_watcher;
mod replica_updates;
mod watcher;

use disconnected_watchers::DisconnectedWatchers;

pub use lagging_watcher::BehindWatcher;
pub use replica_updates::StaleUpdate;
pub use watcher::Watcher;
use watcher::WatcherWaker;

/// Placeholder for the id of an unknown store. No store has this id.
const NO_STORE: StoreId = StoreId(0);

/// A copy of the routing information base with its watchers. The copy is complete in a control plane or replica, and
/// partial in an agent.
///
/// Cheap to clone; clones are the same node. Every call takes one short lock, and no call waits for a watcher.
#[derive(Clone, Debug)]
pub struct Node {
    shared: Arc<NodeShared>,
}

#[derive(Debug)]
struct NodeShared {
    inner: Mutex<NodeInner>,
    applied: watch::Sender<u64>,
    acks: watch::Sender<u64>,
    followed: FollowedPrefixes,
    terminated_watches: TerminatedWatches,
}

#[derive(Debug)]
struct NodeInner {
    store: StoreId,
    table: Table,
    hub: Hub,
    wakers: HashMap<WatcherId, Arc<WatcherWaker>>,
    /// Watchers that disconnected recently and may reconnect.
    disconnected: DisconnectedWatchers,
    progress: ProgressSchedule,
}

/// Records, ordered by key.
pub type Entries = Vec<(Arc<str>, Entry)>;

/// Keys with their entries; `None` for a key that does not exist.
pub type Values = Vec<(Arc<str>, Option<Entry>)>;

/// The result of a wait for acknowledgements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckStatus {
    /// Whether every watcher has applied the revision.
    pub all: bool,
    /// The watchers that have not applied the revision.
    pub behind: Vec<BehindWatcher>,
}

impl Node {
    /// Creates an empty node of a store.
    pub fn new(store: StoreId) -> Self {
        Self::with_table(store, Table::default())
    }

    /// Creates a node that follows another node and does not know its store yet. Watchers wait until the store is
    /// known.
    pub fn replica() -> Self {
        Self::new(NO_STORE)
    }

    /// Creates a node with the persisted content of its store at `revision`. Watchers of the previous process count
    /// as disconnected.
    pub fn load(store: StoreId, revision: u64, entries: impl IntoIterator<Item = (Arc<str>, Entry)>) -> Self {
        let mut table = Table::default();
        table.load(revision, entries);
        let node = Self::with_table(store, table);
        if revision > 0 {
            node.lock().disconnected.assume_unknown(Instant::now());
        }
        node
    }

    /// Creates a node with a given table, for example one with a shorter log.
    pub fn with_table(store: StoreId, table: Table) -> Self {
        Self::bounded(store, table, FollowedPrefixes::default())
    }

    /// Creates a node whose watches together follow no more prefixes than `followed` admits.
    pub fn bounded(store: StoreId, table: Table, followed: FollowedPrefixes) -> Self {
        let (applied, acks) = (watch::Sender::new(table.revision()), watch::Sender::new(0));
        let progress = ProgressSchedule::new(table.changes());
        let inner = NodeInner {
            store,
            table,
            hub: Hub::default(),
            wakers: HashMap::new(),
            disconnected: DisconnectedWatchers::default(),
            progress,
        };
        let (inner, terminated_watches) = (Mutex::new(inner), TerminatedWatches::default());
        Self { shared: Arc::new(NodeShared { inner, applied, acks, followed, terminated_watches }) }
    }

    /// Returns the prefix of a record kind for each tenant that has records. Finding a tenant takes one step,
    /// regardless of the number of its records.
    pub fn tenant_prefixes(&self, kind: RecordKind) -> Vec<Prefix> {
        let mut prefixes = Vec::new();
        let mut from = "/t/".to_owned();
        while let Some(key) = self.key_from(&from) {
            let Some((tenant, _)) = key.strip_prefix("/t/").and_then(|rest| rest.split_once('/')) else {
                break;
            };
            // The character '0' follows '/', so this key is past all keys of the tenant.
            from = format!("/t/{tenant}0");
            prefixes.extend(Tenant::new(tenant).map(|tenant| Prefix::tenant(&tenant, kind)));
        }
        prefixes
    }

    /// Returns the counts of prefixes that all watches of this node's servers follow.
    pub fn followed(&self) -> &FollowedPrefixes {
        &self.shared.followed
    }

    /// Returns the number of watches that this node's servers terminated, by reason.
    pub fn terminated_watches(&self) -> &TerminatedWatches {
        &self.shared.terminated_watches
    }

    /// Returns the store to which the node's revisions belong, once it is known.
    pub fn store(&self) -> Option<StoreId> {
        Some(self.lock().store).filter(|store| *store != NO_STORE)
    }

    /// The last applied revision.
    pub fn revision(&self) -> Revision {
        self.lock().revision()
    }

    /// Applies a commit of the store. Commits must be applied in order. Returns false for a commit that was applied
    /// before.
    pub fn apply(&self, commit: Commit) -> bool {
        let mut inner = self.lock();
        let keys: Vec<_> = commit.changes.iter().map(|(key, _)| key.clone()).collect();
        let applied = inner.table.apply(commit);
        if applied {
            inner.notify_changes(&keys);
            self.announce(&inner);
        }
        applied
    }

    /// Reads everything below the prefixes at one revision, ordered by key.
    pub fn read(&self, prefixes: &[Prefix]) -> (Revision, Entries) {
        let inner = self.lock();
        (inner.revision(), inner.table.read(prefixes))
    }

    /// Reads everything below the prefixes, like `read`. Returns `None` instead if keys and values, plus 32 bytes per
    /// entry, exceed `max_bytes`.
    pub fn read_at_most(&self, prefixes: &[Prefix], max_bytes: usize) -> (Revision, Option<Entries>) {
        let inner = self.lock();
        let mut bytes = 0;
        let entries = inner.table.entries_below(prefixes).map(|(key, entry)| {
            bytes += key.len() + entry.value.len() + 32;
            (bytes <= max_bytes).then(|| (key.clone(), entry.clone()))
        });
        (inner.revision(), entries.collect())
    }

    /// Returns the earliest revision from which a watcher can resume.
    pub fn floor(&self) -> u64 {
        self.lock().table.floor()
    }

    /// Returns the entries of these keys, all at one revision.
    pub fn values(&self, keys: impl IntoIterator<Item = Arc<str>>) -> (Revision, Values) {
        let inner = self.lock();
        let value = |key: Arc<str>| {
            let entry = inner.table.get(&key).cloned();
            (key, entry)
        };
        (inner.revision(), keys.into_iter().map(value).collect())
    }

    /// Returns the current revision, and the current entry of each key that changed after revision `number` and for
    /// which `concerns` returns true. `None` if the log does not reach back that far.
    pub fn changes_since(&self, number: u64, concerns: impl Fn(&str) -> bool) -> Option<(u64, Values)> {
        let inner = self.lock();
        let changed = inner.table.changes_since(number)?.map(|(_, key)| key).filter(|key| concerns(key));
        let changed: BTreeSet<_> = changed.cloned().collect();
        let value = |key: Arc<str>| {
            let entry = inner.table.get(&key).cloned();
            (key, entry)
        };
        Some((inner.table.revision(), changed.into_iter().map(value).collect()))
    }

    /// Returns the entry at `key`.
    pub fn get(&self, key: &str) -> Option<Entry> {
        self.lock().table.get(key).cloned()
    }

    /// Returns the first key at or after `from`, for skipping whole folders.
    pub fn key_from(&self, from: &str) -> Option<Arc<str>> {
        self.lock().table.key_from(from).cloned()
    }

    /// Checks the preconditions of a batch.
    ///
    /// # Errors
    /// The first precondition that does not hold.
    pub fn check(&self, batch: &Batch) -> Result<(), Conflict> {
        self.lock().table.check(batch)
    }

    /// Waits until this revision or a later one is applied.
    pub async fn wait_applied(&self, at_least: u64) {
        let mut applied = self.shared.applied.subscribe();
        // The sender lives in `self`, so the wait cannot fail.
        let _ = applied.wait_for(|number| *number >= at_least).await;
    }

    /// Returns a receiver of the last applied revision.
    pub fn revisions(&self) -> watch::Receiver<u64> {
        self.shared.applied.subscribe()
    }

    /// Returns a receiver that is notified after every acknowledgement and disconnect of a watcher.
    pub fn acks(&self) -> watch::Receiver<u64> {
        self.shared.acks.subscribe()
    }

    /// Adds a watcher, which is removed when dropped. `software` names it to operators.
    pub fn watch(&self, software: impl Into<String>, identity: Identity) -> Watcher {
        let waker = Arc::<WatcherWaker>::default();
        let mut inner = self.lock();
        let id = inner.hub.join(software.into(), identity);
        inner.wakers.insert(id, waker.clone());
        Watcher::new(self.clone(), id, waker)
    }

    /// Returns the watchers of `prefix`, and of any prefix above or below it.
    pub fn watchers(&self, prefix: &Prefix) -> Vec<WatcherInfo> {
        let inner = self.lock();
        inner.hub.watchers(prefix, inner.table.revision())
    }

    /// Number of watchers.
    pub fn watcher_count(&self) -> usize {
        self.lock().hub.len()
    }

    /// Returns the revision that every watcher has applied, including recently disconnected ones. If all watchers are
    /// current, this is the node's revision.
    pub fn applied_by_all(&self) -> Revision {
        let inner = self.lock();
        let present = inner.hub.least_applied(inner.table.revision());
        let disconnected = inner.disconnected.least_applied(Instant::now());
        Revision { number: disconnected.map_or(present, |number| number.min(present)), ..inner.revision() }
    }

    /// Waits until the grace period of a disconnected watcher ends. If there is no such watcher, returns after a
    /// while, because the last period may have ended just after the caller read the state.
    pub async fn grace_expired(&self) {
        let next = self.lock().disconnected.next_expiry(Instant::now());
        match next {
            Some(at) => tokio::time::sleep_until(at).await,
            None => tokio::time::sleep(disconnected_watchers::RECONNECT_GRACE).await,
        }
    }

    /// Requests acknowledgements and waits up to `deadline` until every watcher of a part of `prefix` has applied
    /// `revision`. A disconnected watcher keeps using its copy, so it counts until it reconnects or its grace period
    /// ends.
    pub async fn wait_acked(&self, prefix: &Prefix, revision: u64, deadline: Instant) -> AckStatus {
        let (mut acks, mut applied) = (self.acks(), self.revisions());
        let mut late = Vec::new();
        loop {
            acks.mark_unchanged();
            applied.mark_unchanged();
            if self.all_acked(prefix, revision, &mut late) {
                return AckStatus { all: true, behind: Vec::new() };
            }
            tokio::select! {
                Ok(()) = acks.changed() => {}
                Ok(()) = applied.changed() => {}
                () = tokio::time::sleep_until(deadline) => {
                    let behind = self.behind(prefix, revision);
                    return AckStatus { all: behind.is_empty(), behind };
                }
                () = self.grace_expired() => {}
            }
        }
    }

    /// Requests acknowledgements from all watchers that have not applied revision `number`.
    pub fn request_ack(&self, number: u64) {
        let inner = self.lock();
        let late = inner.hub.behind(&Prefix::everything(), number, inner.table.revision());
        inner.request_ack(&late, number);
    }

    /// Whether every watcher has applied `revision`. Requests acknowledgements from watchers that have not. `late`
    /// caches them between calls: while any of them is still late, no other watcher need be scanned.
    fn all_acked(&self, prefix: &Prefix, revision: u64, late: &mut Vec<WatcherId>) -> bool {
        let inner = self.lock();
        let current = inner.table.revision();
        while let Some(id) = late.last() {
            if inner.hub.is_behind(*id, revision, current) {
                return false;
            }
            late.pop();
        }
        *late = inner.hub.behind(prefix, revision, current);
        inner.request_ack(late, revision);
        late.is_empty() && inner.disconnected.behind(prefix, revision, Instant::now()).is_empty()
    }

    fn behind(&self, prefix: &Prefix, revision: u64) -> Vec<BehindWatcher> {
        let late = self.watchers(prefix).into_iter().filter(|watcher| watcher.applied < revision);
        let late = late.map(|watcher| BehindWatcher::new(&watcher, false));
        late.chain(self.lock().disconnected.behind(prefix, revision, Instant::now())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, NodeInner> {
        // No code under this lock panics. If it did, serving the current state would be better than ending the
        // process.
        self.shared.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the table's revision. Called under the lock, so that the published revision never goes backwards.
    fn announce(&self, inner: &NodeInner) {
        self.shared.applied.send_replace(inner.table.revision());
    }
}

impl NodeInner {
    fn revision(&self) -> Revision {
        Revision { store: self.store, partition: 0, number: self.table.revision() }
    }

    /// Marks changed keys as dirty for their watchers. Sends idle watchers their revision before the log drops it.
    fn notify_changes(&mut self, keys: &[Arc<str>]) {
        let mut woken = self.hub.mark_dirty(keys);
        if self.progress.due(self.table.changes()) {
            woken.append(&mut self.hub.notify_progress());
        }
        self.wake(woken);
    }

    fn request_ack(&self, ids: &[WatcherId], number: u64) {
        ids.iter().filter_map(|id| self.wakers.get(id)).for_each(|waker| waker.request_ack(number));
    }

    fn wake(&self, ids: impl IntoIterator<Item = WatcherId>) {
        ids.into_iter().filter_map(|id| self.wakers.get(&id)).for_each(|waker| waker.wake());
    }
}

// Called by `Watcher`.
impl Node {
    fn subscribe(&self, id: WatcherId, prefix: Prefix, from: Option<Cursor>) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        if let Some(from) = &from
            && let Some((software, identity)) = inner.hub.identity_of(id)
        {
            // Revisions of another store cannot be compared.
            let held = if from.store == inner.store { from.number(0) } else { 0 };
            inner.disconnected.reconnected(software, identity, &prefix, held);
        }
        inner.hub.subscribe(id, prefix, from);
        inner.wake([id]);
    }

    fn unsubscribe(&self, id: WatcherId, prefix: &Prefix) {
        self.lock().hub.unsubscribe(id, prefix);
        self.shared.acks.send_modify(|ticks| *ticks += 1);
    }

    fn ack(&self, id: WatcherId, cursor: &Cursor) {
        let mut inner = self.lock();
        if cursor.store == inner.store {
            inner.hub.ack(id, cursor.number(0));
            self.shared.acks.send_modify(|ticks| *ticks += 1);
        }
    }

    fn pull(&self, id: WatcherId) -> Option<PendingUpdate> {
        let inner = &mut *self.lock();
        if inner.store == NO_STORE {
            return None;
        }
        let pulled = inner.hub.pull(id, inner.store, &inner.table);
        if inner.hub.has_more(id) {
            inner.wake([id]);
        }
        pulled
    }

    fn is_ahead(&self, id: WatcherId) -> bool {
        self.lock().hub.is_ahead(id)
    }

    fn enable_patches(&self, id: WatcherId) {
        let inner = &mut *self.lock();
        inner.hub.enable_patches(id);
        inner.table.keep_previous_values();
    }

    fn set_peer_info(&self, id: WatcherId, info: PeerInfo) {
        self.lock().hub.set_peer_info(id, info);
    }

    fn leave(&self, id: WatcherId) {
        let mut inner = self.lock();
        let revision = inner.table.revision();
        if let Some((prefixes, info, acked)) = inner.hub.leave(id, revision) {
            inner.disconnected.leave(prefixes, info, acked, Instant::now());
        }
        inner.wakers.remove(&id);
        self.shared.acks.send_modify(|ticks| *ticks += 1);
    }
}
