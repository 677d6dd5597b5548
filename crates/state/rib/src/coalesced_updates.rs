use std::{
    collections::{BTreeMap, HashSet},
    ops::Bound,
    sync::Arc,
};

use fairmesh_model::{Prefix, RecordKey};
use fairmesh_wire::record_encoding;

use crate::{Entry, Snapshot, Update};

/// Pending updates of one reader, merged into a single update. The size grows with the number of changed keys, not
/// with the number of changes.
///
/// An invalid value hides neither a pending valid value nor a pending deletion, because a reader that applied the
/// updates one by one would refuse the invalid value.
///
/// A queue of updates was rejected, as for [watchers](crate): a queue grows with the slowest reader and delivers
/// outdated values.
#[derive(Debug, Default)]
pub struct CoalescedUpdates {
    /// The pending update, whose puts and deletes are in `changes`; `None` if nothing is pending.
    update: Option<Update>,
    /// The last value of each changed key; `None` for a deleted key.
    changes: BTreeMap<Arc<str>, Option<Entry>>,
}

impl CoalescedUpdates {
    /// Merges in an update that follows all earlier ones.
    pub fn add(&mut self, update: Update) {
        let Update { revision, resumed, mut snapshots, puts, deletes } = update;
        self.replace_invalid(&mut snapshots);
        match &mut self.update {
            Some(waiting) => {
                waiting.revision = revision;
                // A set, because the update after a reconnect may resume tens of thousands of prefixes.
                let again: HashSet<_> = resumed.iter().map(|resumed| &resumed.prefix).collect();
                waiting.resumed.retain(|earlier| !again.contains(&earlier.prefix));
                let again: HashSet<_> = snapshots.iter().map(|snapshot| &snapshot.prefix).collect();
                waiting.snapshots.retain(|earlier| !again.contains(&earlier.prefix));
                again.into_iter().for_each(|prefix| remove_below(&mut self.changes, prefix));
                // Snapshots keep their order, because one may cover a part of another.
                waiting.resumed.extend(resumed);
                waiting.snapshots.extend(snapshots);
            }
            None => self.update = Some(Update { resumed, snapshots, ..Update::empty(revision) }),
        }
        for (key, entry) in puts {
            // Without a pending change, the reader gets the snapshots first and then refuses the invalid value
            // itself.
            let is_refused = self.changes.contains_key(&key) && !is_valid(&key, &entry);
            if !is_refused || self.effect(&key) == Effect::None {
                self.changes.insert(key, Some(entry));
            }
        }
        self.changes.extend(deletes.into_iter().map(|key| (key, None)));
    }

    /// Replaces invalid values in snapshots with the pending values of their keys.
    fn replace_invalid(&self, snapshots: &mut [Snapshot]) {
        let waiting = self.update.iter().flat_map(|update| &update.snapshots);
        let waiting: HashSet<_> = waiting.map(|snapshot| &snapshot.prefix).collect();
        for Snapshot { prefix, entries, .. } in snapshots {
            let is_replaced = waiting.contains(prefix);
            entries.retain_mut(|(key, entry)| {
                let hides_another = is_replaced || self.changes.contains_key(key);
                if !hides_another || is_valid(key, entry) {
                    return true;
                }
                match self.effect(key) {
                    Effect::None => true,
                    Effect::Removed => false,
                    Effect::Value(waiting) => {
                        entry.value = waiting.value.clone();
                        true
                    }
                }
            });
        }
    }

    /// Returns the combined effect of all pending changes on a key's value.
    fn effect(&self, key: &str) -> Effect<'_> {
        match self.changes.get(key) {
            Some(None) => return Effect::Removed,
            Some(Some(entry)) if is_valid(key, entry) => return Effect::Value(entry),
            Some(Some(_)) | None => {}
        }
        let snapshots = self.update.iter().flat_map(|update| update.snapshots.iter().rev());
        for snapshot in snapshots.filter(|snapshot| snapshot.prefix.covers(key)) {
            match snapshot.get(key) {
                None => return Effect::Removed,
                Some(entry) if is_valid(key, entry) => return Effect::Value(entry),
                Some(_) => {}
            }
        }
        Effect::None
    }

    /// Returns all pending changes as one update; `None` if nothing is pending.
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

