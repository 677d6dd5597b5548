use std::{collections::BTreeMap, sync::Arc};

use fairmesh_model::RecordKey;
use fairmesh_rib::Entry;

/// What stands below a prefix of a map. Chunks that are on disk have an empty value here.
#[derive(Debug, Default)]
pub(super) struct Store {
    entries: BTreeMap<Arc<str>, Entry>,
    complete: bool,
}

/// Whether the value is on disk only.
pub(crate) fn is_left_out(key: &str, entry: &Entry) -> bool {
    entry.value.is_empty() && matches!(RecordKey::parse(key), Ok(RecordKey::ShardChunk(..)))
}

impl Store {
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

    /// What is at a key of a whole; an empty value is on disk.
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

    /// Lets go of the values of chunks that are on disk now; returns how many bytes they had. A chunk never changes: its key
    /// says what is in it.
    pub(super) fn saved(&mut self, saved: &[(Arc<str>, Entry)]) -> usize {
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
    fn chunks_on_disk_are_let_go_and_manifests_stay() {
        let manifest: Arc<str> = "/t/shop/shards/cart/ranges/manifest".into();
        let chunk: Arc<str> = format!("/t/shop/shards/cart/ranges/chunks/{:032x}", 7).into();
        let entry = |value: &'static str| Entry { value: value.into(), revision: 1 };
        let mut store = Store::default();
        assert!(!store.is_complete());
        store.replace(vec![(chunk.clone(), entry("chunk")), (manifest.clone(), entry("manifest"))]);
        let saved = store.entries();
        store.set(&manifest, Some(entry("newer")));
        assert_eq!(store.saved(&saved), "chunk".len());
        let held: Vec<_> = store.entries().into_iter().map(|(_, entry)| entry.value).collect();
        assert_eq!(held, ["", "newer"]);
        assert!(is_left_out(&chunk, &store.entries[&chunk]));
    }
}
