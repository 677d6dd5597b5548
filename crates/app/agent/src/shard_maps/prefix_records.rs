use std::{collections::BTreeMap, sync::Arc};

use fairmesh_model::RecordKey;
use fairmesh_rib::Entry;

/// Records below a prefix of a map. A chunk on disk has an empty value here.
#[derive(Debug, Default)]
pub(super) struct PrefixRecords {
    entries: BTreeMap<Arc<str>, Entry>,
    complete: bool,
}

/// Whether the value is on disk only.
pub(crate) fn is_value_on_disk(key: &str, entry: &Entry) -> bool {
    entry.value.is_empty() && matches!(RecordKey::parse(key), Ok(RecordKey::ShardChunk(..)))
}

impl PrefixRecords {
    pub(super) fn replace(&mut self, entries: Vec<(Arc<str>, Entry)>) {
        self.entries = entries.into_iter().collect();
        self.complete = true;
    }

    pub(super) fn set(&mut self, key: &Arc<str>, entry: Option<Entry>) {
        match entry {
            Some(entry) => self.entries.insert(Arc::clone(key), entry),
            None => self.entries.remove(key),
        };
    }

    /// The record at a key, if the prefix is complete. An empty value means on disk.
    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key).filter(|_| self.complete)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(|key| &**key)
    }

    pub(super) fn entries(&self) -> Vec<(Arc<str>, Entry)> {
        self.entries.iter().map(|(key, entry)| (Arc::clone(key), entry.clone())).collect()
    }

    /// Drops the values of chunks that are on disk now. Returns the number of their bytes. A chunk never changes,
    /// because its key is the hash of its value.
    pub(super) fn drop_saved_values(&mut self, saved: &[(Arc<str>, Entry)]) -> usize {
        let mut bytes = 0;
        for (key, entry) in saved.iter().filter(|(_, entry)| !entry.value.is_empty()) {
            if let Some(held) = self.entries.get_mut(key)
                && held.value == entry.value
                && matches!(RecordKey::parse(key), Ok(RecordKey::ShardChunk(..)))
            {
                bytes += std::mem::take(&mut held.value).len();
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_shard_chunks_leave_memory_and_manifests_stay() {
        let manifest: Arc<str> = "/t/shop/shards/cart/ranges/manifest".into();
        let chunk: Arc<str> = format!("/t/shop/shards/cart/ranges/chunks/{:032x}", 7).into();
        let entry = |value: &'static str| Entry { value: value.into(), revision: 1 };
        let mut store = PrefixRecords::default();
        assert!(!store.is_complete());
        store.replace(vec![(chunk.clone(), entry("chunk")), (manifest.clone(), entry("manifest"))]);
        let saved = store.entries();
        store.set(&manifest, Some(entry("newer")));
        assert_eq!(store.drop_saved_values(&saved), "chunk".len());
        let held: Vec<_> = store.entries().into_iter().map(|(_, entry)| entry.value).collect();
        assert_eq!(held, ["", "newer"]);
        assert!(is_value_on_disk(&chunk, &store.entries[&chunk]));
    }
}
