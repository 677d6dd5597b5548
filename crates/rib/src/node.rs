use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_model::{Cursor, Identity, Prefix, Revision, StoreId};
use tokio::{sync::watch, time::Instant};

use crate::{
    About, Batch, Commit, Conflict, Entry, Pulled, Table, WatcherInfo,
    hub::{Hub, WatcherId},
    marks::Marks,
    server::Followed,
};

mod absent;
mod replica;
mod watcher;

use absent::Absent;

pub use replica::Behind;
use watcher::Bell;
pub use watcher::Watcher;

/// What stands for a store that is not known yet; no store draws it.
const NO_STORE: StoreId = StoreId(0);

/// A copy of the routing information base with its watchers: a control plane's own, a replica's or an agent's part.
///
/// Cheap to clone; clones are the same node. Every call takes one short lock and none of them blocks on a watcher.
#[derive(Clone, Debug)]
pub struct Node {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    applied: watch::Sender<u64>,
    acks: watch::Sender<u64>,
    followed: Followed,
}

#[derive(Debug)]
struct Inner {
    store: StoreId,
    table: Table,
    hub: Hub,
    bells: HashMap<WatcherId, Arc<Bell>>,
    /// Who left lately and may be back.
    absent: Absent,
    marks: Marks,
}

/// Keys with what is at them; `None` where there is nothing.
pub type Values = Vec<(Arc<str>, Option<Entry>)>;

/// How far a wait for watchers came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acked {
    /// Whether every watcher has applied the revision.
    pub all: bool,
    /// Who has not, for people.
    pub behind: Vec<String>,
}

impl Node {
    /// The empty node of a store.
    pub fn new(store: StoreId) -> Self {
        Self::with_table(store, Table::default())
    }

    /// A node that follows another and has not met its store yet: watchers wait until it has.
    pub fn replica() -> Self {
        Self::new(NO_STORE)
    }

    /// A node that holds what its store had persisted at `revision`. Who watched it before is waited for.
    pub fn load(store: StoreId, revision: u64, entries: impl IntoIterator<Item = (Arc<str>, Entry)>) -> Self {
        let mut table = Table::default();
        table.load(revision, entries);
        let node = Self::with_table(store, table);
        if revision > 0 {
            node.lock().absent.anybody(Instant::now());
        }
        node
    }

    /// A node with a table of one's own making, such as one with a shorter log.
    pub fn with_table(store: StoreId, table: Table) -> Self {
        Self::bounded(store, table, Followed::default())
    }

    /// The same, whose watches follow no more prefixes together than `followed` admits.
    pub fn bounded(store: StoreId, table: Table, followed: Followed) -> Self {
        let (applied, acks) = (watch::Sender::new(table.revision()), watch::Sender::new(0));
        let marks = Marks::new(table.changes());
        let inner = Inner {
            store,
            table,
            hub: Hub::default(),
            bells: HashMap::new(),
            absent: Absent::default(),
            marks,
        };
        Self { shared: Arc::new(Shared { inner: Mutex::new(inner), applied, acks, followed }) }
    }

    /// The prefixes that all watches follow, as servers of this node count them.
    pub fn followed(&self) -> &Followed {
        &self.shared.followed
    }

    /// The store that the node's revisions belong to, once it is known.
    pub fn store(&self) -> Option<StoreId> {
        Some(self.lock().store).filter(|store| *store != NO_STORE)
    }

    /// The last revision applied.
    pub fn revision(&self) -> Revision {
        self.lock().revision()
    }

    /// Applies what the store committed, in order. A commit that was applied before is ignored: returns false.
    pub fn apply(&self, commit: Commit) -> bool {
        let mut inner = self.lock();
        let keys: Vec<_> = commit.changes.iter().map(|(key, _)| key.clone()).collect();
        let applied = inner.table.apply(commit);
        if applied {
            inner.touched(&keys);
            self.announce(&inner);
        }
        applied
    }

    /// Everything below the prefixes at one revision, in the order of keys.
    pub fn read(&self, prefixes: &[Prefix]) -> (Revision, Vec<(Arc<str>, Entry)>) {
        let inner = self.lock();
        (inner.revision(), inner.table.read(prefixes))
    }

