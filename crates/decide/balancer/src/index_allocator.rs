use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, PoisonError, Weak},
};

use fairmesh_model::InstanceId;

use crate::EndpointStats;

/// Prevents the indices of a snapshot from being reassigned to other instances. Dropped with the snapshot.
#[derive(Clone, Debug)]
pub struct IndexPin {
    _alive: Arc<()>,
}

/// Assigns an index to every instance. Read only during compilation, never by a call.
#[derive(Debug, Default)]
pub(crate) struct IndexAllocator {
    indices: HashMap<InstanceId, AssignedIndex>,
    /// Removed indices, with the number of the snapshot that removed them.
    retired: BTreeMap<u32, u64>,
    /// Snapshots that may still be in use, oldest first.
    snapshots: Vec<(u64, Weak<()>)>,
    /// Number of the newest snapshot.
    newest: u64,
    /// Number of indices allocated so far.
    allocated: u32,
}

/// The index that is assigned to an instance, and the incarnation of the process that it was assigned for.
#[derive(Clone, Copy, Debug)]
struct AssignedIndex {
    index: u32,
    incarnation: u64,
}

impl EndpointStats {
    /// Assigns an index to every instance in the given order: its present index, otherwise an unpinned and idle one,
    /// otherwise a new one.
    ///
    /// An instance is identified by its name and incarnation. A restarted process gets a new index, because it has
    /// neither failed a call nor sent a report.
    ///
    /// An index is unpinned once no snapshot with its previous instance is left, and idle once no call is in flight at
    /// it. So counts never pass from one instance to another. `instances` is the complete new snapshot.
    pub fn assign_indices<'a>(
        &self,
        instances: impl IntoIterator<Item = (&'a InstanceId, u64)>,
    ) -> (Vec<u32>, IndexPin) {
        // After a panic with the lock held, the state is still usable: at worst an index is never reused.
        let mut index_allocator = self.index_allocator.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot_alive = index_allocator.open_snapshot();
        let mut former = std::mem::take(&mut index_allocator.indices);
        let mut new = Vec::new();
        let mut assigned = Vec::new();
        let number = index_allocator.newest;
        for (instance, incarnation) in instances {
            let known = former.remove(instance).or_else(|| index_allocator.indices.get(instance).copied());
            match known {
                Some(known) if known.incarnation == incarnation => {
                    index_allocator.indices.insert(instance.clone(), known);
                    assigned.push(known.index);
                    continue;
                }
                Some(replaced) => drop(index_allocator.retired.insert(replaced.index, number)),
                None => {}
            }
            new.push((assigned.len(), instance, incarnation));
            assigned.push(u32::MAX);
        }
        index_allocator.retired.extend(former.into_values().map(|gone| (gone.index, number)));
        // Failures at all retired indices are cleared every time, because a late call may record a failure at an index
        // that was retired earlier. A single leftover would make every pick consult outlier states.
        index_allocator.retired.keys().for_each(|&index| self.clear_failures(index));
        let mut reusable = index_allocator.take_reusable(self, new.len()).into_iter();
        for (position, instance, incarnation) in new {
            assigned[position] = match index_allocator.indices.get(instance) {
                Some(twice) => twice.index,
                None => index_allocator.insert(self, (instance, incarnation), reusable.next()),
            };
        }
        (assigned, IndexPin { _alive: snapshot_alive })
    }
}

