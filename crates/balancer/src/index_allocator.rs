use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, PoisonError, Weak},
};

use fairmesh_model::InstanceId;

use crate::EndpointStats;

/// Keeps the indices of one snapshot from being reassigned to other instances. Dropped with the snapshot.
#[derive(Clone, Debug)]
pub struct IndexPin {
    _alive: Arc<()>,
}

/// The index of every instance. Only compilation reads it, never a call.
#[derive(Debug, Default)]
pub(crate) struct IndexAllocator {
    indices: HashMap<InstanceId, u32>,
    /// Indices that a snapshot removed, with the number of that snapshot.
    retired: BTreeMap<u32, u64>,
    /// Snapshots that may still be in use, oldest first.
    snapshots: Vec<(u64, Weak<()>)>,
    /// Number of the newest snapshot.
    newest: u64,
    /// Number of indices ever allocated.
    allocated: u32,
}

impl EndpointStats {
    /// Assigns an index to every instance, in the order given: its present one, else an unpinned and idle one, else a
    /// new one.
    ///
    /// An index is unpinned once no snapshot that knew its previous instance is left, and idle once it has no call in
    /// flight; so a count never passes from one instance to another. `instances` is the complete new snapshot.
    pub fn assign_indices<'a>(
        &self,
        instances: impl IntoIterator<Item = &'a InstanceId>,
    ) -> (Vec<u32>, IndexPin) {
        // After a panic with the lock held the state is consistent enough: at worst an index is never reused.
        let mut index_allocator = self.index_allocator.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot_alive = index_allocator.open_snapshot();
        let mut former = std::mem::take(&mut index_allocator.indices);
        let mut new = Vec::new();
        let mut assigned = Vec::new();
        for instance in instances {
            let index = former.remove(instance).or_else(|| index_allocator.indices.get(instance).copied());
            match index {
                Some(index) => drop(index_allocator.indices.insert(instance.clone(), index)),
                None => new.push((assigned.len(), instance)),
            }
            assigned.push(index.unwrap_or(u32::MAX));
        }
        let number = index_allocator.newest;
        index_allocator.retired.extend(former.into_values().map(|index| (index, number)));
        // All of them, every time, since a call that finishes late may record a failure at an index retired earlier:
        // one failure left behind would make every pick consult outlier states.
        index_allocator.retired.keys().for_each(|&index| self.clear_failures(index));
        let mut reusable = index_allocator.take_reusable(self, new.len()).into_iter();
        for (position, instance) in new {
            assigned[position] = match index_allocator.indices.get(instance) {
                Some(&twice) => twice,
                None => index_allocator.insert(self, instance, reusable.next()),
            };
        }
        (assigned, IndexPin { _alive: snapshot_alive })
    }
}

impl IndexAllocator {
    fn open_snapshot(&mut self) -> Arc<()> {
        let snapshot_alive = Arc::new(());
        self.snapshots.retain(|(_, snapshot)| snapshot.strong_count() > 0);
        self.newest += 1;
        self.snapshots.push((self.newest, Arc::downgrade(&snapshot_alive)));
        snapshot_alive
    }

    /// Takes up to `count` retired indices that are unpinned and idle.
    fn take_reusable(&mut self, stats: &EndpointStats, count: usize) -> Vec<u32> {
        let oldest = self.snapshots.first().map_or(self.newest, |(number, _)| *number);
        let reusable: Vec<u32> = self
            .retired
            .iter()
            .filter(|&(&index, &left_out_by)| left_out_by <= oldest && stats.is_idle(index))
            .map(|(&index, _)| index)
            .take(count)
            .collect();
        for index in &reusable {
            self.retired.remove(index);
        }
        reusable
    }

    fn insert(&mut self, stats: &EndpointStats, instance: &InstanceId, reusable: Option<u32>) -> u32 {
        let index = reusable.unwrap_or_else(|| {
            self.allocated += 1;
            self.allocated - 1
        });
        stats.ensure(index);
        stats.reset(index);
        self.indices.insert(instance.clone(), index);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LoadReport, Outcome};

    fn ids(names: &[&str]) -> Vec<InstanceId> {
        names.iter().map(|name| InstanceId::new(name).unwrap()).collect()
    }

    #[test]
    fn an_instance_keeps_its_index_and_count_across_snapshots() {
        let stats = EndpointStats::default();
        let (first, _index_pin) = stats.assign_indices(&ids(&["a", "b", "c"]));
        assert_eq!(first, [0, 1, 2]);
        stats.begin(2);
        let (second, _index_pin) = stats.assign_indices(&ids(&["d", "c"]));
        assert_eq!(second[1], 2);
        assert_eq!(stats.outstanding(2), 1);
    }

    #[test]
    fn an_index_is_reused_only_when_unpinned_and_idle() {
        let stats = EndpointStats::default();
        let (_, old) = stats.assign_indices(&ids(&["a"]));
        let (b, lease_b) = stats.assign_indices(&ids(&["b"]));
        assert_eq!(b, [1], "the first snapshot pins index 0");
        stats.begin(0);
        drop(old);
        let (c, lease_c) = stats.assign_indices(&ids(&["b", "c"]));
        assert_eq!(c, [1, 2], "a call is in flight at index 0");
        stats.finish(0, Outcome::Ok, 0);
        stats.record_report(0, LoadReport { requests: Some(3), ..LoadReport::default() }, 5);
        drop((lease_b, lease_c));
        let (d, _index_pin) = stats.assign_indices(&ids(&["b", "c", "d"]));
        assert_eq!(d, [1, 2, 0]);
        assert_eq!(stats.last_report(0), None, "reports of the previous instance are cleared");
    }

    #[test]
    fn failures_of_a_removed_instance_are_cleared() {
        let stats = EndpointStats::default();
        let (_, _index_pin) = stats.assign_indices(&ids(&["a", "b"]));
        stats.finish(0, Outcome::Unreachable, 0);
        let (_, _index_pin) = stats.assign_indices(&ids(&["b"]));
        stats.finish(0, Outcome::Unreachable, 0);
        let (_, _index_pin) = stats.assign_indices(&ids(&["b"]));
        assert_eq!((stats.consecutive_failures(0), stats.ejected_until(0)), (0, 0));
    }

    #[test]
    fn an_old_snapshot_pins_its_indices_past_newer_ones() {
        let stats = EndpointStats::default();
        let (_, oldest) = stats.assign_indices(&ids(&["a"]));
        for name in ["b", "c", "d"] {
            let (assigned, _) = stats.assign_indices(&ids(&[name]));
            assert_ne!(assigned, [0], "{name}");
        }
        drop(oldest);
        let (assigned, _) = stats.assign_indices(&ids(&["e"]));
        assert_eq!(assigned, [0]);
    }

    #[test]
    fn duplicate_instances_share_an_index_and_returning_ones_get_their_own() {
        let stats = EndpointStats::default();
        let (assigned, _) = stats.assign_indices(&ids(&["a", "a", "b"]));
        assert_eq!(assigned, [0, 0, 1]);
        let (_, _) = stats.assign_indices(&ids(&["b"]));
        let (assigned, _) = stats.assign_indices(&ids(&["a", "c", "b"]));
        assert_eq!(assigned[2], 1);
        assert_ne!(assigned[0], assigned[1]);
    }
}
