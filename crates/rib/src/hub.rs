//! Who watches what, and what each has yet to see. No async and no clock: the node wakes and waits.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
};

use fairmesh_model::{Cursor, Identity, Prefix, StoreId};

use crate::{About, Entry, Table, Update, covering};

mod pull;
mod size;
mod watcher;

use watcher::{Sub, Watcher};

/// How many changed keys are remembered for one watcher; beyond it, the log of the table is.
pub const MAX_DIRTY: usize = 4096;

/// Names a watcher within its hub.
pub type WatcherId = u64;

/// What is known of one watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatcherInfo {
    /// What it says it is, for people; empty where it did not say.
    pub software: String,
    /// Who it is, as the transport established.
    pub identity: Identity,
    /// The number up to which it decides by what it was sent: the node's own for one that owes nothing.
    pub applied: u64,
    /// What else it says of itself; programs say nothing.
    pub about: Option<Arc<About>>,
}

/// What a watcher has yet to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// All of it.
    pub update: Update,
    /// What the watcher holds of some of the keys in it, where it is told what differs.
    pub held: Vec<(Arc<str>, Entry)>,
}

/// The watchers of one node.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    watchers: HashMap<WatcherId, Watcher>,
    /// Prefix → who subscribed to it, so that a change costs a look-up per folder above it.
    index: BTreeMap<Prefix, BTreeSet<WatcherId>>,
    /// How many watchers owe an acknowledgement beyond each number: who has applied least is asked for with every
    /// acknowledgement, and looking at all watchers for it would cost their number squared after a change to all.
    owing: BTreeMap<u64, usize>,
    /// Watchers that may stand ahead of the table; they look again whenever it moves.
    ahead: BTreeSet<WatcherId>,
    next: WatcherId,
}

impl Hub {
    pub(crate) fn join(&mut self, software: String, identity: Identity) -> WatcherId {
        self.next += 1;
        self.watchers.insert(self.next, Watcher::new(software, identity));
        self.next
    }

    /// The watcher says what it is.
    pub(crate) fn introduce(&mut self, id: WatcherId, about: About) {
        if let Some(watcher) = self.watchers.get_mut(&id) {
            watcher.about = Some(Arc::new(about));
        }
    }

    /// The watcher can be told what differs from what it was sent.
    pub(crate) fn take_patches(&mut self, id: WatcherId) {
        if let Some(watcher) = self.watchers.get_mut(&id) {
            watcher.patches = true;
        }
    }

    /// Returns what it decides by, how far it was, and how far it said it was; `None` for one that never said that it
    /// decides by anything, such as a command that reads and ends.
    pub(crate) fn leave(
        &mut self,
        id: WatcherId,
        revision: u64,
    ) -> Option<(BTreeSet<Prefix>, WatcherInfo, u64)> {
        self.ahead.remove(&id);
        let mut watcher = self.watchers.remove(&id)?;
        watcher.count(&mut self.owing, None);
        watcher.subs.keys().for_each(|prefix| self.unindex(id, prefix));
        let (info, acked) = (watcher.info(revision), watcher.acked);
        (acked > 0 && !watcher.subs.is_empty()).then(|| (watcher.subs.into_keys().collect(), info, acked))
    }

    /// What a watcher says it is, and who it is.
    pub(crate) fn who(&self, id: WatcherId) -> Option<(&str, &Identity)> {
        self.watchers.get(&id).map(Watcher::who)
    }

    /// Starts, or starts anew, to follow a prefix; the next pull decides between resuming and a snapshot, so that
    /// nothing can happen in between.
    pub(crate) fn subscribe(&mut self, id: WatcherId, prefix: Prefix, from: Option<Cursor>) {
        let Some(watcher) = self.watchers.get_mut(&id) else { return };
        // All who follow a prefix share its text.
        let known = self.index.get_key_value(&prefix).map(|(known, _)| known.clone());
        let prefix = known.unwrap_or(prefix);
        self.index.entry(prefix.clone()).or_default().insert(id);
        watcher.enter(prefix, from.map_or(Sub::New, Sub::From));
        watcher.recount(&mut self.owing);
    }

    pub(crate) fn unsubscribe(&mut self, id: WatcherId, prefix: &Prefix) {
        if let Some(watcher) = self.watchers.get_mut(&id) {
            watcher.exit(prefix);
            watcher.recount(&mut self.owing);
            self.unindex(id, prefix);
        }
    }

