//! The watchers of a node, their subscriptions and pending changes. No async and no clock: the node wakes watchers and
//! waits.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
};

use fairmesh_model::{Cursor, Identity, Prefix, StoreId};

use crate::{Entry, PeerInfo, Table, Update, covering};

mod memory;
mod pull;
mod watcher;

use watcher::{SubscriptionState, Watcher};

/// The most dirty keys of one watcher. Beyond this, the watcher falls back to the table's log.
pub const MAX_DIRTY: usize = 4096;

/// Identifies a watcher within its hub.
pub type WatcherId = u64;

/// The state of one watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatcherInfo {
    /// Name for operators, such as `agent host-7`; may be empty.
    pub software: String,
    /// Identity as established by the transport.
    pub identity: Identity,
    /// The number up to which the watcher has applied its changes. It is the node's own if no change is pending, and greater if
    /// the watcher holds later copies than the node.
    pub applied: u64,
    /// Kind, region and addresses, if sent; programs send none.
    pub peer: Option<Arc<PeerInfo>>,
}

/// The pending changes of a watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingUpdate {
    /// The changes.
    pub update: Update,
    /// Values of changed keys that the watcher holds, as bases of patches, if it takes patches.
    pub bases: Vec<(Arc<str>, Entry)>,
}

/// The watchers of one node.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    watchers: HashMap<WatcherId, Watcher>,
    /// Subscribers by prefix. A change costs one look-up for each folder above its key.
    index: BTreeMap<Prefix, BTreeSet<WatcherId>>,
    /// The number of lagging watchers by acknowledged number. Every acknowledgement needs the least number; a scan
    /// over all watchers would cost their number squared after a change to all.
    lagging: BTreeMap<u64, usize>,
    /// Watchers whose cursor may be ahead of the table; each table change wakes them.
    ahead: BTreeSet<WatcherId>,
    next: WatcherId,
}

impl Hub {
    pub(crate) fn join(&mut self, software: String, identity: Identity) -> WatcherId {
        self.next += 1;
        self.watchers.insert(self.next, Watcher::new(software, identity));
        self.next
    }

    /// Sets the kind, region and addresses of a watcher.
    pub(crate) fn set_peer_info(&mut self, id: WatcherId, info: PeerInfo) {
        if let Some(watcher) = self.watchers.get_mut(&id) {
            watcher.peer = Some(Arc::new(info));
        }
    }

    /// Sends patches to the watcher from now on.
    pub(crate) fn enable_patches(&mut self, id: WatcherId) {
        if let Some(watcher) = self.watchers.get_mut(&id) {
            watcher.patches = true;
        }
    }

    /// Removes a watcher. Returns its prefixes, its state and the number that it acknowledged; `None` if it never
    /// acknowledged, such as a command that reads once.
    pub(crate) fn leave(
        &mut self,
        id: WatcherId,
        revision: u64,
    ) -> Option<(BTreeSet<Prefix>, WatcherInfo, u64)> {
        self.ahead.remove(&id);
        let mut watcher = self.watchers.remove(&id)?;
        watcher.count(&mut self.lagging, None);
        watcher.subscriptions.keys().for_each(|prefix| self.unindex(id, prefix));
        let (info, acked) = (watcher.info(revision), watcher.acked);
        (acked > 0 && !watcher.subscriptions.is_empty())
            .then(|| (watcher.subscriptions.into_keys().collect(), info, acked))
    }

    /// The software and the identity of a watcher.
    pub(crate) fn identity_of(&self, id: WatcherId) -> Option<(&str, &Identity)> {
        self.watchers.get(&id).map(Watcher::identity)
    }

    /// Starts or restarts a subscription. The next pull decides between resuming and a snapshot, so that no change can
    /// come between.
    pub(crate) fn subscribe(&mut self, id: WatcherId, prefix: Prefix, from: Option<Cursor>) {
        let Some(watcher) = self.watchers.get_mut(&id) else { return };
        // Subscribers of one prefix share its text.
        let known = self.index.get_key_value(&prefix).map(|(known, _)| known.clone());
        let prefix = known.unwrap_or(prefix);
        self.index.entry(prefix.clone()).or_default().insert(id);
        watcher.begin(prefix, from.map_or(SubscriptionState::New, SubscriptionState::From));
        watcher.recount(&mut self.lagging);
    }

