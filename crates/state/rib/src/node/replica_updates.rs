//! Updates of a node that follows another node.

use std::{sync::Arc, time::Duration};

use fairmesh_model::{Prefix, Revision, StoreId};

use super::{Node, NodeInner};
use tokio::time::Instant;

use crate::{Entry, Snapshot, Update};

/// An update is older than the node's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the upstream is at revision {offered} and this copy at {held}; the copy is kept until an upstream catches up"
)]
pub struct StaleUpdate {
    /// Last revision that the node applied.
    pub held: u64,
    /// Revision of the update.
    pub offered: u64,
}

impl Node {
    /// Applies an update from a replica's upstream as one change, and returns the changed keys.
    ///
    /// An update from another store replaces the whole content.
    ///
    /// # Errors
    /// When the update is older than the node's content of the same store. The caller should find a better upstream.
    pub fn apply_update(&self, update: Update) -> Result<Vec<Arc<str>>, StaleUpdate> {
        let mut inner = self.lock();
        let number = update.revision.number;
        if inner.store != update.revision.store {
            inner.replace_store(update.revision.store);
        } else if number < inner.table.revision() {
            return Err(StaleUpdate { held: inner.table.revision(), offered: number });
        }
        let keys = inner.table.apply_update(update);
        inner.notify_changes(&keys);
        self.announce(&inner);
        Ok(keys)
    }

    /// Replaces the entries below `prefix` with those of another node at `revision`. Returns the changed keys.
    ///
    /// # Errors
    /// As for [`Node::apply_update`].
    pub fn replace(
        &self,
        prefix: Prefix,
        entries: Vec<(Arc<str>, Entry)>,
        revision: Revision,
    ) -> Result<Vec<Arc<str>>, StaleUpdate> {
        let snapshot = Snapshot { prefix, entries, age: Duration::ZERO };
        self.apply_update(Update { snapshots: vec![snapshot], ..Update::empty(revision) })
    }

    /// Restores copies from disk, which may have been saved at different revisions of one store. The node takes the
    /// earliest, `revision`. Only watchers at or after the latest, `floor`, can resume. Watchers of the previous
    /// process count as disconnected.
    pub fn restore(
        &self,
        revision: Revision,
        floor: u64,
        entries: impl IntoIterator<Item = (Arc<str>, Entry)>,
    ) {
        self.restore_with_log(revision, floor, entries, []);
    }

    /// Restores copies with a log of every key that changed after `floor`, in order. The revision of each key in the
    /// log is at or after its change. Watchers that return with a revision after `floor` are then sent the changes
    /// that they missed.
    pub fn restore_with_log(
        &self,
        revision: Revision,
        floor: u64,
        entries: impl IntoIterator<Item = (Arc<str>, Entry)>,
        log: impl IntoIterator<Item = (u64, Arc<str>)>,
    ) {
        let mut inner = self.lock();
        inner.replace_store(revision.store);
        inner.table.restore(revision.number, floor, entries);
        inner.table.restore_log(log);
        inner.disconnected.assume_unknown(Instant::now());
        self.announce(&inner);
    }

    /// Removes the entries below a prefix that is no longer followed, except the keys for which `kept` returns true.
    pub fn forget(&self, prefix: &Prefix, kept: impl Fn(&str) -> bool) {
        let mut inner = self.lock();
        let gone: Vec<_> =
            inner.table.below(prefix).map(|(key, _)| key.clone()).filter(|key| !kept(key)).collect();
        gone.iter().for_each(|key| inner.table.forget(key));
    }
}

impl NodeInner {
    fn replace_store(&mut self, store: StoreId) {
        self.store = store;
        self.table.restore(0, 0, []);
        self.disconnected.reset();
        self.wakers.values().for_each(|waker| waker.reset());
        let woken = self.hub.reset();
        self.wake(woken);
    }
}
