use std::{collections::BTreeSet, sync::Arc};

use fairmesh_model::Prefix;

use super::Table;
use crate::{Entry, Update};

impl Table {
    /// Takes what an upstream of the same store sent, as one change; returns the keys that changed.
    ///
    /// A snapshot says what is there and not how it came to be so, so the log starts anew with it: watchers that return
    /// from before it get snapshots.
    pub(crate) fn absorb(&mut self, update: Update) -> Vec<Arc<str>> {
        let number = update.revision.number;
        let anew = !update.snapshots.is_empty();
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
        if anew {
            self.compact_before(number);
        }
        keys
    }

    /// Makes what is below `prefix` equal to `entries`, touching only what differs.
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
