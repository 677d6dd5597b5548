use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, PoisonError, Weak},
};

use fairmesh_model::InstanceId;

use crate::Slots;

/// Keeps the indices that one snapshot was given from going to other instances. Dropped with the snapshot.
#[derive(Clone, Debug)]
pub struct Lease {
    _alive: Arc<()>,
}

/// Who has which index. Only compilation reads it, never a call.
#[derive(Debug, Default)]
pub(crate) struct Book {
    indices: HashMap<InstanceId, u32>,
    /// Indices that the newest snapshot left out, with the snapshot that did.
    retired: BTreeMap<u32, u64>,
    /// Snapshots that may still be read, oldest first.
    snapshots: Vec<(u64, Weak<()>)>,
    /// The number of the newest snapshot.
    newest: u64,
    /// Indices ever given out.
    len: u32,
}

impl Slots {
    /// Gives every instance an index: the one it has, else one that is free and idle, else a new one, in the order given.
    ///
    /// An index is free once no snapshot that knew its former instance is left, and idle once no call there is under
    /// way; so a count never passes from one instance to another. `instances` is everything in the new snapshot.
    pub fn assign<'a>(&self, instances: impl IntoIterator<Item = &'a InstanceId>) -> (Vec<u32>, Lease) {
        // A panic while the book is open leaves it consistent enough: the worst is an index that is never used again.
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let alive = book.open_snapshot();
        let mut former = std::mem::take(&mut book.indices);
        let mut fresh = Vec::new();
        let mut given = Vec::new();
        for instance in instances {
            let index = former.remove(instance).or_else(|| book.indices.get(instance).copied());
            match index {
                Some(index) => drop(book.indices.insert(instance.clone(), index)),
                None => fresh.push((given.len(), instance)),
            }
            given.push(index.unwrap_or(u32::MAX));
        }
        let number = book.newest;
        book.retired.extend(former.into_values().map(|index| (index, number)));
        // All of them, every time, since a call that ends late may blame an index that was retired before: one failure
        // left behind would have every pick look failures up.
        book.retired.keys().for_each(|&index| self.forgive(index));
        let mut reusable = book.take_reusable(self, fresh.len()).into_iter();
        for (position, instance) in fresh {
            given[position] = match book.indices.get(instance) {
                Some(&twice) => twice,
                None => book.enter(self, instance, reusable.next()),
            };
        }
        (given, Lease { _alive: alive })
    }
}

impl Book {
    fn open_snapshot(&mut self) -> Arc<()> {
        let alive = Arc::new(());
        self.snapshots.retain(|(_, snapshot)| snapshot.strong_count() > 0);
        self.newest += 1;
        self.snapshots.push((self.newest, Arc::downgrade(&alive)));
        alive
    }

    /// Takes up to `wanted` retired indices that are free and idle.
    fn take_reusable(&mut self, slots: &Slots, wanted: usize) -> Vec<u32> {
        let oldest = self.snapshots.first().map_or(self.newest, |(number, _)| *number);
        let reusable: Vec<u32> = self
            .retired
            .iter()
            .filter(|&(&index, &left_out_by)| left_out_by <= oldest && slots.is_idle(index))
            .map(|(&index, _)| index)
            .take(wanted)
            .collect();
        for index in &reusable {
            self.retired.remove(index);
        }
        reusable
    }

    fn enter(&mut self, slots: &Slots, instance: &InstanceId, reusable: Option<u32>) -> u32 {
        let index = reusable.unwrap_or_else(|| {
            self.len += 1;
            self.len - 1
        });
        slots.ensure(index);
        slots.forget(index);
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
    fn an_instance_keeps_its_index_and_its_count() {
        let slots = Slots::default();
        let (first, _lease) = slots.assign(&ids(&["a", "b", "c"]));
        assert_eq!(first, [0, 1, 2]);
        slots.begin(2);
        let (second, _lease) = slots.assign(&ids(&["d", "c"]));
        assert_eq!(second[1], 2);
        assert_eq!(slots.outstanding(2), 1);
    }

    #[test]
    fn an_index_goes_to_another_only_when_no_snapshot_and_no_call_holds_it() {
        let slots = Slots::default();
        let (_, old) = slots.assign(&ids(&["a"]));
        let (b, lease_b) = slots.assign(&ids(&["b"]));
        assert_eq!(b, [1], "the first snapshot still knows index 0");
        slots.begin(0);
        drop(old);
        let (c, lease_c) = slots.assign(&ids(&["b", "c"]));
        assert_eq!(c, [1, 2], "a call is under way at index 0");
        slots.finish(0, Outcome::Ok, 0);
        slots.report(0, LoadReport { requests: Some(3), ..LoadReport::default() }, 5);
        drop((lease_b, lease_c));
        let (d, _lease) = slots.assign(&ids(&["b", "c", "d"]));
        assert_eq!(d, [1, 2, 0]);
        assert_eq!(slots.reported(0), None, "what the former instance said is not the new one's word");
    }

    #[test]
    fn the_failures_of_an_instance_that_is_gone_are_forgotten() {
        let slots = Slots::default();
        let (_, _lease) = slots.assign(&ids(&["a", "b"]));
        slots.finish(0, Outcome::Unreachable, 0);
        let (_, _lease) = slots.assign(&ids(&["b"]));
        slots.finish(0, Outcome::Unreachable, 0);
        let (_, _lease) = slots.assign(&ids(&["b"]));
        assert_eq!((slots.failures(0), slots.penalised_until(0)), (0, 0));
    }

    #[test]
    fn a_snapshot_that_outlives_newer_ones_still_protects_what_it_knows() {
        let slots = Slots::default();
        let (_, oldest) = slots.assign(&ids(&["a"]));
        for name in ["b", "c", "d"] {
            let (given, _) = slots.assign(&ids(&[name]));
            assert_ne!(given, [0], "{name}");
        }
        drop(oldest);
        let (given, _) = slots.assign(&ids(&["e"]));
        assert_eq!(given, [0]);
    }

    #[test]
    fn an_instance_named_twice_has_one_index_and_a_returning_one_is_not_confused() {
        let slots = Slots::default();
        let (given, _) = slots.assign(&ids(&["a", "a", "b"]));
        assert_eq!(given, [0, 0, 1]);
        let (_, _) = slots.assign(&ids(&["b"]));
        let (given, _) = slots.assign(&ids(&["a", "c", "b"]));
        assert_eq!(given[2], 1);
        assert_ne!(given[0], given[1]);
    }
}
