//! Index of all placed services, for subset tests between their backends.

use std::collections::{BTreeMap, BTreeSet};

use crate::backend_set::BackendSet;

/// Services of each backend, grouped by their number of backends. Only services with a different number must be
/// compared: sets of equal size contain one another only if they are equal.
#[derive(Debug)]
pub(crate) struct Occupied {
    sets: BTreeMap<usize, BackendSet>,
    on: Vec<BTreeSet<(usize, usize)>>,
    /// Number of services with exactly this set.
    equal: BTreeMap<BackendSet, usize>,
    /// Number of comparisons between two sets.
    pub(crate) comparisons: u64,
}

impl Occupied {
    pub(crate) fn new(backends: usize) -> Self {
        let on = vec![BTreeSet::new(); backends];
        Self { sets: BTreeMap::new(), on, equal: BTreeMap::new(), comparisons: 0 }
    }

    /// Number of services on a backend.
    pub(crate) fn load(&self, backend: usize) -> usize {
        self.on[backend].len()
    }

    pub(crate) fn get(&self, service: usize) -> Option<&BackendSet> {
        self.sets.get(&service)
    }

    /// Places a service that is not placed yet.
    pub(crate) fn insert(&mut self, service: usize, set: BackendSet) {
        let length = set.len();
        for backend in set.iter() {
            self.on[backend].insert((length, service));
        }
        *self.equal.entry(set.clone()).or_default() += 1;
        self.sets.insert(service, set);
    }

    /// Removes a placed service, and returns its set. `None` if it is not placed.
    pub(crate) fn remove(&mut self, service: usize) -> Option<BackendSet> {
        let set = self.sets.remove(&service)?;
        let length = set.len();
        for backend in set.iter() {
            self.on[backend].remove(&(length, service));
        }
        if let Some(count) = self.equal.get_mut(&set) {
            *count -= 1;
            if *count == 0 {
                self.equal.remove(&set);
            }
        }
        Some(set)
    }

    /// Whether some service has exactly these backends.
    pub(crate) fn has(&self, set: &BackendSet) -> bool {
        self.equal.contains_key(set)
    }

    /// Whether no service lies within `set`, and `set` lies within no service.
    pub(crate) fn is_free(&mut self, set: &BackendSet) -> bool {
        !self.has(set) && !self.lies_within_another(set) && self.shorter_within(set).is_empty()
    }

    /// Whether a service with more backends has all backends of `set`.
    pub(crate) fn lies_within_another(&mut self, set: &BackendSet) -> bool {
        let rarest = set.iter().min_by_key(|backend| self.on[*backend].len());
        let Some(rarest) = rarest else { return !self.sets.is_empty() };
        let mut compared = 0;
        let longer = self.on[rarest].range((set.len() + 1, 0)..);
        let found =
            longer.inspect(|_| compared += 1).any(|(_, service)| set.lies_within(&self.sets[service]));
        self.comparisons += compared;
        found
    }

    /// Services with fewer backends, all of them in `set`.
    pub(crate) fn shorter_within(&mut self, set: &BackendSet) -> BTreeSet<usize> {
        let backends: Vec<usize> = set.iter().collect();
        backends.into_iter().flat_map(|backend| self.shorter_within_on(set, backend)).collect()
    }

    /// The services of [`shorter_within`](Self::shorter_within) that use `backend`.
    pub(crate) fn shorter_within_on(&mut self, set: &BackendSet, backend: usize) -> Vec<usize> {
        let mut compared = 0;
        let shorter = self.on[backend].range(..(set.len(), 0)).inspect(|_| compared += 1);
        let within =
            shorter.map(|(_, service)| *service).filter(|service| self.sets[service].lies_within(set));
        let within = within.collect();
        self.comparisons += compared;
        within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(backends: &[usize]) -> BackendSet {
        let mut set = BackendSet::empty(8);
        backends.iter().for_each(|backend| set.insert(*backend));
        set
    }

    #[test]
    fn backend_set_is_free_if_it_neither_contains_nor_is_in_another() {
        let mut occupied = Occupied::new(8);
        occupied.insert(0, set(&[0, 1, 2]));
        occupied.insert(1, set(&[2, 3, 4, 5]));
        for (backends, is_free) in [
            (&[0, 1, 2][..], false),
            (&[0, 1, 2, 7], false),
            (&[2, 3, 4], false),
            (&[0, 1], false),
            (&[0, 1, 3], true),
            (&[0, 2, 3, 4, 6], true),
        ] {
            assert_eq!(occupied.is_free(&set(backends)), is_free, "{backends:?}");
        }
        assert_eq!(occupied.shorter_within(&set(&[0, 1, 2, 3, 4, 5])), [0, 1].into());
        assert_eq!((occupied.load(2), occupied.remove(0)), (2, Some(set(&[0, 1, 2]))));
        assert!(occupied.load(2) == 1 && occupied.remove(0).is_none() && occupied.is_free(&set(&[0, 1, 2])));
    }
}
