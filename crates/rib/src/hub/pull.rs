use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fairmesh_model::{Revision, StoreId};

use super::{
    Pulled,
    watcher::{Sub, Watcher},
};
use crate::{Entry, Resumed, Snapshot, Table, Update, covering};

/// How many new subscriptions a pull takes at most: their snapshots are read while nobody else reads or writes the table.
/// Those that resume are taken all together, so that who returns moves from one revision to one other.
pub(super) const AT_ONCE: usize = 256;

impl Watcher {
    pub(super) fn pull(&mut self, store: StoreId, table: &Table) -> Option<Pulled> {
        // Who enters holds what it says, which may be later than where it says to stand: nothing can be told by that.
        let certain = self.patches && self.entering.is_empty();
        let seen = std::mem::replace(&mut self.seen, table.changes().0);
        self.begin();
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

    /// Takes some of the new subscriptions in.
    fn begin(&mut self) {
        for _ in 0..AT_ONCE {
            let Some(prefix) = self.new.pop_first() else { return };
            self.enter(prefix, Sub::Snapshot { held: false });
        }
    }

    /// Finds out for every subscription with a cursor or behind whether it goes on, and which keys it missed: one walk
    /// through the log for all of them. However many they are, all below the prefix would be more.
    fn compare(&mut self, store: StoreId, table: &Table) {
        let mut oldest = None;
        for prefix in &self.entering {
            let Some(sub) = self.subs.get_mut(prefix) else { continue };
            self.kinds.remove(sub);
            if let Some(number) = sub.compare(store, table) {
                oldest = Some(oldest.unwrap_or(number).min(number));
            }
            self.kinds.add(sub);
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
        if self.entering.is_empty() && self.new.is_empty() {
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
                    Sub::Ahead(_) | Sub::New => {}
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
                Sub::Live | Sub::Behind(_) | Sub::New => {}
            }
            self.kinds.remove(sub);
            *sub = Sub::Live;
        }
    }
}

impl Sub {
    /// Finds out whether a subscription with a cursor or behind goes on; returns from where, if it does.
    fn compare(&mut self, store: StoreId, table: &Table) -> Option<u64> {
        let (number, cursor) = match self {
            Self::From(cursor) | Self::Ahead(cursor) => (cursor.number(0), Some(cursor.clone())),
            Self::Behind(number) => (*number, None),
            Self::New | Self::Live | Self::Snapshot { .. } => return None,
        };
        let same_store = cursor.as_ref().is_none_or(|cursor| cursor.store == store);
        *self = match cursor {
            Some(cursor) if same_store && number > table.revision() => Self::Ahead(cursor),
            _ if !same_store || number < table.floor() => Self::Snapshot { held: true },
            Some(cursor) => Self::From(cursor),
            None => Self::Behind(number),
        };
        matches!(self, Self::From(_) | Self::Behind(_)).then_some(number)
    }
}

/// What somebody holds of the keys of an update who had seen so many changes, as far as it is remembered.
fn held(update: &Update, seen: u64, table: &Table) -> Vec<(Arc<str>, Entry)> {
    let previous = table.previous(seen);
    let keys = update.puts.iter().map(|(key, _)| key).chain(&update.deletes);
    let held = |key: &Arc<str>| Some((key.clone(), (*previous.get(&**key)?)?.clone()));
    keys.filter_map(held).collect()
}
