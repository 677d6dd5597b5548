use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use fairmesh_model::{Cursor, Identity, Prefix};

use super::{MAX_DIRTY, WatcherInfo};
use crate::{PeerInfo, covering};

/// State of one subscription of a watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SubscriptionState {
    /// The watcher has nothing and waits for its first snapshot. A pull takes up to
    /// [`super::update_pull::MAX_NEW_PER_PULL`] of these.
    New,
    /// The watcher has everything except the dirty keys.
    Live,
    /// The watcher has everything up to this revision. More keys changed since than one watcher remembers; the
    /// table's log has these changes.
    Behind(u64),
    /// The watcher has a copy as of this cursor, not yet compared with the table's log.
    From(Cursor),
    /// The watcher has a newer copy than the table, because the node itself is behind. The subscription waits instead
    /// of going backwards.
    Ahead(Cursor),
    /// The watcher gets a snapshot. `held` is true if it uses an older copy meanwhile.
    Snapshot { held: bool },
}

impl SubscriptionState {
    /// Whether the watcher's copy may be older than the table.
    fn may_be_stale(&self) -> bool {
        matches!(self, Self::Behind(_) | Self::From(_) | Self::Snapshot { held: true })
    }
}

/// Number of unsynced subscriptions by state, kept incrementally. Counting on every change and acknowledgement would
/// take quadratic time for a watcher of many prefixes.
#[derive(Debug, Default)]
pub(super) struct StateCounts {
    stale: usize,
    ahead: usize,
}

impl StateCounts {
    pub(super) fn add(&mut self, state: &SubscriptionState) {
        self.stale += usize::from(state.may_be_stale());
        self.ahead += usize::from(matches!(state, SubscriptionState::Ahead(_)));
    }

    pub(super) fn remove(&mut self, state: &SubscriptionState) {
        self.stale -= usize::from(state.may_be_stale());
        self.ahead -= usize::from(matches!(state, SubscriptionState::Ahead(_)));
    }
}

/// One watcher: its subscriptions, its pending changes, and the revisions last sent and acknowledged.
#[derive(Debug)]
pub(super) struct Watcher {
    software: String,
    identity: Identity,
    pub(super) peer: Option<Arc<PeerInfo>>,
    pub(super) subscriptions: BTreeMap<Prefix, SubscriptionState>,
    /// Subscriptions that are neither live nor new.
    pub(super) unsynced: BTreeSet<Prefix>,
    pub(super) counts: StateCounts,
    /// Subscriptions in state `New`.
    pub(super) new: BTreeSet<Prefix>,
    /// Changed keys below live prefixes that must still be sent.
    pub(super) dirty: BTreeSet<Arc<str>>,
    /// Whether the next pull returns the revision even without changes.
    pub(super) progress_due: bool,
    /// Revisions of the last update sent and of the last acknowledgement.
    pub(super) sent: u64,
    pub(super) acked: u64,
    /// Change count of the table at the last pull.
    pub(super) seen: u64,
    /// Whether the watcher accepts patches.
    pub(super) patches: bool,
    /// Revision under which the hub counts the watcher as lagging; `None` while it is current.
    counted_at: Option<u64>,
}

impl Watcher {
    pub(super) fn new(software: String, identity: Identity) -> Self {
        Self {
            software,
            identity,
            peer: None,
            subscriptions: BTreeMap::new(),
            unsynced: BTreeSet::new(),
            counts: StateCounts::default(),
            new: BTreeSet::new(),
            dirty: BTreeSet::new(),
            progress_due: false,
            sent: 0,
            acked: 0,
            seen: 0,
            patches: false,
            counted_at: None,
        }
    }

    /// Starts or restarts a subscription in any state except live.
    pub(super) fn begin(&mut self, prefix: Prefix, state: SubscriptionState) {
        self.counts.add(&state);
        let (into, out_of) = match state {
            SubscriptionState::New => (&mut self.new, &mut self.unsynced),
            _ => (&mut self.unsynced, &mut self.new),
        };
        out_of.remove(&prefix);
        into.insert(prefix.clone());
        if let Some(before) = self.subscriptions.insert(prefix, state) {
            self.counts.remove(&before);
        }
    }

