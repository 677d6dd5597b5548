use std::sync::Arc;

use super::Table;
use crate::Entry;

/// The two counts that stand before the text of a shared key.
const COUNTS: usize = 2 * size_of::<usize>();
/// What a B-tree takes for an entry beyond the entry itself, in percent of it: inner nodes, and slots that are free. A tree
/// loaded in order is full; one that grew by itself has a third of its slots free.
const TREE: usize = 15;

impl Table {
    /// How much memory it takes, in bytes: keys, values, the tree and the log, as `tests/memory.rs` finds it by counting
    /// what is allocated.
    pub(crate) fn size(&self) -> u64 {
        let slot = size_of::<(Arc<str>, Entry)>();
        let entry = |(key, entry): (&Arc<str>, &Entry)| key.len() + COUNTS + entry.value.len();
        let texts: u64 = self.entries.iter().map(|one| entry(one) as u64).sum();
        let tree = self.entries.len() * (slot + slot * TREE / 100);
        let log = self.log.capacity() * size_of::<(u64, Arc<str>)>();
        texts + (tree + log + self.previous.size()) as u64
    }

    /// Everything in the order of keys.
    pub fn all(&self) -> impl Iterator<Item = (&Arc<str>, &Entry)> {
        self.entries.iter()
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