    /// Remembers for everybody concerned that these keys changed; returns whom to wake.
    pub(crate) fn touch<'a>(&mut self, keys: impl IntoIterator<Item = &'a Arc<str>>) -> BTreeSet<WatcherId> {
        let mut woken = self.ahead.clone();
        for key in keys {
            for ids in covering(key).filter_map(|prefix| self.index.get(prefix)) {
                for id in ids {
                    if let Some(watcher) = self.watchers.get_mut(id) {
                        watcher.touch(key);
                        watcher.recount(&mut self.owing);
                        woken.insert(*id);
                    }
                }
            }
        }
        woken
    }

    /// The table became another store's: everybody starts over. Returns whom to wake.
    pub(crate) fn reset(&mut self) -> BTreeSet<WatcherId> {
        for watcher in self.watchers.values_mut() {
            watcher.reset();
            watcher.recount(&mut self.owing);
        }
        self.watchers.keys().copied().collect()
    }

    /// Lets every watcher say where it stands although nothing changed for it. Returns whom to wake.
    pub(crate) fn mark_progress(&mut self) -> BTreeSet<WatcherId> {
        self.watchers.values_mut().for_each(|watcher| watcher.marked = !watcher.subs.is_empty());
        self.watchers.keys().copied().collect()
    }

    /// Whether the watcher has to pull again for what the last pull left.
    pub(crate) fn has_more(&self, id: WatcherId) -> bool {
        self.watchers.get(&id).is_some_and(|watcher| !watcher.new.is_empty())
    }

    /// What the watcher has yet to see, of new subscriptions a part; `None` when that is nothing.
    pub(crate) fn pull(&mut self, id: WatcherId, store: StoreId, table: &Table) -> Option<Pulled> {
        let watcher = self.watchers.get_mut(&id)?;
        let pulled = watcher.pull(store, table);
        watcher.recount(&mut self.owing);
        if watcher.is_ahead() {
            self.ahead.insert(id);
        } else {
            self.ahead.remove(&id);
        }
        pulled
    }

    /// The watcher says that it has applied everything up to `number`.
    pub(crate) fn acked(&mut self, id: WatcherId, number: u64) {
        if let Some(watcher) = self.watchers.get_mut(&id) {
            // Nobody can have applied what was not sent: such a watcher would pass for current later on.
            watcher.acked = watcher.acked.max(number.min(watcher.sent));
            watcher.recount(&mut self.owing);
        }
    }

    /// Everybody whose prefixes meet `prefix`: lie above it, or below.
    pub(crate) fn watchers(&self, prefix: &Prefix, revision: u64) -> Vec<WatcherInfo> {
        let ids = self.meeting(prefix);
        ids.iter().filter_map(|id| self.watchers.get(id)).map(|watcher| watcher.info(revision)).collect()
    }

    /// Who of them has not applied `number`, the table being at `revision`.
    pub(crate) fn behind(&self, prefix: &Prefix, number: u64, revision: u64) -> Vec<WatcherId> {
        let mut ids: Vec<_> = self.meeting(prefix).into_iter().collect();
        ids.retain(|id| self.is_behind(*id, number, revision));
        ids
    }

    /// Whether a watcher has not applied `number`, the table being at `revision`.
    pub(crate) fn is_behind(&self, id: WatcherId, number: u64, revision: u64) -> bool {
        self.watchers.get(&id).is_some_and(|watcher| watcher.applied(revision) < number)
    }

    /// The number that every watcher has applied.
    pub(crate) fn least_applied(&self, revision: u64) -> u64 {
        self.owing.first_key_value().map_or(revision, |(acked, _)| *acked)
    }

    fn meeting(&self, prefix: &Prefix) -> BTreeSet<WatcherId> {
        let above = covering(prefix.as_str()).filter_map(|text| self.index.get(text));
        let below = self
            .index
            .range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded))
            .take_while(|(text, _)| prefix.covers(text.as_str()))
            .map(|(_, ids)| ids);
        above.chain(below).flatten().copied().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.watchers.len()
    }

    fn unindex(&mut self, id: WatcherId, prefix: &Prefix) {
        if let Some(ids) = self.index.get_mut(prefix) {
            ids.remove(&id);
            if ids.is_empty() {
                self.index.remove(prefix);
            }
        }
    }
}

#[cfg(test)]
mod tests;
