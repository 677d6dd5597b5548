use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use fairmesh_wire::{shard_encoding, watch};

use super::messages::{self, Messages};
use crate::{Entry, PendingUpdate, Update};

/// Maximum number of cached deltas. Watchers of the same change are served together, and few changes are in flight at
/// a time.
const MAX_CACHED: usize = 4;

/// Maximum size of a delta that is encoded once for all watchers, in bytes.
const MAX_SHARED_BYTES: usize = 1024 * 1024;

/// Maximum size of a delta that is searched for patches, in bytes.
const MAX_PATCHED_BYTES: usize = 8 * MAX_SHARED_BYTES;

/// Cache of the last encoded deltas: a change is encoded once, regardless of the number of watchers.
///
/// Deltas are compared by content. Explicit keys, such as the revision and the watched prefixes, were rejected: an
/// update depends on everything that its watcher has yet to receive, and comparing contents is cheaper than deriving
/// such a key.
#[derive(Debug, Default)]
pub(super) struct DeltaCache {
    last: Mutex<VecDeque<(PendingUpdate, Bytes)>>,
}

impl DeltaCache {
    /// Whether other watchers may get the same update. Snapshots and resumptions have ages and belong to a single
    /// watcher. A large delta belongs to a watcher that fell behind, unless it is sent as patches.
    pub(super) fn is_shareable(PendingUpdate { update, bases }: &PendingUpdate) -> bool {
        let begins = !update.snapshots.is_empty() || !update.resumed.is_empty();
        let max = if bases.is_empty() { MAX_SHARED_BYTES } else { MAX_PATCHED_BYTES };
        !begins && messages::delta_bytes(update) <= max
    }

    /// Returns the encoded frame of a shareable update.
    pub(super) fn frame(&self, pending: PendingUpdate) -> Bytes {
        // No code under the lock panics.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, frame)) = last.iter().find(|(known, _)| is_same(known, &pending)) {
            return frame.clone();
        }
        let (rest, patches) = extract_patches(pending.clone());
        let frames = Messages::new(rest, patches).map(|message| watch::frame(&message));
        let frame = Bytes::from(frames.collect::<Vec<_>>().concat());
        last.truncate(MAX_CACHED - 1);
        last.push_front((pending, frame.clone()));
        frame
    }
}

/// Replaces puts and deletes of an update with patches where possible.
fn extract_patches(PendingUpdate { mut update, bases }: PendingUpdate) -> (Update, Vec<Bytes>) {
    if bases.is_empty() {
        return (update, Vec::new());
    }
    let mut bases: HashMap<_, _> = bases.into_iter().map(|(key, entry)| (key, entry.value)).collect();
    let puts = update.puts.iter().filter(|(key, _)| shard_encoding::is_patchable(key));
    let puts = puts.map(|(key, entry)| (key.clone(), Some((entry.value.clone(), entry.revision))));
    let deletes = update.deletes.iter().map(|key| (key.clone(), None));
    let changes = puts.chain(deletes).map(|(key, after)| {
        let before = bases.remove(&key);
        (key, shard_encoding::Change { before, after })
    });
    let (mut patches, mut patched) = (Vec::new(), HashSet::new());
    for (patch, keys) in shard_encoding::differences(&changes.collect(), update.revision.number) {
        patches.push(patch.encode());
        patched.extend(keys);
    }
    update.puts.retain(|(key, _)| !patched.contains(&**key));
    update.deletes.retain(|key| !patched.contains(&**key));
    (update, patches)
}

/// Whether two watchers get the same update. Large values usually share memory, so comparing them is cheap.
fn is_same(a: &PendingUpdate, b: &PendingUpdate) -> bool {
    let entry = |(key, a): &(Arc<str>, Entry), (other, b): &(Arc<str>, Entry)| {
        key == other
            && a.revision == b.revision
            && a.value.len() == b.value.len()
            && (a.value.as_ptr() == b.value.as_ptr() || a.value == b.value)
    };
    let entries = |a: &[(Arc<str>, Entry)], b: &[(Arc<str>, Entry)]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| entry(a, b))
    };
    // Shareable updates have no other fields, see `is_shareable`.
    a.update.revision == b.update.revision
        && a.update.deletes == b.update.deletes
        && entries(&a.update.puts, &b.update.puts)
        && entries(&a.bases, &b.bases)
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{Revision, StoreId};

    use super::*;

    fn update(number: u64) -> PendingUpdate {
        let put = (Arc::from("/a/1"), Entry { value: Bytes::from(number.to_string()), revision: number });
        let revision = Revision { store: StoreId(1), partition: 0, number };
        PendingUpdate { update: Update { puts: vec![put], ..Update::empty(revision) }, bases: Vec::new() }
    }

    #[test]
    fn watch_delta_is_encoded_once_for_all_watchers_and_cache_is_bounded() {
        let cache = DeltaCache::default();
        let first = cache.frame(update(1));
        assert_eq!(cache.frame(update(1)).as_ptr(), first.as_ptr(), "shared memory");
        let others: Vec<_> = (2..=MAX_CACHED as u64 + 1).map(|number| cache.frame(update(number))).collect();
        assert!(others.iter().all(|other| *other != first));
        assert_eq!(cache.last.lock().unwrap().len(), MAX_CACHED);
        assert_eq!(cache.frame(update(1)), first, "encoding it again gives the same frame");
    }
}
