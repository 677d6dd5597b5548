use std::{collections::BTreeSet, sync::Arc};

use fairmesh_model::{Cursor, Identity, Prefix, StoreId};

use crate::{
    Commit, Table, Update,
    progress_schedule::ProgressSchedule,
    watcher_hub::{Hub, WatcherId},
};

/// The decisions of a [`crate::Node`] without I/O: a table with its watchers, without lock, clock or tasks. For
/// callers with simulated time.
#[derive(Debug)]
pub struct NodeCore {
    store: StoreId,
    table: Table,
    hub: Hub,
    progress: ProgressSchedule,
}

/// Watchers that may have changes to pull.
pub type WokenWatchers = BTreeSet<WatcherId>;

impl NodeCore {
    /// Creates a node of this store without watchers.
    pub fn new(store: StoreId, table: Table) -> Self {
        let progress = ProgressSchedule::new(table.changes());
        Self { store, table, hub: Hub::default(), progress }
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Applies a commit of the store. Commits must be applied in order. A commit that was applied before is ignored.
    pub fn apply(&mut self, commit: Commit) -> WokenWatchers {
        let keys: Vec<_> = commit.changes.iter().map(|(key, _)| key.clone()).collect();
        if self.table.apply(commit) { self.notify_changes(&keys) } else { WokenWatchers::new() }
    }

    /// Applies an update from an upstream of the same store as one change. An update older than the table is ignored.
    pub fn apply_update(&mut self, update: Update) -> WokenWatchers {
        if update.revision.number < self.table.revision() {
            return WokenWatchers::new();
        }
        let keys = self.table.apply_update(update);
        self.notify_changes(&keys)
    }

    /// Simulates a restart with the same table and without watchers. If `remembers` is set, the log of changes
    /// survives and returning watchers resume: replicas keep their log on disk. A control plane loses its log.
    pub fn restart(&mut self, remembers: bool) {
        self.hub = Hub::default();
        if !remembers {
            self.table.compact_before(self.table.revision());
        }
    }

    /// Adds a watcher.
    pub fn join(&mut self) -> WatcherId {
        self.hub.join(String::new(), Identity::Anonymous)
    }

    /// Removes a watcher.
    pub fn leave(&mut self, id: WatcherId) {
        self.hub.leave(id, self.table.revision());
    }

    /// Follows a prefix from the watcher's cursor, like [`crate::Watcher::subscribe`].
    pub fn subscribe(&mut self, id: WatcherId, prefix: Prefix, from: Option<Cursor>) {
        self.hub.subscribe(id, prefix, from);
    }

    /// Takes the pending changes, like [`crate::Watcher::pull`]; `None` if there are none.
    pub fn pull(&mut self, id: WatcherId) -> Option<Update> {
        self.hub.pull(id, self.store, &self.table).map(|pulled| pulled.update)
    }

    /// Records that the watcher acknowledges all revisions up to `number`.
    pub fn ack(&mut self, id: WatcherId, number: u64) {
        self.hub.ack(id, number);
    }

    /// Returns the revision that every watcher has applied. If all watchers are current, this is the node's revision.
    pub fn applied_by_all(&self) -> u64 {
        self.hub.least_applied(self.table.revision())
    }

    /// Returns the memory of the table and of the watchers, in bytes.
    pub fn memory_bytes(&self) -> (u64, u64) {
        (self.table.memory_bytes(), self.hub.memory_bytes())
    }

    fn notify_changes(&mut self, keys: &[Arc<str>]) -> WokenWatchers {
        let mut woken = self.hub.mark_dirty(keys);
        if self.progress.due(self.table.changes()) {
            woken.append(&mut self.hub.notify_progress());
        }
        woken
    }
}
