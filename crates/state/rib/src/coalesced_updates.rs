use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Bound,
    sync::Arc,
};

use fairmesh_model::{Prefix, RecordKey};
use fairmesh_wire::records;

use crate::{Entry, Snapshot, Update};

/// Pending updates of a reader, merged into one. The size grows with the number of changed keys, not with the number of
/// changes.
///
/// An invalid value replaces no valid one that waits: the reader would keep the valid one in use, as it does when they arrive one by one.
///
/// A queue of updates was rejected, as for [watchers](crate): it grows with the slowest reader and delivers outdated values.
#[derive(Debug, Default)]
pub struct CoalescedUpdates {
    /// The pending update without its changes; `None` if nothing is pending.
    update: Option<Update>,
    /// The last value of each changed key; `None` for a deleted key.
    changes: BTreeMap<Arc<str>, Option<Entry>>,
}

impl CoalescedUpdates {
    /// Adds an update that follows all earlier ones.
    pub fn add(&mut self, update: Update) {
        let Update { revision, resumed, mut snapshots, puts, deletes } = update;
        self.keep_valid_entries(&mut snapshots);
        match &mut self.update {
            Some(waiting) => {
                waiting.revision = revision;
                // A set, because an update after a reconnect has tens of thousands of prefixes.
                let again: HashSet<_> = resumed.iter().map(|resumed| &resumed.prefix).collect();
                waiting.resumed.retain(|earlier| !again.contains(&earlier.prefix));
                let again: HashSet<_> = snapshots.iter().map(|snapshot| &snapshot.prefix).collect();
                waiting.snapshots.retain(|earlier| !again.contains(&earlier.prefix));
                again.into_iter().for_each(|prefix| remove_below(&mut self.changes, prefix));
                // Snapshots keep their order: one may cover a part of another.
                waiting.resumed.extend(resumed);
                waiting.snapshots.extend(snapshots);
            }
            None => self.update = Some(Update { resumed, snapshots, ..Update::empty(revision) }),
        }
        for (key, mut entry) in puts {
            keep_valid(&key, self.changes.get(&key).and_then(Option::as_ref), &mut entry);
            self.changes.insert(key, Some(entry));
        }
        self.changes.extend(deletes.into_iter().map(|key| (key, None)));
    }

    /// Replaces invalid values of snapshots by the valid ones that wait.
    fn keep_valid_entries(&self, snapshots: &mut [Snapshot]) {
        if snapshots.is_empty() {
            return;
        }
        let waiting = self.update.iter().flat_map(|update| &update.snapshots);
        let waiting: HashMap<_, _> = waiting.map(|snapshot| (&snapshot.prefix, snapshot)).collect();
        for Snapshot { prefix, entries, .. } in snapshots {
            let earlier = waiting.get(prefix);
            for (key, entry) in entries {
                let waiting = match self.changes.get(key) {
                    Some(change) => change.as_ref(),
                    None => earlier.and_then(|snapshot| snapshot.get(key)),
                };
                keep_valid(key, waiting, entry);
            }
        }
    }

    /// Takes all pending changes as one update; `None` without any.
    pub fn take(&mut self) -> Option<Update> {
        let mut update = self.update.take()?;
        for (key, value) in std::mem::take(&mut self.changes) {
            match value {
                Some(entry) => update.puts.push((key, entry)),
                None => update.deletes.push(key),
            }
        }
        Some(update)
    }
}

/// Replaces the value of an entry by the one that waits for the same key, if only that one is valid. A change after a snapshot needs
/// none of this: readers apply both.
fn keep_valid(key: &str, waiting: Option<&Entry>, entry: &mut Entry) {
    if let Some(waiting) = waiting
        && waiting.value != entry.value
        && !is_valid(key, entry)
        && is_valid(key, waiting)
    {
        entry.value = waiting.value.clone();
    }
}

/// Whether a reader would use the value. Parts of shard maps have no value of their own.
fn is_valid(key: &str, entry: &Entry) -> bool {
    RecordKey::parse(key).is_ok_and(|key| records::decode(&key, &entry.value).is_ok())
}

