use std::{collections::BTreeSet, sync::Arc};

use fairmesh_model::Prefix;

use super::Table;
use crate::{Entry, Update};

impl Table {
    /// Applies an update from an upstream of the same store as one change, and returns the changed keys.
    ///
    /// A snapshot has the current entries but no history, so the log starts anew: watchers that return with an
    /// earlier revision get snapshots.
    pub(crate) fn apply_update(&mut self, update: Update) -> Vec<Arc<str>> {
        let number = update.revision.number;
        let has_snapshot = !update.snapshots.is_empty();
        let mut keys = Vec::new();
        for snapshot in update.snapshots {
            self.replace(&snapshot.prefix, snapshot.entries, number, &mut keys);
        }
        for (key, entry) in update.puts {
            keys.push(key.clone());
            self.set(number, key, Some(entry));
        }
        for key in update.deletes {
            keys.push(key.clone());
            self.set(number, key, None);
        }
        self.advance(number);
        if has_snapshot {
            self.compact_before(number);
        }
        keys
    }

    /// Makes the entries below `prefix` equal to `entries`, and writes only differences.
    fn replace(
        &mut self,
        prefix: &Prefix,
        entries: Vec<(Arc<str>, Entry)>,
        number: u64,
        changed: &mut Vec<Arc<str>>,
    ) {
        let mut gone: BTreeSet<_> = self.below(prefix).map(|(key, _)| key.clone()).collect();
        for (key, entry) in entries {
            gone.remove(&key);
            if self.get(&key) != Some(&entry) {
                changed.push(key.clone());
                self.set(number, key, Some(entry));
            }
        }
        for key in gone {
            changed.push(key.clone());
            self.set(number, key, None);
        }
    }
}
