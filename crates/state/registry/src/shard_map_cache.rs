//! A cache of decoded shard maps. Decoding a large map takes longer than the rest of a move, and a move reads the map
//! after every commit.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use fairmesh_model::{Invalid, ServiceName};
use fairmesh_rib::Entry;

use crate::stored_records::StoredShardMap;

/// Maximum number of cached maps: usually enough for all services with concurrent moves.
const MAX_CACHED: usize = 8;

/// Fingerprint of a map's records. It changes with every change of the map, because a change writes some records at a
/// new revision or deletes some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapFingerprint {
    newest: u64,
    records: usize,
}

impl MapFingerprint {
    pub(crate) fn of(records: &[(Arc<str>, Entry)]) -> Self {
        let newest = records.iter().map(|(_, entry)| entry.revision).max().unwrap_or_default();
        Self { newest, records: records.len() }
    }
}

/// The cached maps, with the most recently decoded map last.
#[derive(Debug, Default)]
pub(crate) struct ShardMapCache(Mutex<VecDeque<(ServiceName, MapFingerprint, Arc<StoredShardMap>)>>);

impl ShardMapCache {
    /// Returns the map of a service with this fingerprint. Decodes the map if it is not cached.
    pub(crate) fn get(
        &self,
        service: &ServiceName,
        fingerprint: MapFingerprint,
        decode: impl FnOnce() -> Result<Option<StoredShardMap>, Invalid>,
    ) -> Result<Option<Arc<StoredShardMap>>, Invalid> {
        if let Some((.., map)) = self.lock().iter().find(|(of, at, _)| of == service && *at == fingerprint) {
            return Ok(Some(map.clone()));
        }
        // Decoding happens outside the lock, so that other services need not wait.
        let decoded = decode()?.map(Arc::new);
        let mut maps = self.lock();
        maps.retain(|(of, ..)| of != service);
        if let Some(map) = &decoded {
            maps.push_back((service.clone(), fingerprint, map.clone()));
        }
        if maps.len() > MAX_CACHED {
            maps.pop_front();
        }
        Ok(decoded)
    }

    fn lock(
        &self,
    ) -> std::sync::MutexGuard<'_, VecDeque<(ServiceName, MapFingerprint, Arc<StoredShardMap>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::BTreeMap};

    use fairmesh_model::{KeyRange, ShardMap};

    use super::*;

    #[test]
    fn shard_map_is_decoded_once_per_change_and_cache_is_bounded() {
        let (maps, decoded) = (ShardMapCache::default(), Cell::new(0));
        let look = |service: &str, newest, records| {
            let decode = || {
                decoded.set(decoded.get() + 1);
                let map = ShardMap { version: newest, interval: KeyRange::ALL, shards: Vec::new() };
                Ok(Some(StoredShardMap { map, entries: BTreeMap::new(), revision: newest }))
            };
            let found =
                maps.get(&service.parse().unwrap(), MapFingerprint { newest, records }, decode).unwrap();
            assert_eq!(found.unwrap().map.version, newest);
            decoded.get()
        };
        assert_eq!((look("shop/cart", 1, 3), look("shop/cart", 1, 3)), (1, 1));
        assert_eq!((look("shop/cart", 2, 3), look("shop/cart", 2, 3)), (2, 2));
        assert_eq!(look("shop/cart", 2, 2), 3, "records were deleted");
        for i in 0..MAX_CACHED {
            look(&format!("shop/s{i}"), 1, 1);
        }
        let before = decoded.get();
        assert_eq!(look("shop/cart", 2, 2), before + 1, "it was evicted");
        assert_eq!(look("shop/s7", 1, 1), before + 1);
    }
}
