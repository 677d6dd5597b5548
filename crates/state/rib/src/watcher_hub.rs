//! The watchers of a node, with their subscriptions and pending changes. Has no async code and no clock: the node
//! wakes watchers and waits.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
};

use fairmesh_model::{Cursor, Identity, Prefix, StoreId};

use crate::{Entry, PeerInfo, Table, Update, covering};

mod memory_size;
mod update_pull;
mod watcher;

use watcher::{SubscriptionState, Watcher};

/// Maximum number of dirty keys per watcher. Beyond it, the watcher falls back to the table's log.
pub const MAX_DIRTY: usize = 4096;

/// Identifies a watcher within its hub.
pub type WatcherId = u64;

/// The state of one watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatcherInfo {
    /// Name shown to operators, such as `agent host-7`; may be empty.
    pub software: String,
    /// Identity authenticated by the transport.
    pub identity: Identity,
    /// Revision number up to which the watcher has applied its changes. Without pending changes, this is the node's
    /// revision, or a greater one if the watcher holds newer copies than the node.
    pub applied: u64,
    /// Kind, region and addresses, if the watcher sent them. Programs send none.
    pub peer: Option<Arc<PeerInfo>>,
}

/// The pending changes of a watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingUpdate {
    /// The changes.
    pub update: Update,
    /// Values of the changed keys that the watcher holds, as bases for patches. Empty if the watcher does not accept
    /// patches.
    pub bases: Vec<(Arc<str>, Entry)>,
}

/// The watchers of one node.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    watchers: HashMap<WatcherId, Watcher>,
    /// Subscribers by prefix. A change costs one lookup per folder above its key.
    index: BTreeMap<Prefix, BTreeSet<WatcherId>>,
    /// The number of lagging watchers by acknowledged revision. Every acknowledgement needs the smallest of these
    /// revisions; scanning all watchers would take quadratic time after a change that concerns all of them.
    lagging: BTreeMap<u64, usize>,
    /// Watchers whose cursor may be ahead of the table. Each change of the table wakes them.
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

    /// Makes the watcher receive patches from now on.
    pub(crate) fn enable_patches(&mut self, id: WatcherId) {
        if let Some(watcher) = self.watchers.get_mut(&id) {
            watcher.patches = true;
        }
    }

    /// Removes a watcher. Returns its prefixes, its state and the revision that it acknowledged; `None` if it never
    /// acknowledged any, for example a command that reads once.
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

    /// Returns the software and the identity of a watcher.
    pub(crate) fn identity_of(&self, id: WatcherId) -> Option<(&str, &Identity)> {
        self.watchers.get(&id).map(Watcher::identity)
    }

    /// Starts or restarts a subscription. The next pull decides between resuming and a snapshot, so that no change is
    /// missed in between.
    pub(crate) fn subscribe(&mut self, id: WatcherId, prefix: Prefix, from: Option<Cursor>) {
        let Some(watcher) = self.watchers.get_mut(&id) else { return };
        // All subscribers of a prefix share its text.
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

    /// Restarts the subscriptions of every watcher, because the table of another store replaced the content. Returns
    /// the watchers to wake.
    pub(crate) fn reset(&mut self) -> BTreeSet<WatcherId> {
        for watcher in self.watchers.values_mut() {
            watcher.reset();
            watcher.recount(&mut self.lagging);
        }
        self.watchers.keys().copied().collect()
    }

    /// Makes the next pull of every watcher return the revision, even without changes. Returns the watchers to wake.
    pub(crate) fn notify_progress(&mut self) -> BTreeSet<WatcherId> {
        self.watchers
            .values_mut()
            .for_each(|watcher| watcher.progress_due = !watcher.subscriptions.is_empty());
        self.watchers.keys().copied().collect()
    }

    /// Whether the watcher's copies were newer than the table at its last pull.
    pub(crate) fn is_ahead(&self, id: WatcherId) -> bool {
        self.ahead.contains(&id)
    }

    /// Whether the last pull left new subscriptions for the next pull.
    pub(crate) fn has_more(&self, id: WatcherId) -> bool {
        self.watchers.get(&id).is_some_and(|watcher| !watcher.new.is_empty())
    }

    /// Returns the watcher's pending changes, with at most a part of its new subscriptions; `None` if nothing is
    /// pending.
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

    /// Records that the watcher acknowledges all revisions up to `number`.
    pub(crate) fn ack(&mut self, id: WatcherId, number: u64) {
        if let Some(watcher) = self.watchers.get_mut(&id) {
            // If a revision that was not sent counted as acknowledged, the watcher would look current later.
            watcher.acked = watcher.acked.max(number.min(watcher.sent));
            watcher.recount(&mut self.lagging);
        }
    }

    /// Returns the watchers that follow `prefix`, or a prefix above or below it.
    pub(crate) fn watchers(&self, prefix: &Prefix, revision: u64) -> Vec<WatcherInfo> {
        let ids = self.overlapping(prefix);
        ids.iter().filter_map(|id| self.watchers.get(id)).map(|watcher| watcher.info(revision)).collect()
    }

    /// Returns the watchers of `prefix` that have not applied revision `number`. `revision` is the table's.
    pub(crate) fn behind(&self, prefix: &Prefix, number: u64, revision: u64) -> Vec<WatcherId> {
        let mut ids: Vec<_> = self.overlapping(prefix).into_iter().collect();
        ids.retain(|id| self.is_behind(*id, number, revision));
        ids
    }

    /// Whether a watcher has not applied revision `number`. `revision` is the table's.
    pub(crate) fn is_behind(&self, id: WatcherId, number: u64, revision: u64) -> bool {
        self.watchers.get(&id).is_some_and(|watcher| watcher.applied(revision) < number)
    }

    /// Returns the revision that every watcher has applied.
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
