use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_wire::{shards, watch};

use super::frames;
use crate::{Entry, Pulled, Update};

/// How many are kept. Watchers of one change are answered in one go, and few changes are under way at one time.
const KEPT: usize = 4;

/// What so many messages would hold is looked at for what differs.
const TOLD: usize = 8;

/// The last deltas as they go over connections: one change is encoded once, however many watch it.
///
/// They are found by what they say. Keys of their own, such as the revision and the prefixes that are watched, were rejected:
/// what a watcher is sent depends on all that it has yet to see, and to compare that takes less time than to name it.
#[derive(Debug, Default)]
pub(super) struct Deltas {
    last: Mutex<VecDeque<(Pulled, Bytes)>>,
}

impl Deltas {
    /// Whether others may be sent the same. What holds subscriptions' beginnings is of one watcher, and ages; what takes
    /// several messages is of one that fell behind, unless it is told what differs.
    pub(super) fn shares(Pulled { update, held }: &Pulled) -> bool {
        let begins = !update.snapshots.is_empty() || !update.resumed.is_empty();
        !begins && frames::fits(update, if held.is_empty() { 1 } else { TOLD })
    }

    /// The frame of an update that others may be sent.
    pub(super) fn frame(&self, pulled: Pulled) -> Bytes {
        // Nothing that runs under the lock panics.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, frame)) = last.iter().find(|(known, _)| same(known, &pulled)) {
            return frame.clone();
        }
        let (rest, patches) = patch(pulled.clone());
        let messages = frames::cut(rest, patches, |_| Duration::ZERO);
        let frame = Bytes::from(messages.iter().map(watch::frame).collect::<Vec<_>>().concat());
        last.truncate(KEPT - 1);
        last.push_front((pulled, frame.clone()));
        frame
    }
}

/// Takes out of an update what patches tell.
fn patch(Pulled { mut update, held }: Pulled) -> (Update, Vec<Bytes>) {
    if held.is_empty() {
        return (update, Vec::new());
    }
    let mut held: HashMap<_, _> = held.into_iter().map(|(key, entry)| (key, entry.value)).collect();
    let puts = update.puts.iter().filter(|(key, _)| shards::is_patchable(key));
    let puts = puts.map(|(key, entry)| (key.clone(), Some((entry.value.clone(), entry.revision))));
    let deletes = update.deletes.iter().map(|key| (key.clone(), None));
    let changes = puts.chain(deletes).map(|(key, after)| {
        let before = held.remove(&key);
        (key, shards::Change { before, after })
    });
    let (mut patches, mut told) = (Vec::new(), HashSet::new());
    for (patch, keys) in shards::differences(&changes.collect(), update.revision.number) {
        patches.push(patch.encode());
        told.extend(keys);
    }
    update.puts.retain(|(key, _)| !told.contains(&**key));
    update.deletes.retain(|key| !told.contains(&**key));
    (update, patches)
}

/// Whether two watchers are sent the same. Large values are mostly one and the same piece of memory.
fn same(a: &Pulled, b: &Pulled) -> bool {
    let entry = |(key, a): &(Arc<str>, Entry), (other, b): &(Arc<str>, Entry)| {
        key == other
            && a.revision == b.revision
            && a.value.len() == b.value.len()
            && (a.value.as_ptr() == b.value.as_ptr() || a.value == b.value)
    };
    let entries = |a: &[(Arc<str>, Entry)], b: &[(Arc<str>, Entry)]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| entry(a, b))
    };
    // Neither has more: see `shares`.
    a.update.revision == b.update.revision
        && a.update.deletes == b.update.deletes
        && entries(&a.update.puts, &b.update.puts)
        && entries(&a.held, &b.held)
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{Revision, StoreId};

    use super::*;

    fn update(number: u64) -> Pulled {
        let put = (Arc::from("/a/1"), Entry { value: Bytes::from(number.to_string()), revision: number });
        let revision = Revision { store: StoreId(1), partition: 0, number };
        Pulled { update: Update { puts: vec![put], ..Update::empty(revision) }, held: Vec::new() }
    }

    #[test]
    fn one_change_is_encoded_once_and_a_few_are_kept() {
        let deltas = Deltas::default();
        let first = deltas.frame(update(1));
        assert_eq!(deltas.frame(update(1)).as_ptr(), first.as_ptr(), "one piece of memory");
        let others: Vec<_> = (2..=KEPT as u64 + 1).map(|number| deltas.frame(update(number))).collect();
        assert!(others.iter().all(|other| *other != first));
        assert_eq!(deltas.last.lock().unwrap().len(), KEPT);
        assert_eq!(deltas.frame(update(1)), first, "it says the same when it is encoded anew");
    }
}
