use std::collections::BTreeSet;

use fairmesh_model::Prefix;

use super::{Hub, SubscriptionState, Watcher, WatcherId};

/// Slots in a B-tree node; a small tree has a single node.
const SLOTS: usize = 11;

impl Hub {
    /// Returns the memory of all watchers, in bytes. `tests/memory.rs` compares the result with the allocator.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let watchers = self.watchers.values().map(Watcher::memory_bytes).sum::<usize>();
        let table = self.watchers.capacity() * (size_of::<(WatcherId, Watcher)>() + 1);
        let prefixes: usize =
            self.index.iter().map(|(prefix, ids)| text(prefix) + tree::<WatcherId>(ids.len())).sum();
        let index = tree::<(Prefix, BTreeSet<WatcherId>)>(self.index.len());
        (watchers + table + prefixes + index) as u64
    }
}

impl Watcher {
    fn memory_bytes(&self) -> usize {
        // Dirty keys are shared with the table, and prefixes with the index.
        self.identity().0.len()
            + tree::<(Prefix, SubscriptionState)>(self.subscriptions.len())
            + tree::<Prefix>(self.unsynced.len())
            + tree::<Prefix>(self.new.len())
            + tree::<std::sync::Arc<str>>(self.dirty.len())
    }
}

/// Returns the memory of a shared text with its two reference counts.
fn text(prefix: &Prefix) -> usize {
    prefix.as_str().len() + 2 * size_of::<usize>()
}

/// Returns the memory of a B-tree with this many entries: whole nodes, which are two thirds full if there are
/// several.
fn tree<T>(entries: usize) -> usize {
    let node = SLOTS * size_of::<T>() + 2 * size_of::<usize>();
    match entries {
        0 => 0,
        1..=SLOTS => node,
        _ => entries * node * 3 / (2 * SLOTS),
    }
}