/// Removes the changes covered by a snapshot of this prefix. Their keys are adjacent.
fn remove_below(changes: &mut BTreeMap<Arc<str>, Option<Entry>>, prefix: &Prefix) {
    let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
    let below = changes.range::<str, _>(from).map(|(key, _)| key);
    let below: Vec<_> = below.take_while(|key| prefix.covers(key)).cloned().collect();
    for key in below {
        changes.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use fairmesh_model::{Policy, Record, Revision, StoreId};
    use proptest::prelude::*;

    use super::*;
    use crate::{ArrivedRecord, Mirror, Resumed};

    /// The values of a reader, by key.
    #[derive(Debug, Default, PartialEq)]
    struct Copy(BTreeMap<String, Bytes>);

    impl Mirror for Copy {
        fn retain(&mut self, snapshot: &Snapshot) {
            self.0.retain(|key, _| !snapshot.prefix.covers(key) || snapshot.holds(key));
        }

        fn put(&mut self, _: RecordKey, record: ArrivedRecord<'_>) {
            self.0.insert(record.text.to_string(), record.value.clone());
        }

        fn delete(&mut self, text: &str, _: &RecordKey) {
            self.0.remove(text);
        }

        fn mark_current(&mut self, _: &Prefix) {}
    }

    fn update(number: u64) -> Update {
        Update::empty(Revision { store: StoreId(1), partition: Default::default(), number })
    }

    fn key(service: u8) -> Arc<str> {
        format!("/t/shop/services/s{service}").into()
    }

    fn entry(number: u64) -> Entry {
        Entry { value: number.to_string().into(), revision: number }
    }

    /// The prefix of one service, or of all.
    fn prefix(service: Option<u8>) -> Prefix {
        let text = service.map_or("/t/shop/services/".to_owned(), |service| key(service).to_string());
        Prefix::new(text).unwrap()
    }

    #[test]
    fn waiting_updates_use_memory_only_for_their_keys() {
        let mut waiting = CoalescedUpdates::default();
        for number in 1..=10_000 {
            let change = (key((number % 3) as u8), entry(number));
            let resumed = vec![Resumed { prefix: prefix(None), age: Duration::ZERO }];
            waiting.add(Update { puts: vec![change], resumed, ..update(number) });
        }
        let merged = waiting.take().unwrap();
        assert_eq!((merged.puts.len(), merged.resumed.len()), (3, 1));
        assert_eq!(merged.puts[1], (key(1), entry(10_000)));
        assert_eq!(merged.revision.number, 10_000);
        assert_eq!(waiting.take(), None);
    }

    #[test]
    fn invalid_value_replaces_no_valid_one_that_waits() {
        let key: Arc<str> = "/t/shop/policies/cart".into();
        let prefix = Prefix::new(key.to_string()).unwrap();
        let valid = records::encode(&Record::Policy(Policy::default()));
        let put = |value: &[u8], number| Update {
            puts: vec![(Arc::clone(&key), Entry { value: value.to_vec().into(), revision: number })],
            ..update(number)
        };
        let snapshot = |value: &[u8], number| {
            let Update { puts: entries, .. } = put(value, number);
            let snapshot = Snapshot { prefix: prefix.clone(), entries, age: Duration::ZERO };
            Update { snapshots: vec![snapshot], ..update(number) }
        };
        let bad: &[u8] = &[0xff];
        for updates in [
            [put(&valid, 1), put(bad, 2)],
            [put(&valid, 1), snapshot(bad, 2)],
            [snapshot(&valid, 1), put(bad, 2)],
            [snapshot(&valid, 1), snapshot(bad, 2)],
        ] {
            let mut waiting = CoalescedUpdates::default();
            updates.into_iter().for_each(|update| waiting.add(update));
            let merged = waiting.take().unwrap();
            assert_eq!(merged.revision.number, 2);
            let snapshots = merged.snapshots.iter().flat_map(|snapshot| &snapshot.entries);
            let mut values = snapshots.chain(&merged.puts).map(|(_, entry)| &entry.value);
            assert!(values.any(|value| *value == valid), "{merged:?}");
        }
    }

    /// An update: puts a key, deletes it, or brings a snapshot of one prefix or of all.
    #[derive(Clone, Debug)]
    enum Step {
        Put(u8),
        Delete(u8),
        Snapshot(Option<u8>, Vec<u8>),
    }

    fn step() -> impl Strategy<Value = Step> {
        let held = prop::collection::btree_set(0_u8..6, 0..6);
        let snapshot = (prop::option::of(0_u8..6), held).prop_map(|(service, held)| {
            let held = held.into_iter().filter(|key| service.is_none_or(|service| service == *key));
            Step::Snapshot(service, held.collect())
        });
        prop_oneof![(0_u8..6).prop_map(Step::Put), (0_u8..6).prop_map(Step::Delete), snapshot]
    }

    proptest! {
        #[test]
        fn coalesced_updates_equal_their_sequence(steps in prop::collection::vec(step(), 0..40)) {
            let (mut one_by_one, mut at_once, mut waiting) =
                (Copy::default(), Copy::default(), CoalescedUpdates::default());
            for (number, step) in (1..).zip(steps) {
                let mut update = update(number);
                match step {
                    Step::Put(service) => update.puts.push((key(service), entry(number))),
                    Step::Delete(service) => update.deletes.push(key(service)),
                    Step::Snapshot(service, held) => update.snapshots.push(Snapshot {
                        prefix: prefix(service),
                        entries: held.into_iter().map(|held| (key(held), entry(number))).collect(),
                        age: Duration::ZERO,
                    }),
                }
                one_by_one.apply(&update);
                waiting.add(update);
            }
            if let Some(update) = waiting.take() {
                at_once.apply(&update);
            }
            prop_assert_eq!(at_once, one_by_one);
        }
    }
}
