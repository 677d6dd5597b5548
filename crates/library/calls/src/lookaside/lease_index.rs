use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use fairmesh_model::{KeyRange, Role, ServiceName};

use super::lease_set::{LeaseKey, LeaseSet};

/// Maximum number of lease sets per lookaside. There is one lease set per called service, or per called shard and
/// role.
const MAX_LEASE_SETS: usize = 4096;

/// Index of lease sets by service, role and key.
#[derive(Debug, Default)]
pub(super) struct LeaseIndex {
    /// Lease sets by their first key, which is `None` for calls without a key.
    by_role: HashMap<(ServiceName, Option<Role>), BTreeMap<Option<u128>, IndexEntry>>,
    len: usize,
}

#[derive(Debug)]
struct IndexEntry {
    last: Option<u128>,
    set: Arc<LeaseSet>,
}

impl LeaseIndex {
    /// Returns the lease set for these calls, if there is one.
    pub(super) fn find(&self, key: &LeaseKey) -> Option<Arc<LeaseSet>> {
        let sets = self.by_role.get(&(key.service.clone(), key.role.clone()))?;
        let key = key.key.map(|key| key.0);
        let (first, entry) = sets.range(..=key).next_back()?;
        // `None` is ordered before all keys, but does not match any key.
        let fits = first.is_some() == key.is_some() && key <= entry.last;
        fits.then(|| Arc::clone(&entry.set))
    }

    /// Inserts a lease set for a single key. Its first leases later define a range of keys.
    pub(super) fn insert(&mut self, key: LeaseKey, set: Arc<LeaseSet>) {
        if self.len >= MAX_LEASE_SETS {
            self.remove_oldest();
        }
        let sets = self.by_role.entry((key.service, key.role)).or_default();
        let last = key.key.map(|key| key.0);
        self.len += usize::from(sets.insert(last, IndexEntry { last, set }).is_none());
    }

    /// Sets the key range of a lease set if it is still in the index.
    pub(super) fn extend(&mut self, key: &LeaseKey, set: &Arc<LeaseSet>, keys: KeyRange) {
        if key.key.is_none() || !self.remove(key, set) {
            return;
        }
        let sets = self.by_role.entry((key.service.clone(), key.role.clone())).or_default();
        let entry = IndexEntry { last: Some(keys.last.0), set: Arc::clone(set) };
        self.len += usize::from(sets.insert(Some(keys.first.0), entry).is_none());
    }

    /// Removes a lease set. Returns whether it was in the index.
    pub(super) fn remove(&mut self, key: &LeaseKey, set: &Arc<LeaseSet>) -> bool {
        let name = (key.service.clone(), key.role.clone());
        let Some(sets) = self.by_role.get_mut(&name) else { return false };
        let before = sets.len();
        sets.retain(|_, entry| !Arc::ptr_eq(&entry.set, set));
        let removed = before - sets.len();
        self.len -= removed;
        if sets.is_empty() {
            self.by_role.remove(&name);
        }
        removed > 0
    }

    fn remove_oldest(&mut self) {
        let all = self
            .by_role
            .iter()
            .flat_map(|(name, sets)| sets.iter().map(move |(key, entry)| (entry.set.last_used(), name, key)));
        let oldest = all.min_by_key(|(used, ..)| *used).map(|(_, name, key)| (name.clone(), *key));
        if let Some((name, key)) = oldest
            && let Some(sets) = self.by_role.get_mut(&name)
        {
            self.len -= usize::from(sets.remove(&key).is_some());
            if sets.is_empty() {
                self.by_role.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::ShardKey;

    use super::*;

    fn lease_key(key: Option<u128>, role: Option<&str>) -> LeaseKey {
        let service = ServiceName::new("shop/cart").unwrap();
        LeaseKey { service, role: role.map(|role| Role::new(role).unwrap()), key: key.map(ShardKey) }
    }

    fn insert(index: &mut LeaseIndex, key: &LeaseKey) -> Arc<LeaseSet> {
        let set = Arc::new(LeaseSet::new(key.service.clone()));
        index.insert(key.clone(), Arc::clone(&set));
        set
    }

    fn found(index: &LeaseIndex, key: &LeaseKey, set: &Arc<LeaseSet>) -> bool {
        index.find(key).is_some_and(|found| Arc::ptr_eq(&found, set))
    }

    #[test]
    fn lookaside_lease_is_found_only_by_keys_in_its_range() {
        let mut index = LeaseIndex::default();
        let five = insert(&mut index, &lease_key(Some(618), None));
        assert!(found(&index, &lease_key(Some(618), None), &five));
        assert!(index.find(&lease_key(Some(619), None)).is_none(), "its range is not known yet");
        let keys = KeyRange { first: ShardKey(500), last: ShardKey(899) };
        index.extend(&lease_key(Some(618), None), &five, keys);
        for key in [500, 618, 899] {
            assert!(found(&index, &lease_key(Some(key), None), &five), "{key}");
        }
        for other in [
            lease_key(Some(499), None),
            lease_key(Some(900), None),
            lease_key(Some(618), Some("primary")),
            lease_key(None, None),
        ] {
            assert!(index.find(&other).is_none(), "{other:?}");
        }
        let keyless = insert(&mut index, &lease_key(None, None));
        assert!(found(&index, &lease_key(None, None), &keyless));
        assert!(index.find(&lease_key(Some(499), None)).is_none(), "no key is not in the range");
        assert!(
            index.remove(&lease_key(Some(618), None), &five)
                && !index.remove(&lease_key(Some(618), None), &five)
        );
        assert_eq!(index.len, 1);
    }

    #[test]
    fn full_lookaside_lease_index_evicts_least_recently_used_lease() {
        let mut index = LeaseIndex::default();
        let used = insert(&mut index, &lease_key(Some(0), None));
        let sets: Vec<_> =
            (1..=MAX_LEASE_SETS as u128).map(|key| insert(&mut index, &lease_key(Some(key), None))).collect();
        assert_eq!((index.len, sets.len()), (MAX_LEASE_SETS, MAX_LEASE_SETS));
        assert!(index.find(&lease_key(Some(0), None)).is_none());
        drop(used);
    }
}
