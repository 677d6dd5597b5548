//! What a node takes that follows another one.

use std::{sync::Arc, time::Duration};

use fairmesh_model::{Prefix, Revision, StoreId};

use super::{Inner, Node};
use tokio::time::Instant;

use crate::{Entry, Snapshot, Update};

/// An upstream offered less than what is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the upstream is at revision {offered} and this copy at {held}; it is kept until an upstream catches up"
)]
pub struct Behind {
    /// The last number that the node applied.
    pub held: u64,
    /// What the upstream offered.
    pub offered: u64,
}

impl Node {
    /// Takes what a replica's upstream sent, as one change; returns the keys that changed.
    ///
    /// Another store's update replaces all that is held.
    ///
    /// # Errors
    /// When the update is older than what the node holds of this store: the caller should find a better upstream.
    pub fn absorb(&self, update: Update) -> Result<Vec<Arc<str>>, Behind> {
        let mut inner = self.lock();
        let number = update.revision.number;
        if inner.store != update.revision.store {
            inner.replace_store(update.revision.store);
        } else if number < inner.table.revision() {
            return Err(Behind { held: inner.table.revision(), offered: number });
        }
        let keys = inner.table.absorb(update);
        inner.touched(&keys);
        self.announce(&inner);
        Ok(keys)
    }

    /// Replaces what is below `prefix` by what another node holds there at `revision`; returns the keys that changed.
    ///
    /// # Errors
    /// As [`Node::absorb`].
    pub fn replace(
        &self,
        prefix: Prefix,
        entries: Vec<(Arc<str>, Entry)>,
        revision: Revision,
    ) -> Result<Vec<Arc<str>>, Behind> {
        let snapshot = Snapshot { prefix, entries, age: Duration::ZERO };
        self.absorb(Update { snapshots: vec![snapshot], ..Update::empty(revision) })
    }

    /// Takes copies from disk, which may have been saved at different revisions of one store: the node stands at the
    /// earliest, `revision`, and only watchers that stand at the latest, `floor`, or after it can resume. Who watched it
    /// before it stopped is waited for.
    pub fn restore(
        &self,
        revision: Revision,
        floor: u64,
        entries: impl IntoIterator<Item = (Arc<str>, Entry)>,
    ) {
        self.restore_with_log(revision, floor, entries, []);
    }

    /// The same with a log of every key that changed after `floor`, in order, each with a number not below that of its
    /// change: watchers that stand after `floor` are sent what they missed.
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
        inner.table.remember(log);
        inner.absent.anybody(Instant::now());
        self.announce(&inner);
    }

    /// Drops what is below a prefix that nobody follows any more, but for keys that `kept` claims.
    pub fn forget(&self, prefix: &Prefix, kept: impl Fn(&str) -> bool) {
        let mut inner = self.lock();
        let gone: Vec<_> =
            inner.table.below(prefix).map(|(key, _)| key.clone()).filter(|key| !kept(key)).collect();
        gone.iter().for_each(|key| inner.table.forget(key));
    }
}

impl Inner {
    fn replace_store(&mut self, store: StoreId) {
        self.store = store;
        self.table.restore(0, 0, []);
        self.absent.reset();
        self.bells.values().for_each(|bell| bell.reset());
        let woken = self.hub.reset();
        self.wake(woken);
    }
}
