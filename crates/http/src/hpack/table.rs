//! The dynamic table of what comes in (RFC 7541 2.3.2).

use std::collections::VecDeque;

use super::field::Entry;

/// What the other side repeats.
#[derive(Debug)]
pub(super) struct Table {
    /// The newest first.
    entries: VecDeque<Entry>,
    size: usize,
    limit: usize,
}

impl Table {
    pub(super) fn new(limit: usize) -> Self {
        Self { entries: VecDeque::new(), size: 0, limit }
    }

    /// The entry of this age, 0 for the newest.
    pub(super) fn get(&self, age: usize) -> Option<&Entry> {
        self.entries.get(age)
    }

    /// Puts an entry in front. One that is larger than the table empties it, and that is no error (RFC 7541 4.4).
    pub(super) fn insert(&mut self, entry: Entry) {
        let size = entry.field.size();
        self.evict(self.limit.saturating_sub(size));
        if size <= self.limit {
            self.size += size;
            self.entries.push_front(entry);
        }
    }

    /// Changes how large the table may be (RFC 7541 4.3).
    pub(super) fn resize(&mut self, limit: usize) {
        self.limit = limit;
        self.evict(limit);
    }

    /// Takes the oldest entries out until so many bytes are left.
    fn evict(&mut self, most: usize) {
        while self.size > most
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.field.size();
        }
    }
}

#[cfg(test)]
impl Table {
    /// The sizes of its entries, and whether they come to what it counts and may hold.
    pub(super) fn sizes(&self) -> (Vec<usize>, bool) {
        let sizes: Vec<usize> = self.entries.iter().map(|entry| entry.field.size()).collect();
        let sum: usize = sizes.iter().sum();
        (sizes, sum == self.size && sum <= self.limit)
    }
}
