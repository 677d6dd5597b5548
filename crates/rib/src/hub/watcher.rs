use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use fairmesh_model::{Cursor, Identity, Prefix};

use super::{MAX_DIRTY, WatcherInfo};
use crate::{About, covering};

/// How one subscription of a watcher stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sub {
    /// It holds nothing and waits for its first snapshot: a pull takes [`AT_ONCE`] of these.
    New,
    /// It has everything but the dirty keys.
    Live,
    /// It has everything up to this number; more changed since than is remembered for one watcher, and the table's log
    /// knows what.
    Behind(u64),
    /// It holds a copy from there, not yet compared with the table's log.
    From(Cursor),
    /// It holds a copy from later than the table: the node's own copy is behind. It waits rather than go backwards.
    Ahead(Cursor),
    /// It gets everything anew; `held` tells whether it decides by an older copy meanwhile.
    Snapshot { held: bool },
}

impl Sub {
    /// Whether the watcher decides by what it holds of it although that may be older than the table.
    fn decides(&self) -> bool {
        matches!(self, Self::Behind(_) | Self::From(_) | Self::Snapshot { held: true })
    }
}

/// How many of the entering subscriptions are of a kind: to count them anew with every change and acknowledgement would cost
/// one who follows many prefixes their number squared.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    deciding: usize,
    ahead: usize,
}

impl Kinds {
    pub(super) fn add(&mut self, sub: &Sub) {
        self.deciding += usize::from(sub.decides());
        self.ahead += usize::from(matches!(sub, Sub::Ahead(_)));
    }

    pub(super) fn remove(&mut self, sub: &Sub) {
        self.deciding -= usize::from(sub.decides());
        self.ahead -= usize::from(matches!(sub, Sub::Ahead(_)));
    }
}

/// One watcher: what it asked for, has yet to see, was sent, and has applied.
#[derive(Debug)]
pub(super) struct Watcher {
    software: String,
    identity: Identity,
    pub(super) about: Option<Arc<About>>,
    pub(super) subs: BTreeMap<Prefix, Sub>,
    /// The subscriptions that are neither live nor new.
    pub(super) entering: BTreeSet<Prefix>,
    pub(super) kinds: Kinds,
    /// The subscriptions that are new.
    pub(super) new: BTreeSet<Prefix>,
    /// What changed below its prefixes and it has yet to be sent.
    pub(super) dirty: BTreeSet<Arc<str>>,
    /// Whether it is to be told where it stands, with or without changes.
    pub(super) marked: bool,
    /// The number of the last thing sent, and the number that it said it has applied.
    pub(super) sent: u64,
    pub(super) acked: u64,
    /// How many changes the table had when it was looked last what it had yet to see.
    pub(super) seen: u64,
    /// Whether it is told what differs from what it was sent.
    pub(super) patches: bool,
    /// Under which number its hub counts it among those who owe; `None` while it owes nothing.
    counted: Option<u64>,
}

impl Watcher {
    pub(super) fn new(software: String, identity: Identity) -> Self {
        Self {
            software,
            identity,
            about: None,
            subs: BTreeMap::new(),
            entering: BTreeSet::new(),
            kinds: Kinds::default(),
            new: BTreeSet::new(),
            dirty: BTreeSet::new(),
            marked: false,
            sent: 0,
            acked: 0,
            seen: 0,
            patches: false,
            counted: None,
        }
    }

    /// Begins a subscription anew, in any state but live.
    pub(super) fn enter(&mut self, prefix: Prefix, sub: Sub) {
        self.kinds.add(&sub);
        let (into, out_of) = match sub {
            Sub::New => (&mut self.new, &mut self.entering),
            _ => (&mut self.entering, &mut self.new),
        };
        out_of.remove(&prefix);
        into.insert(prefix.clone());
        if let Some(before) = self.subs.insert(prefix, sub) {
            self.kinds.remove(&before);
        }
    }

    pub(super) fn exit(&mut self, prefix: &Prefix) {
        if let Some(before) = self.subs.remove(prefix) {
            self.kinds.remove(&before);
        }
        self.entering.remove(prefix);
        self.new.remove(prefix);
        let below = self.dirty.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        let below = below.take_while(|key| prefix.covers(key));
        let followed = |key: &str| covering(key).any(|prefix| self.subs.contains_key(prefix));
        let gone: Vec<Arc<str>> = below.filter(|key| !followed(key)).cloned().collect();
        for key in gone {
            self.dirty.remove(&key);
        }
    }

    pub(super) fn touch(&mut self, key: &Arc<str>) {
        self.dirty.insert(key.clone());
        if self.dirty.len() > MAX_DIRTY {
            self.overflow();
        }
    }

    /// Remembers where the prefixes of all dirty keys stand instead of the keys.
    ///
    /// Sending those prefixes anew was rejected: one who follows everything of a large store and falls behind for a tenth of a
    /// second would be sent gigabytes, and be further behind after each.
    fn overflow(&mut self) {
        for key in std::mem::take(&mut self.dirty) {
            for text in covering(&key) {
                let Some((prefix, Sub::Live)) = self.subs.get_key_value(text) else { continue };
                self.enter(prefix.clone(), Sub::Behind(self.sent));
            }
        }
    }

    pub(super) fn reset(&mut self) {
        self.dirty.clear();
        (self.sent, self.acked, self.kinds) = (0, 0, Kinds::default());
        for (prefix, sub) in self.subs.iter_mut().filter(|(_, sub)| **sub != Sub::New) {
            *sub = Sub::Snapshot { held: true };
            self.kinds.add(sub);
            self.entering.insert(prefix.clone());
        }
    }

    pub(super) fn is_ahead(&self) -> bool {
        self.kinds.ahead > 0
    }

    pub(super) fn who(&self) -> (&str, &Identity) {
        (&self.software, &self.identity)
    }

    pub(super) fn info(&self, revision: u64) -> WatcherInfo {
        let applied = self.applied(revision);
        let (software, identity, about) = (self.software.clone(), self.identity.clone(), self.about.clone());
        WatcherInfo { software, identity, applied, about }
    }

    /// The number up to which it decides by what it was sent. One that owes nothing counts as being at the table's
    /// `revision`: it is not told of changes that are none of its business.
    pub(super) fn applied(&self, revision: u64) -> u64 {
        self.owes().unwrap_or(revision)
    }

    /// Has the hub count it as it is now.
    pub(super) fn recount(&mut self, owing: &mut BTreeMap<u64, usize>) {
        self.count(owing, self.owes());
    }

    pub(super) fn count(&mut self, owing: &mut BTreeMap<u64, usize>, now: Option<u64>) {
        let before = std::mem::replace(&mut self.counted, now);
        if before == now {
            return;
        }
        if let Some(number) = now {
            *owing.entry(number).or_default() += 1;
        }
        if let Some(number) = before
            && let Some(count) = owing.get_mut(&number)
        {
            *count -= 1;
            if *count == 0 {
                owing.remove(&number);
            }
        }
    }

    /// The number that it has applied and said so, where there is more that it has to apply.
    fn owes(&self) -> Option<u64> {
        let current = self.dirty.is_empty() && self.acked >= self.sent && self.kinds.deciding == 0;
        (!current).then_some(self.acked)
    }
}
