//! Shard maps that were decoded of late: a large one takes longer to decode than everything else about a move, and a move
//! looks at it after every commit, of whatever.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use fairmesh_model::{Invalid, ServiceName};
use fairmesh_rib::Entry;

use crate::view::HeldMap;

/// How many maps are kept: as many services as have moves at one time, mostly.
const KEPT: usize = 8;

/// Says whether the records of a map are still those that were decoded. Every change of one writes some of them, at a new
/// revision; what only takes some away leaves fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    newest: u64,
    records: usize,
}

impl Mark {
    pub(crate) fn of(records: &[(Arc<str>, Entry)]) -> Self {
        let newest = records.iter().map(|(_, entry)| entry.revision).max().unwrap_or_default();
        Self { newest, records: records.len() }
    }
}

/// The maps of a few services, the one decoded last at the end.
#[derive(Debug, Default)]
pub(crate) struct Maps(Mutex<VecDeque<(ServiceName, Mark, Arc<HeldMap>)>>);

impl Maps {
    /// The map of a service whose records have this mark; decoded anew unless it was the same.
    pub(crate) fn get(
        &self,
        service: &ServiceName,
        mark: Mark,
        decode: impl FnOnce() -> Result<Option<HeldMap>, Invalid>,
    ) -> Result<Option<Arc<HeldMap>>, Invalid> {
        if let Some((.., map)) = self.lock().iter().find(|(of, at, _)| of == service && *at == mark) {
            return Ok(Some(map.clone()));
        }
        // Not under the lock: another service need not wait for this one.
        let decoded = decode()?.map(Arc::new);
        let mut maps = self.lock();
        maps.retain(|(of, ..)| of != service);
        if let Some(map) = &decoded {
            maps.push_back((service.clone(), mark, map.clone()));
        }
        if maps.len() > KEPT {
            maps.pop_front();
        }
        Ok(decoded)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(ServiceName, Mark, Arc<HeldMap>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::BTreeMap};

    use fairmesh_model::{KeyRange, ShardMap};

    use super::*;

    #[test]
    fn a_map_is_decoded_once_for_each_mark_and_few_are_kept() {
        let (maps, decoded) = (Maps::default(), Cell::new(0));
        let look = |service: &str, newest, records| {
            let decode = || {
                decoded.set(decoded.get() + 1);
                let map = ShardMap { version: newest, interval: KeyRange::ALL, shards: Vec::new() };
                Ok(Some(HeldMap { map, entries: BTreeMap::new(), revision: newest }))
            };
            let found = maps.get(&service.parse().unwrap(), Mark { newest, records }, decode).unwrap();
            assert_eq!(found.unwrap().map.version, newest);
            decoded.get()
        };
        assert_eq!((look("shop/cart", 1, 3), look("shop/cart", 1, 3)), (1, 1));
        assert_eq!((look("shop/cart", 2, 3), look("shop/cart", 2, 3)), (2, 2));
        assert_eq!(look("shop/cart", 2, 2), 3, "records were taken away");
        for i in 0..KEPT {
            look(&format!("shop/s{i}"), 1, 1);
        }
        let before = decoded.get();
        assert_eq!(look("shop/cart", 2, 2), before + 1, "it had to make place");
        assert_eq!(look("shop/s7", 1, 1), before + 1);
    }
}