impl EndpointStats {
    /// The index of an instance of the newest snapshot.
    pub fn index_of(&self, instance: &InstanceId) -> Option<u32> {
        let allocator = self.index_allocator.lock().unwrap_or_else(PoisonError::into_inner);
        allocator.indices.get(instance).map(|assigned| assigned.index)
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

    fn insert(
        &mut self,
        stats: &EndpointStats,
        (instance, incarnation): (&InstanceId, u64),
        reusable: Option<u32>,
    ) -> u32 {
        let index = reusable.unwrap_or_else(|| {
            self.allocated += 1;
            self.allocated - 1
        });
        stats.ensure(index);
        stats.reset(index);
        self.indices.insert(instance.clone(), AssignedIndex { index, incarnation });
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

    /// Assigns indices to processes without incarnations.
    fn assign(stats: &EndpointStats, names: &[&str]) -> (Vec<u32>, IndexPin) {
        stats.assign_indices(ids(names).iter().map(|id| (id, 0)))
    }

    #[test]
    fn new_process_does_not_inherit_endpoint_stats_of_its_predecessor() {
        let stats = EndpointStats::default();
        let a = InstanceId::new("a").unwrap();
        let (first, pin) = stats.assign_indices([(&a, 1)]);
        stats.begin(first[0]);
        stats.finish(first[0], Outcome::Unreachable, 5);
        stats.record_report(first[0], LoadReport { requests: Some(9), ..LoadReport::default() }, 5);
        let (same, pin_2) = stats.assign_indices([(&a, 1)]);
        assert_eq!((same.clone(), stats.consecutive_failures(same[0])), (first.clone(), 1));
        let (second, _pin) = stats.assign_indices([(&a, 2)]);
        assert_ne!(second, first);
        assert_eq!((stats.consecutive_failures(second[0]), stats.last_report(second[0])), (0, None));
        assert_eq!(stats.suspects(), 0, "the failures of the one before are cleared");
        assert_eq!(stats.index_of(&a), Some(second[0]));
        drop((pin, pin_2));
        let (third, _pin) = stats.assign_indices([(&a, 3)]);
        assert_eq!(third, first, "an index without calls is used again");
    }

    #[test]
    fn instance_keeps_its_index_and_call_count_across_snapshots() {
        let stats = EndpointStats::default();
        let (first, _index_pin) = assign(&stats, &["a", "b", "c"]);
        assert_eq!(first, [0, 1, 2]);
        stats.begin(2);
        let (second, _index_pin) = assign(&stats, &["d", "c"]);
        assert_eq!(second[1], 2);
        assert_eq!(stats.outstanding(2), 1);
    }

    #[test]
    fn endpoint_index_is_reused_only_when_unpinned_and_idle() {
        let stats = EndpointStats::default();
        let (_, old) = assign(&stats, &["a"]);
        let (b, lease_b) = assign(&stats, &["b"]);
        assert_eq!(b, [1], "the first snapshot pins index 0");
        stats.begin(0);
        drop(old);
        let (c, lease_c) = assign(&stats, &["b", "c"]);
        assert_eq!(c, [1, 2], "a call is in flight at index 0");
        stats.finish(0, Outcome::Ok, 0);
        stats.record_report(0, LoadReport { requests: Some(3), ..LoadReport::default() }, 5);
        drop((lease_b, lease_c));
        let (d, _index_pin) = assign(&stats, &["b", "c", "d"]);
        assert_eq!(d, [1, 2, 0]);
        assert_eq!(stats.last_report(0), None, "reports of the previous instance are cleared");
    }

    #[test]
    fn failure_counts_of_removed_instance_are_cleared() {
        let stats = EndpointStats::default();
        let (_, _index_pin) = assign(&stats, &["a", "b"]);
        stats.finish(0, Outcome::Unreachable, 0);
        let (_, _index_pin) = assign(&stats, &["b"]);
        stats.finish(0, Outcome::Unreachable, 0);
        let (_, _index_pin) = assign(&stats, &["b"]);
        assert_eq!((stats.consecutive_failures(0), stats.ejected_until(0)), (0, 0));
    }

    #[test]
    fn old_snapshot_keeps_its_endpoint_indices_from_reuse() {
        let stats = EndpointStats::default();
        let (_, oldest) = assign(&stats, &["a"]);
        for name in ["b", "c", "d"] {
            let (assigned, _) = assign(&stats, &[name]);
            assert_ne!(assigned, [0], "{name}");
        }
        drop(oldest);
        let (assigned, _) = assign(&stats, &["e"]);
        assert_eq!(assigned, [0]);
    }

    #[test]
    fn duplicate_instances_share_index_and_indices_stay_distinct() {
        let stats = EndpointStats::default();
        let (assigned, _) = assign(&stats, &["a", "a", "b"]);
        assert_eq!(assigned, [0, 0, 1]);
        let (_, _) = assign(&stats, &["b"]);
        let (assigned, _) = assign(&stats, &["a", "c", "b"]);
        assert_eq!(assigned[2], 1);
        assert_ne!(assigned[0], assigned[1]);
    }
}