    /// The earliest number from which a watcher resumes with what it missed.
    pub fn floor(&self) -> u64 {
        self.lock().table.floor()
    }

    /// What is at each of these keys, all at one revision.
    pub fn values(&self, keys: impl IntoIterator<Item = Arc<str>>) -> (Revision, Values) {
        let inner = self.lock();
        let value = |key: Arc<str>| {
            let entry = inner.table.get(&key).cloned();
            (key, entry)
        };
        (inner.revision(), keys.into_iter().map(value).collect())
    }

    /// What is at `key`.
    pub fn get(&self, key: &str) -> Option<Entry> {
        self.lock().table.get(key).cloned()
    }

    /// Whether every condition of the batch holds now.
    ///
    /// # Errors
    /// The first that does not hold.
    pub fn check(&self, batch: &Batch) -> Result<(), Conflict> {
        self.lock().table.check(batch)
    }

    /// Waits until a revision of this number or a later one is applied.
    pub async fn applied(&self, at_least: u64) {
        let mut applied = self.shared.applied.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _ = applied.wait_for(|number| *number >= at_least).await;
    }

    /// The number of the last revision applied, as it changes.
    pub fn revisions(&self) -> watch::Receiver<u64> {
        self.shared.applied.subscribe()
    }

    /// Ticks whenever a watcher acknowledged or left, or may have.
    pub fn acks(&self) -> watch::Receiver<u64> {
        self.shared.acks.subscribe()
    }

    /// Starts to watch; dropping the watcher ends it. `software` says what it is, for people.
    pub fn watch(&self, software: impl Into<String>, identity: Identity) -> Watcher {
        let bell = Arc::<Bell>::default();
        let mut inner = self.lock();
        let id = inner.hub.join(software.into(), identity);
        inner.bells.insert(id, bell.clone());
        Watcher::new(self.clone(), id, bell)
    }

    /// Everybody who watches something above or below `prefix`, or `prefix` itself.
    pub fn watchers(&self, prefix: &Prefix) -> Vec<WatcherInfo> {
        let inner = self.lock();
        inner.hub.watchers(prefix, inner.table.revision())
    }

    /// How many watchers there are.
    pub fn watcher_count(&self) -> usize {
        self.lock().hub.len()
    }

    /// The revision that every watcher has applied, those included who left lately; the node's own when none owes
    /// anything.
    pub fn applied_by_all(&self) -> Revision {
        let inner = self.lock();
        let present = inner.hub.least_applied(inner.table.revision());
        let away = inner.absent.least_applied(Instant::now());
        Revision { number: away.map_or(present, |away| away.min(present)), ..inner.revision() }
    }

    /// Waits until one of those who left is no longer counted on to return. While nobody is, it returns now and then, so
    /// that whoever looked just before the last of them was given up looks again.
    pub async fn given_up(&self) {
        let next = self.lock().absent.next(Instant::now());
        match next {
            Some(at) => tokio::time::sleep_until(at).await,
            None => tokio::time::sleep(absent::RETURN_WITHIN).await,
        }
    }

    /// Waits until everybody who watches something of `prefix` has applied `revision`, at most until `deadline`; they are
    /// asked to say so at once. One that disconnects decides by what it has until it is back, so it counts until it is or
    /// had the time to.
    pub async fn wait_acked(&self, prefix: &Prefix, revision: u64, deadline: Instant) -> Acked {
        let (mut acks, mut applied) = (self.acks(), self.revisions());
        let mut late = Vec::new();
        loop {
            acks.mark_unchanged();
            applied.mark_unchanged();
            if self.all_acked(prefix, revision, &mut late) {
                return Acked { all: true, behind: Vec::new() };
            }
            tokio::select! {
                Ok(()) = acks.changed() => {}
                Ok(()) = applied.changed() => {}
                () = tokio::time::sleep_until(deadline) => {
                    let behind = self.behind(prefix, revision);
                    return Acked { all: behind.is_empty(), behind };
                }
                () = self.given_up() => {}
            }
        }
    }