    pub(crate) fn unsubscribe(&mut self, id: WatcherId, prefix: &Prefix) {
        if let Some(watcher) = self.watchers.get_mut(&id) {
            watcher.unsubscribe(prefix);
            watcher.recount(&mut self.lagging);
            self.unindex(id, prefix);
        }
    }

    /// Marks keys as dirty for their subscribers, and returns the watchers to wake.
    pub(crate) fn mark_dirty<'a>(
        &mut self,
        keys: impl IntoIterator<Item = &'a Arc<str>>,
    ) -> BTreeSet<WatcherId> {
        let mut woken = self.ahead.clone();
        for key in keys {
            for ids in covering(key).filter_map(|prefix| self.index.get(prefix)) {
                for id in ids {
                    if let Some(watcher) = self.watchers.get_mut(id) {
                        watcher.mark_dirty(key);
                        watcher.recount(&mut self.lagging);
                        woken.insert(*id);
                    }
                }
            }
        }
        woken
    }

    /// Restarts every watcher, because another store's table replaced the content. Returns the watchers to wake.
    pub(crate) fn reset(&mut self) -> BTreeSet<WatcherId> {
        for watcher in self.watchers.values_mut() {
            watcher.reset();
            watcher.recount(&mut self.lagging);
        }
        self.watchers.keys().copied().collect()
    }

    /// Makes the next pull of every watcher return its revision, with or without changes. Returns the watchers to wake.
    pub(crate) fn notify_progress(&mut self) -> BTreeSet<WatcherId> {
        self.watchers
            .values_mut()
            .for_each(|watcher| watcher.progress_due = !watcher.subscriptions.is_empty());
        self.watchers.keys().copied().collect()
    }

    /// Whether the watcher held later copies than the table at its last pull.
    pub(crate) fn is_ahead(&self, id: WatcherId) -> bool {
        self.ahead.contains(&id)
    }

    /// Whether the last pull left new subscriptions for the next one.
    pub(crate) fn has_more(&self, id: WatcherId) -> bool {
        self.watchers.get(&id).is_some_and(|watcher| !watcher.new.is_empty())
    }

    /// The watcher's pending changes, with at most a part of its new subscriptions; `None` without any.
    pub(crate) fn pull(&mut self, id: WatcherId, store: StoreId, table: &Table) -> Option<PendingUpdate> {
        let watcher = self.watchers.get_mut(&id)?;
        let pulled = watcher.pull(store, table);
        watcher.recount(&mut self.lagging);
        if watcher.is_ahead() {
            self.ahead.insert(id);
        } else {
            self.ahead.remove(&id);
        }
        pulled
    }

    /// Acknowledges everything up to `number` for the watcher.
    pub(crate) fn ack(&mut self, id: WatcherId, number: u64) {
        if let Some(watcher) = self.watchers.get_mut(&id) {
            // Acknowledging a number that was not sent yet would make the watcher look current later.
            watcher.acked = watcher.acked.max(number.min(watcher.sent));
            watcher.recount(&mut self.lagging);
        }
    }

    /// The watchers with a prefix above or below `prefix`.
    pub(crate) fn watchers(&self, prefix: &Prefix, revision: u64) -> Vec<WatcherInfo> {
        let ids = self.overlapping(prefix);
        ids.iter().filter_map(|id| self.watchers.get(id)).map(|watcher| watcher.info(revision)).collect()
    }

    /// The watchers of `prefix` that have not applied `number`, with the table at `revision`.
    pub(crate) fn behind(&self, prefix: &Prefix, number: u64, revision: u64) -> Vec<WatcherId> {
        let mut ids: Vec<_> = self.overlapping(prefix).into_iter().collect();
        ids.retain(|id| self.is_behind(*id, number, revision));
        ids
    }

    /// Whether a watcher has not applied `number`, with the table at `revision`.
    pub(crate) fn is_behind(&self, id: WatcherId, number: u64, revision: u64) -> bool {
        self.watchers.get(&id).is_some_and(|watcher| watcher.applied(revision) < number)
    }

    /// The number that every watcher has applied.
    pub(crate) fn least_applied(&self, revision: u64) -> u64 {
        self.lagging.first_key_value().map_or(revision, |(acked, _)| *acked)
    }

    fn overlapping(&self, prefix: &Prefix) -> BTreeSet<WatcherId> {
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