/// Effect of pending updates on one key.
#[derive(Debug, PartialEq, Eq)]
enum Effect<'a> {
    /// The reader's value stays.
    None,
    Removed,
    Value(&'a Entry),
}

/// Whether a reader would use the value. Parts of shard maps have no valid value by themselves.
fn is_valid(key: &str, entry: &Entry) -> bool {
    RecordKey::parse(key).is_ok_and(|key| record_encoding::decode(&key, &entry.value).is_ok())
}

/// Removes the changes that a snapshot of `prefix` covers. Their keys are adjacent.
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
    use fairmesh_model::{Revision, StoreId};
    use proptest::prelude::*;

    use super::*;
    use crate::{ArrivedRecord, Mirror, Resumed};

    /// The valid values of a reader by key.
    #[derive(Debug, Default, PartialEq)]
    struct Copy(BTreeMap<String, Bytes>);

    impl Mirror for Copy {
        fn retain(&mut self, snapshot: &Snapshot) {
            self.0.retain(|key, _| !snapshot.prefix.covers(key) || snapshot.holds(key));
        }

        fn put(&mut self, _: RecordKey, record: ArrivedRecord<'_>) {
            let entry = Entry { value: record.value.clone(), revision: 0 };
            if is_valid(record.text, &entry) {
                self.0.insert(record.text.to_string(), entry.value);
            }
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

    /// Returns a valid value that contains `number` in field 100, which this release does not know.
    fn entry(number: u64) -> Entry {
        let mut value = vec![0xa0, 0x06];
        prost::encoding::encode_varint(number, &mut value);
        Entry { value: value.into(), revision: number }
    }

    fn invalid(number: u64) -> Entry {
        Entry { value: vec![0xff].into(), revision: number }
    }

    /// Returns the prefix of one service, or of all services.
    fn prefix(service: Option<u8>) -> Prefix {
        let text = service.map_or("/t/shop/services/".to_owned(), |service| key(service).to_string());
        Prefix::new(text).unwrap()
    }

    #[test]
    fn pending_record_updates_use_memory_per_key_not_per_change() {
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
    fn undecodable_record_values_are_recognised() {
        assert!(
            is_valid(&key(1), &entry(1))
                && is_valid(&key(1), &entry(10_000))
                && !is_valid(&key(1), &invalid(1))
        );
    }

    /// A generated update: puts a key, deletes a key, or delivers a snapshot of one prefix or of all prefixes.
    #[derive(Clone, Debug)]
    enum Step {
        Put(u8),
        PutInvalid(u8),
        Delete(u8),
        Snapshot(Option<u8>, Vec<(u8, bool)>),
    }

    fn step() -> impl Strategy<Value = Step> {
        let held = prop::collection::btree_map(0_u8..6, any::<bool>(), 0..6);
        let snapshot = (prop::option::of(0_u8..6), held).prop_map(|(service, held)| {
            let held = held.into_iter().filter(|(key, _)| service.is_none_or(|service| service == *key));
            Step::Snapshot(service, held.collect())
        });
        let key = || 0_u8..6;
        prop_oneof![
            key().prop_map(Step::Put),
            key().prop_map(Step::PutInvalid),
            key().prop_map(Step::Delete),
            snapshot
        ]
    }

    proptest! {
        #[test]
        fn coalesced_record_updates_equal_sequential_ones(steps in prop::collection::vec(step(), 0..40)) {
            // The reader already has values.
            let before: BTreeMap<_, _> =
                (0..6).map(|service| (key(service).to_string(), entry(0).value)).collect();
            let (mut one_by_one, mut at_once) = (Copy(before.clone()), Copy(before));
            let mut waiting = CoalescedUpdates::default();
            for (number, step) in (1..).zip(steps) {
                let mut update = update(number);
                match step {
                    Step::Put(service) => update.puts.push((key(service), entry(number))),
                    Step::PutInvalid(service) => update.puts.push((key(service), invalid(number))),
                    Step::Delete(service) => update.deletes.push(key(service)),
                    Step::Snapshot(service, held) => update.snapshots.push(Snapshot {
                        prefix: prefix(service),
                        entries: held
                            .into_iter()
                            .map(|(held, is_valid)| {
                                (key(held), if is_valid { entry(number) } else { invalid(number) })
                            })
                            .collect(),
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
