use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fairmesh_model::{Revision, StoreId};

use super::{
    Pulled,
    watcher::{Sub, Watcher},
};
use crate::{Entry, Resumed, Snapshot, Table, Update, covering};

impl Watcher {
    pub(super) fn pull(&mut self, store: StoreId, table: &Table) -> Option<Pulled> {
        // Who enters holds what it says, which may be later than where it says to stand: nothing can be told by that.
        let certain = self.patches && self.entering.is_empty();
        let seen = std::mem::replace(&mut self.seen, table.changes().0);
        self.compare(store, table);
        let dirty = self.visible();
        let mut update = Update::empty(Revision { store, partition: 0, number: table.revision() });
        for key in dirty {
            match table.get(&key) {
                Some(entry) => update.puts.push((key, entry.clone())),
                None => update.deletes.push(key),
            }
        }
        self.settle(table, &mut update);
        let marked = std::mem::take(&mut self.marked);
        if update == Update::empty(update.revision) && !marked {
            return None;
        }
        self.sent = update.revision.number;
        let held = if certain { held(&update, seen, table) } else { Vec::new() };
        Some(Pulled { update, held })
    }

    /// Finds out for every subscription with a cursor or behind whether it goes on, and which keys it missed: one walk
    /// through the log for all of them. However many they are, all below the prefix would be more.
    fn compare(&mut self, store: StoreId, table: &Table) {
        let mut oldest = None;
        for prefix in &self.entering {
            let Some(sub) = self.subs.get_mut(prefix) else { continue };
            let cursor = match sub {
                Sub::From(cursor) | Sub::Ahead(cursor) => cursor,
                Sub::Behind(number) if *number < table.floor() => {
                    *sub = Sub::Snapshot { held: true };
                    continue;
                }
                Sub::Behind(number) => {
                    oldest = Some(oldest.unwrap_or(*number).min(*number));
                    continue;
                }
                Sub::Live | Sub::Snapshot { .. } => continue,
            };
            let number = cursor.number(0);
            *sub = if cursor.store != store {
                Sub::Snapshot { held: true }
            } else if number > table.revision() {
                Sub::Ahead(cursor.clone())
            } else if number < table.floor() {
                Sub::Snapshot { held: true }
            } else {
                oldest = Some(oldest.unwrap_or(number).min(number));
                Sub::From(cursor.clone())
            };
        }
        let Some(changes) = oldest.and_then(|oldest| table.changes_since(oldest)) else { return };
        for (revision, key) in changes {
            let missed = |prefix: &str| match self.subs.get(prefix) {
                Some(Sub::From(cursor)) => cursor.number(0) < *revision,
                Some(Sub::Behind(number)) => number < revision,
                _ => false,
            };
            if covering(key).any(missed) {
                self.dirty.insert(key.clone());
            }
        }
    }

    /// Takes the dirty keys that belong into a delta: those of a live or resuming subscription that no snapshot holds.
    fn visible(&mut self) -> BTreeSet<Arc<str>> {
        let dirty = std::mem::take(&mut self.dirty);
        if self.entering.is_empty() {
            // All are live.
            return dirty;
        }
        let subs = &self.subs;
        let wanted = |key: &Arc<str>| {
            let mut followed = false;
            for sub in covering(key).filter_map(|prefix| subs.get(prefix)) {
                match sub {
                    Sub::Snapshot { .. } => return false,
                    Sub::Live | Sub::Behind(_) | Sub::From(_) => followed = true,
                    Sub::Ahead(_) => {}
                }
            }
            followed
        };
        dirty.into_iter().filter(wanted).collect()
    }

    /// Takes the snapshots; all but the subscriptions ahead are live from here.
    fn settle(&mut self, table: &Table, update: &mut Update) {
        for prefix in std::mem::take(&mut self.entering) {
            let Some(sub) = self.subs.get_mut(&prefix) else { continue };
            match sub {
                Sub::Ahead(_) => {
                    self.entering.insert(prefix);
                    continue;
                }
                Sub::From(_) => update.resumed.push(Resumed { prefix, age: Duration::ZERO }),
                Sub::Snapshot { .. } => {
                    let entries = table.read(std::slice::from_ref(&prefix));
                    update.snapshots.push(Snapshot { prefix, entries, age: Duration::ZERO });
                }
                Sub::Live | Sub::Behind(_) => {}
            }
            *sub = Sub::Live;
        }
    }
}

/// What somebody holds of the keys of an update who had seen so many changes, as far as it is remembered.
fn held(update: &Update, seen: u64, table: &Table) -> Vec<(Arc<str>, Entry)> {
    let previous = table.previous(seen);
    let keys = update.puts.iter().map(|(key, _)| key).chain(&update.deletes);
    let held = |key: &Arc<str>| Some((key.clone(), (*previous.get(&**key)?)?.clone()));
    keys.filter_map(held).collect()
}
