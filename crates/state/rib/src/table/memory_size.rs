use std::sync::Arc;

use super::Table;
use crate::Entry;

/// Size of the two reference counts before the text of a shared key.
const COUNTS: usize = 2 * size_of::<usize>();
/// Overhead of a B-tree per entry, in percent of the entry: inner nodes and free slots. A tree that was loaded in
/// order is full; one that grew by insertion has a third of its slots free.
const TREE: usize = 15;

impl Table {
    /// Returns the memory of the table, in bytes: keys, values, the tree and the log. `tests/memory.rs` compares the
    /// result with the allocator.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let slot = size_of::<(Arc<str>, Entry)>();
        let entry = |(key, entry): (&Arc<str>, &Entry)| key.len() + COUNTS + entry.value.len();
        let texts: u64 = self.entries.iter().map(|one| entry(one) as u64).sum();
        let tree = self.entries.len() * (slot + slot * TREE / 100);
        let log = self.log.capacity() * size_of::<(u64, Arc<str>)>();
        texts + (tree + log + self.previous.size()) as u64
    }

    /// Returns all entries, ordered by key.
    pub fn all(&self) -> impl Iterator<Item = (&Arc<str>, &Entry)> {
        self.entries.iter()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the table has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
