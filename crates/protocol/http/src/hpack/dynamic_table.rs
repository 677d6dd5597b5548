//! The decoder's dynamic table (RFC 7541 2.3.2).

use std::collections::VecDeque;

use super::header_field::Entry;

/// Fields to which the peer may refer by index.
#[derive(Debug)]
pub(super) struct DynamicTable {
    /// Entries, the newest first.
    entries: VecDeque<Entry>,
    size: usize,
    limit: usize,
}

impl DynamicTable {
    pub(super) fn new(limit: usize) -> Self {
        Self { entries: VecDeque::new(), size: 0, limit }
    }

    /// Returns the entry of this age; the newest entry has age 0.
    pub(super) fn get(&self, age: usize) -> Option<&Entry> {
        self.entries.get(age)
    }

    /// Adds an entry. An entry larger than the table empties the table, which is no error (RFC 7541 4.4).
    pub(super) fn insert(&mut self, entry: Entry) {
        let size = entry.field.size();
        self.evict(self.limit.saturating_sub(size));
        if size <= self.limit {
            self.size += size;
            self.entries.push_front(entry);
        }
    }

    /// Changes the maximum size, in bytes (RFC 7541 4.3).
    pub(super) fn resize(&mut self, limit: usize) {
        self.limit = limit;
        self.evict(limit);
    }

    /// Evicts the oldest entries until at most `most` bytes are left.
    fn evict(&mut self, most: usize) {
        while self.size > most
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.field.size();
        }
    }
}

#[cfg(test)]
impl DynamicTable {
    /// Returns the sizes of the entries, and whether their sum is consistent with the recorded size and the limit.
    pub(super) fn sizes(&self) -> (Vec<usize>, bool) {
        let sizes: Vec<usize> = self.entries.iter().map(|entry| entry.field.size()).collect();
        let sum: usize = sizes.iter().sum();
        (sizes, sum == self.size && sum <= self.limit)
    }
}