    /// Asks everybody who has not applied `number` to say so as soon as they have.
    pub fn hurry(&self, number: u64) {
        let inner = self.lock();
        let late = inner.hub.behind(&Prefix::everything(), number, inner.table.revision());
        inner.hurry(&late, number);
    }

    /// Whether everybody has applied `revision`. `late` holds some of those who had not when last looked: as long as one of
    /// them has not, the many others need not be looked at. Whoever is found late is hurried.
    fn all_acked(&self, prefix: &Prefix, revision: u64, late: &mut Vec<WatcherId>) -> bool {
        let inner = self.lock();
        let stands = inner.table.revision();
        while let Some(id) = late.last() {
            if inner.hub.is_behind(*id, revision, stands) {
                return false;
            }
            late.pop();
        }
        *late = inner.hub.behind(prefix, revision, stands);
        inner.hurry(late, revision);
        late.is_empty() && inner.absent.behind(prefix, revision, Instant::now()).is_empty()
    }

    fn behind(&self, prefix: &Prefix, revision: u64) -> Vec<String> {
        let late = self.watchers(prefix).into_iter().filter(|watcher| watcher.applied < revision);
        let late =
            late.map(|watcher| format!("{} ({}) at {}", watcher.software, watcher.identity, watcher.applied));
        late.chain(self.lock().absent.behind(prefix, revision, Instant::now())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that runs under the lock panics; if it did, serving what is there beats taking the process down.
        self.shared.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells waiters how far the table is; called under the lock, so that it never goes backwards.
    fn announce(&self, inner: &Inner) {
        self.shared.applied.send_replace(inner.table.revision());
    }
}

impl Inner {
    fn revision(&self) -> Revision {
        Revision { store: self.store, partition: 0, number: self.table.revision() }
    }

    /// Passes changed keys to the watchers, and tells the quiet ones where they stand before the log forgets it.
    fn touched(&mut self, keys: &[Arc<str>]) {
        let mut woken = self.hub.touch(keys);
        if self.marks.due(self.table.changes()) {
            woken.append(&mut self.hub.mark_progress());
        }
        self.wake(woken);
    }

    fn hurry(&self, ids: &[WatcherId], number: u64) {
        ids.iter().filter_map(|id| self.bells.get(id)).for_each(|bell| bell.hurry(number));
    }

    fn wake(&self, ids: impl IntoIterator<Item = WatcherId>) {
        ids.into_iter().filter_map(|id| self.bells.get(&id)).for_each(|bell| bell.ring());
    }
}

// What a `Watcher` does to its node.
impl Node {
    fn subscribe(&self, id: WatcherId, prefix: Prefix, from: Option<Cursor>) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        if let Some(from) = &from
            && let Some((software, identity)) = inner.hub.who(id)
        {
            // Numbers of another store say nothing here.
            let held = if from.store == inner.store { from.number(0) } else { 0 };
            inner.absent.back(software, identity, &prefix, held);
        }
        inner.hub.subscribe(id, prefix, from);
        inner.wake([id]);
    }

    fn unsubscribe(&self, id: WatcherId, prefix: &Prefix) {
        self.lock().hub.unsubscribe(id, prefix);
        self.shared.acks.send_modify(|ticks| *ticks += 1);
    }

    fn acked(&self, id: WatcherId, cursor: &Cursor) {
        let mut inner = self.lock();
        if cursor.store == inner.store {
            inner.hub.acked(id, cursor.number(0));
            self.shared.acks.send_modify(|ticks| *ticks += 1);
        }
    }

    fn pull(&self, id: WatcherId) -> Option<Pulled> {
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

    fn take_patches(&self, id: WatcherId) {
        let inner = &mut *self.lock();
        inner.hub.take_patches(id);
        inner.table.keep_previous();
    }

    fn introduce(&self, id: WatcherId, about: About) {
        self.lock().hub.introduce(id, about);
    }

    fn leave(&self, id: WatcherId) {
        let mut inner = self.lock();
        let revision = inner.table.revision();
        if let Some((prefixes, info, acked)) = inner.hub.leave(id, revision) {
            inner.absent.leave(prefixes, info, acked, Instant::now());
        }
        inner.bells.remove(&id);
        self.shared.acks.send_modify(|ticks| *ticks += 1);
    }
}
