use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use fairmesh_wire::shard_encoding;

use crate::Entry;

/// Maximum size of the remembered values, in bytes: about fifty moves in maps with a million shards.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// Maximum number of remembered values.
const MAX_VALUES: usize = 4096;

/// Recently replaced values of keys that support patches. Watchers that have these values are sent patches.
#[derive(Clone, Debug, Default)]
pub(super) struct PreviousValues {
    /// Change number, key and replaced value, ordered by change.
    values: VecDeque<(u64, Arc<str>, Option<Entry>)>,
    bytes: usize,
    /// Replaced values are remembered for all changes after this change number; `None` while no watcher accepts
    /// patches.
    since: Option<u64>,
}

impl PreviousValues {
    /// Remembers replaced values from the next change on.
    pub(super) fn keep(&mut self, change: u64) {
        self.since.get_or_insert(change);
    }

    /// Forgets all values, so that later changes have no bases.
    pub(super) fn clear(&mut self, change: u64) {
        (self.values, self.bytes) = Default::default();
        self.since = self.since.map(|_| change);
    }

    /// Remembers the value of a key that change number `change` replaced.
    pub(super) fn replaced(&mut self, change: u64, key: &Arc<str>, was: Option<&Entry>) {
        if self.since.is_none() || !shard_encoding::is_patchable(key) {
            return;
        }
        self.bytes += size(was);
        self.values.push_back((change, key.clone(), was.cloned()));
        while (self.bytes > MAX_BYTES || self.values.len() > MAX_VALUES)
            && let Some((oldest, _, was)) = self.values.pop_front()
        {
            self.bytes -= size(was.as_ref());
            self.since = Some(oldest);
        }
    }

    /// Returns the values that changed keys had at change number `change`; `None` if the key did not exist. Keys
    /// without a remembered value are missing.
    pub(super) fn at(&self, change: u64) -> HashMap<&str, Option<&Entry>> {
        let known = self.since.is_some_and(|since| change >= since);
        let from = if known {
            self.values.partition_point(|(number, ..)| *number <= change)
        } else {
            self.values.len()
        };
        // If a key was replaced several times, the value of its first replacement counts.
        self.values.range(from..).rev().map(|(_, key, was)| (&**key, was.as_ref())).collect()
    }

    pub(super) fn size(&self) -> usize {
        self.bytes + self.values.capacity() * size_of::<(u64, Arc<str>, Option<Entry>)>()
    }
}

fn size(was: Option<&Entry>) -> usize {
    was.map_or(0, |entry| entry.value.len())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn key(hash: u32) -> Arc<str> {
        format!("/t/shop/shards/cart/eu/chunks/{hash:032x}").into()
    }

    fn entry(bytes: usize) -> Entry {
        Entry { value: Bytes::from(vec![0; bytes]), revision: 1 }
    }

    /// Returns the remembered value of a key.
    fn at<'a>(previous: &'a PreviousValues, change: u64, key: &str) -> Option<Option<&'a Entry>> {
        previous.at(change).get(key).copied()
    }

    #[test]
    fn previous_record_values_are_available_within_retained_history() {
        let mut previous = PreviousValues::default();
        previous.replaced(1, &key(1), Some(&entry(1)));
        assert_eq!(at(&previous, 0, &key(1)), None, "not enabled");
        previous.keep(1);
        previous.replaced(2, &key(1), None);
        previous.replaced(3, &key(1), Some(&entry(3)));
        assert_eq!(at(&previous, 0, &key(1)), None);
        assert_eq!(at(&previous, 1, &key(1)), Some(None), "it was not there");
        assert_eq!(at(&previous, 2, &key(1)), Some(Some(&entry(3))));
        assert_eq!(at(&previous, 3, &key(1)), None, "it has not changed");
        previous.replaced(4, &"/t/shop/policies/cart".into(), None);
        assert_eq!(at(&previous, 3, "/t/shop/policies/cart"), None, "policies are never patched");
        previous.clear(4);
        assert_eq!(at(&previous, 2, &key(1)), None);
    }

    #[test]
    fn previous_record_values_are_bounded_in_bytes_and_number() {
        let mut previous = PreviousValues::default();
        previous.keep(0);
        let large = entry(MAX_BYTES / 4);
        for change in 1..=6 {
            previous.replaced(change, &key(change as u32), Some(&large));
        }
        assert_eq!((at(&previous, 1, &key(2)), at(&previous, 2, &key(3))), (None, Some(Some(&large))));
        for change in 7..7 + MAX_VALUES as u64 {
            previous.replaced(change, &key(0), None);
        }
        assert_eq!((previous.values.len(), previous.bytes), (MAX_VALUES, 0));
        assert_eq!(at(&previous, 5, &key(6)), None);
    }
}