    pub(super) fn unsubscribe(&mut self, prefix: &Prefix) {
        if let Some(before) = self.subscriptions.remove(prefix) {
            self.counts.remove(&before);
        }
        self.unsynced.remove(prefix);
        self.new.remove(prefix);
        let below = self.dirty.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        let below = below.take_while(|key| prefix.covers(key));
        let followed = |key: &str| covering(key).any(|prefix| self.subscriptions.contains_key(prefix));
        let gone: Vec<Arc<str>> = below.filter(|key| !followed(key)).cloned().collect();
        for key in gone {
            self.dirty.remove(&key);
        }
    }

    pub(super) fn mark_dirty(&mut self, key: &Arc<str>) {
        self.dirty.insert(key.clone());
        if self.dirty.len() > MAX_DIRTY {
            self.overflow();
        }
    }

    /// Replaces the set of dirty keys with the revision at which their prefixes fell behind.
    ///
    /// Sending snapshots of those prefixes was rejected. A watcher of a large store that lags for a tenth of a second
    /// would be sent gigabytes, and would lag further after each snapshot.
    fn overflow(&mut self) {
        for key in std::mem::take(&mut self.dirty) {
            for text in covering(&key) {
                let Some((prefix, SubscriptionState::Live)) = self.subscriptions.get_key_value(text) else {
                    continue;
                };
                self.begin(prefix.clone(), SubscriptionState::Behind(self.sent));
            }
        }
    }

    pub(super) fn reset(&mut self) {
        self.dirty.clear();
        (self.sent, self.acked, self.counts) = (0, 0, StateCounts::default());
        for (prefix, state) in
            self.subscriptions.iter_mut().filter(|(_, state)| **state != SubscriptionState::New)
        {
            *state = SubscriptionState::Snapshot { held: true };
            self.counts.add(state);
            self.unsynced.insert(prefix.clone());
        }
    }

    pub(super) fn is_ahead(&self) -> bool {
        self.counts.ahead > 0
    }

    /// Returns the latest revision of the watcher's copies, if it is after the table's.
    fn ahead_at(&self) -> Option<u64> {
        if !self.is_ahead() {
            return None;
        }
        let ahead = |prefix: &Prefix| match self.subscriptions.get(prefix) {
            Some(SubscriptionState::Ahead(cursor)) => Some(cursor.number(0)),
            _ => None,
        };
        self.unsynced.iter().filter_map(ahead).max()
    }

    pub(super) fn identity(&self) -> (&str, &Identity) {
        (&self.software, &self.identity)
    }

    pub(super) fn info(&self, revision: u64) -> WatcherInfo {
        let applied = self.ahead_at().unwrap_or_else(|| self.applied(revision));
        let (software, identity, peer) = (self.software.clone(), self.identity.clone(), self.peer.clone());
        WatcherInfo { software, identity, applied, peer }
    }

    /// Returns the revision up to which the watcher has applied its changes. A current watcher counts as being at the
    /// table's `revision`, because it does not receive changes of other prefixes.
    pub(super) fn applied(&self, revision: u64) -> u64 {
        self.lagging_from().unwrap_or(revision)
    }

    /// Updates the hub's count of lagging watchers for this watcher.
    pub(super) fn recount(&mut self, lagging: &mut BTreeMap<u64, usize>) {
        self.count(lagging, self.lagging_from());
    }

    pub(super) fn count(&mut self, lagging: &mut BTreeMap<u64, usize>, now: Option<u64>) {
        let before = std::mem::replace(&mut self.counted_at, now);
        if before == now {
            return;
        }
        if let Some(number) = now {
            *lagging.entry(number).or_default() += 1;
        }
        if let Some(number) = before
            && let Some(count) = lagging.get_mut(&number)
        {
            *count -= 1;
            if *count == 0 {
                lagging.remove(&number);
            }
        }
    }

    /// Returns the acknowledged revision if the watcher has yet to apply changes.
    fn lagging_from(&self) -> Option<u64> {
        let current = self.dirty.is_empty() && self.acked >= self.sent && self.counts.stale == 0;
        (!current).then_some(self.acked)
    }
}
