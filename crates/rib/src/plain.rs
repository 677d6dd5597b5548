use std::{collections::BTreeSet, sync::Arc};

use fairmesh_model::{Cursor, Identity, Prefix, StoreId};

use crate::{
    Commit, Table, Update,
    hub::{Hub, WatcherId},
    marks::Marks,
};

/// A table with its watchers and nothing else: no lock, no clock, no tasks. What a [`crate::Node`] decides, for those who
/// bring their own time, as a simulation does.
#[derive(Debug)]
pub struct PlainNode {
    store: StoreId,
    table: Table,
    hub: Hub,
    marks: Marks,
}

/// Watchers that may have something to pull.
pub type Woken = BTreeSet<WatcherId>;

impl PlainNode {
    /// A node of this store with nobody who watches it.
    pub fn new(store: StoreId, table: Table) -> Self {
        let marks = Marks::new(table.changes());
        Self { store, table, hub: Hub::default(), marks }
    }

    /// What it holds.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Applies what the store committed, in order; one that was applied before is ignored.
    pub fn apply(&mut self, commit: Commit) -> Woken {
        let keys: Vec<_> = commit.changes.iter().map(|(key, _)| key.clone()).collect();
        if self.table.apply(commit) { self.touched(&keys) } else { Woken::new() }
    }

    /// Takes what an upstream of the same store sent, as one change. One that is older than what is held is ignored.
    pub fn absorb(&mut self, update: Update) -> Woken {
        if update.revision.number < self.table.revision() {
            return Woken::new();
        }
        let keys = self.table.absorb(update);
        self.touched(&keys)
    }

    /// The process ends and starts again with its copy of the table: everybody who watched is gone. One that `remembers`
    /// the log of changes, as replicas do on disk, lets those who return resume from before; a control plane does not.
    pub fn restart(&mut self, remembers: bool) {
        self.hub = Hub::default();
        if !remembers {
            self.table.compact_before(self.table.revision());
        }
    }

    /// Somebody begins to watch.
    pub fn join(&mut self) -> WatcherId {
        self.hub.join(String::new(), Identity::Anonymous)
    }

    /// A watcher is gone.
    pub fn leave(&mut self, id: WatcherId) {
        self.hub.leave(id, self.table.revision());
    }

    /// Follows a prefix from where the watcher stands, as [`crate::Watcher::subscribe`].
    pub fn subscribe(&mut self, id: WatcherId, prefix: Prefix, from: Option<Cursor>) {
        self.hub.subscribe(id, prefix, from);
    }

    /// Takes what the watcher has yet to see, as [`crate::Watcher::pull`]; `None` once there is nothing more.
    pub fn pull(&mut self, id: WatcherId) -> Option<Update> {
        self.hub.pull(id, self.store, &self.table).map(|pulled| pulled.update)
    }

    /// The watcher has applied everything up to `number`.
    pub fn acked(&mut self, id: WatcherId, number: u64) {
        self.hub.acked(id, number);
    }

    /// The number that every watcher has applied; the node's own where none owes anything.
    pub fn applied_by_all(&self) -> u64 {
        self.hub.least_applied(self.table.revision())
    }

    /// How much memory the table takes, and how much the watchers, in bytes.
    pub fn size(&self) -> (u64, u64) {
        (self.table.size(), self.hub.size())
    }

    fn touched(&mut self, keys: &[Arc<str>]) -> Woken {
        let mut woken = self.hub.touch(keys);
        if self.marks.due(self.table.changes()) {
            woken.append(&mut self.hub.mark_progress());
        }
        woken
    }
}
