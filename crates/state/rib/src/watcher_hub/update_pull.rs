use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fairmesh_model::{Revision, StoreId};

use super::{
    PendingUpdate,
    watcher::{SubscriptionState, Watcher},
};
use crate::{Entry, Resumed, Snapshot, Table, Update, covering};

/// Maximum number of new subscriptions per pull, because reading their snapshots holds the table's lock. Resumed
/// subscriptions are all taken together, so that a returning watcher moves directly from one revision to another.
pub(super) const MAX_NEW_PER_PULL: usize = 256;

impl Watcher {
    pub(super) fn pull(&mut self, store: StoreId, table: &Table) -> Option<PendingUpdate> {
        // An unsynced watcher may have values from after its cursor, so the bases of patches are unknown.
        let certain = self.patches && self.unsynced.is_empty();
        let seen = std::mem::replace(&mut self.seen, table.changes().0);
        self.admit_new();
        self.compare_with_log(store, table);
        let dirty = self.take_visible_keys();
        let mut update = Update::empty(Revision { store, partition: 0, number: table.revision() });
        for key in dirty {
            match table.get(&key) {
                Some(entry) => update.puts.push((key, entry.clone())),
                None => update.deletes.push(key),
            }
        }
        self.finish_sync(table, &mut update);
        let progress_due = std::mem::take(&mut self.progress_due);
        if update == Update::empty(update.revision) && !progress_due {
            return None;
        }
        self.sent = update.revision.number;
        let bases = if certain { patch_bases(&update, seen, table) } else { Vec::new() };
        Some(PendingUpdate { update, bases })
    }

    /// Admits some of the new subscriptions.
    fn admit_new(&mut self) {
        for _ in 0..MAX_NEW_PER_PULL {
            let Some(prefix) = self.new.pop_first() else { return };
            self.begin(prefix, SubscriptionState::Snapshot { held: false });
        }
    }

    /// Decides for every subscription in state `From` or `Behind` whether it can resume, and marks its missed keys as
    /// dirty. One pass over the log serves all subscriptions; reading everything below the prefixes would cost more.
    fn compare_with_log(&mut self, store: StoreId, table: &Table) {
        let mut oldest = None;
        for prefix in &self.unsynced {
            let Some(state) = self.subscriptions.get_mut(prefix) else { continue };
            self.counts.remove(state);
            if let Some(number) = state.compare_with_log(store, table) {
                oldest = Some(oldest.unwrap_or(number).min(number));
            }
            self.counts.add(state);
        }
        let Some(changes) = oldest.and_then(|oldest| table.changes_since(oldest)) else { return };
        for (revision, key) in changes {
            let missed = |prefix: &str| match self.subscriptions.get(prefix) {
                Some(SubscriptionState::From(cursor)) => cursor.number(0) < *revision,
                Some(SubscriptionState::Behind(number)) => number < revision,
                _ => false,
            };
            if covering(key).any(missed) {
                self.dirty.insert(key.clone());
            }
        }
    }

    /// Takes the dirty keys of live or resumed subscriptions that no snapshot covers.
    fn take_visible_keys(&mut self) -> BTreeSet<Arc<str>> {
        let dirty = std::mem::take(&mut self.dirty);
        if self.unsynced.is_empty() && self.new.is_empty() {
            // All subscriptions are live.
            return dirty;
        }
        let subscriptions = &self.subscriptions;
        let wanted = |key: &Arc<str>| {
            let mut followed = false;
            for state in covering(key).filter_map(|prefix| subscriptions.get(prefix)) {
                match state {
                    SubscriptionState::Snapshot { .. } => return false,
                    SubscriptionState::Live | SubscriptionState::Behind(_) | SubscriptionState::From(_) => {
                        followed = true
                    }
                    SubscriptionState::Ahead(_) | SubscriptionState::New => {}
                }
            }
            followed
        };
        dirty.into_iter().filter(wanted).collect()
    }

    /// Reads the snapshots. Afterwards all subscriptions are live, except those that are ahead of the table.
    fn finish_sync(&mut self, table: &Table, update: &mut Update) {
        for prefix in std::mem::take(&mut self.unsynced) {
            let Some(state) = self.subscriptions.get_mut(&prefix) else { continue };
            match state {
                SubscriptionState::Ahead(_) => {
                    self.unsynced.insert(prefix);
                    continue;
                }
                SubscriptionState::From(_) => update.resumed.push(Resumed { prefix, age: Duration::ZERO }),
                SubscriptionState::Snapshot { .. } => {
                    let entries = table.read(std::slice::from_ref(&prefix));
                    update.snapshots.push(Snapshot { prefix, entries, age: Duration::ZERO });
                }
                SubscriptionState::Live | SubscriptionState::Behind(_) | SubscriptionState::New => {}
            }
            self.counts.remove(state);
            *state = SubscriptionState::Live;
        }
    }
}

impl SubscriptionState {
    /// Decides whether a subscription in state `From` or `Behind` can resume. Returns the revision from which it
    /// resumes.
    fn compare_with_log(&mut self, store: StoreId, table: &Table) -> Option<u64> {
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

/// Returns the values of the update's keys that the watcher received up to change number `seen`, where they are
/// remembered.
fn patch_bases(update: &Update, seen: u64, table: &Table) -> Vec<(Arc<str>, Entry)> {
    let previous = table.previous(seen);
    let keys = update.puts.iter().map(|(key, _)| key).chain(&update.deletes);
    let held = |key: &Arc<str>| Some((key.clone(), (*previous.get(&**key)?)?.clone()));
    keys.filter_map(held).collect()
}
