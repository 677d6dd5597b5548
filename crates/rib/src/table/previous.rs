use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use fairmesh_wire::shards;

use crate::Entry;

/// The most bytes of values that are remembered: some fifty moves in maps of a million shards.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// The most values that are remembered.
const MAX_VALUES: usize = 4096;

/// What was lately at keys that can be told by a patch, so that watchers who hold it are told what differs.
#[derive(Clone, Debug, Default)]
pub(super) struct Previous {
    /// Which change replaced what, in order.
    values: VecDeque<(u64, Arc<str>, Option<Entry>)>,
    bytes: usize,
    /// What changes after this one replaced is all there; `None` while nobody asks.
    since: Option<u64>,
}

impl Previous {
    /// Remembers what is replaced from the next change on.
    pub(super) fn keep(&mut self, change: u64) {
        self.since.get_or_insert(change);
    }

    /// Forgets all: what comes is not told by what was.
    pub(super) fn clear(&mut self, change: u64) {
        (self.values, self.bytes) = Default::default();
        self.since = self.since.map(|_| change);
    }

    /// The change of this number replaces what was at a key.
    pub(super) fn replaced(&mut self, change: u64, key: &Arc<str>, was: Option<&Entry>) {
        if self.since.is_none() || !shards::is_patchable(key) {
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

    /// What was after the change of this number at the keys that changed since, `None` for nothing. Without what is not
    /// remembered.
    pub(super) fn at(&self, change: u64) -> HashMap<&str, Option<&Entry>> {
        let known = self.since.is_some_and(|since| change >= since);
        let from = if known {
            self.values.partition_point(|(number, ..)| *number <= change)
        } else {
            self.values.len()
        };
        // What was replaced first was there then.
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

    /// What is known to have been at a key.
    fn at<'a>(previous: &'a Previous, change: u64, key: &str) -> Option<Option<&'a Entry>> {
        previous.at(change).get(key).copied()
    }

    #[test]
    fn what_was_there_is_known_as_long_as_it_is_remembered() {
        let mut previous = Previous::default();
        previous.replaced(1, &key(1), Some(&entry(1)));
        assert_eq!(at(&previous, 0, &key(1)), None, "nobody asked");
        previous.keep(1);
        previous.replaced(2, &key(1), None);
        previous.replaced(3, &key(1), Some(&entry(3)));
        assert_eq!(at(&previous, 0, &key(1)), None);
        assert_eq!(at(&previous, 1, &key(1)), Some(None), "it was not there");
        assert_eq!(at(&previous, 2, &key(1)), Some(Some(&entry(3))));
        assert_eq!(at(&previous, 3, &key(1)), None, "it has not changed");
        previous.replaced(4, &"/t/shop/policies/cart".into(), None);
        assert_eq!(at(&previous, 3, "/t/shop/policies/cart"), None, "it is never told by a patch");
        previous.clear(4);
        assert_eq!(at(&previous, 2, &key(1)), None);
    }

    #[test]
    fn little_is_remembered_however_much_changes() {
        let mut previous = Previous::default();
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
