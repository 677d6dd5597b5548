use std::{collections::VecDeque, sync::Arc, time::Duration, vec};

use fairmesh_model::{Prefix, Revision, StoreId};
use fairmesh_wire::v1::{self, watch_response::Kind};
use prost::Message;

use bytes::Bytes;

use crate::{Entry, Resumed, Snapshot, Update};

/// Maximum size of the entries in one part of a snapshot or delta, in bytes. A part has at least one entry. A slow
/// watch holds at most one encoded part.
const PART_BYTES: usize = 64 * 1024;

type Entries = vec::IntoIter<(Arc<str>, Entry)>;

/// The messages of an update, with its ages. All messages except the last set `more`, so that the reader applies them
/// as one change.
///
/// Each message is encoded when the connection is ready to send it. Until then the entries are shared with the table,
/// so a watch that does not read holds references instead of copies.
#[derive(Debug)]
pub(super) struct Messages {
    revision: Revision,
    resumed: vec::IntoIter<Resumed>,
    snapshots: VecDeque<SnapshotRest>,
    puts: Entries,
    deletes: vec::IntoIter<Arc<str>>,
    patches: vec::IntoIter<Bytes>,
    /// Whether a delta follows; it may be empty.
    delta_follows: bool,
}

#[derive(Debug)]
struct SnapshotRest {
    prefix: Prefix,
    age: Duration,
    entries: Entries,
}

impl Messages {
    /// Creates the messages of `update`, with `patches` in its delta.
    pub(super) fn new(update: Update, patches: Vec<Bytes>) -> Self {
        let Update { revision, resumed, snapshots, puts, deletes } = update;
        let begins = !resumed.is_empty() || !snapshots.is_empty();
        let rest =
            |Snapshot { prefix, entries, age }| SnapshotRest { prefix, age, entries: entries.into_iter() };
        Self {
            revision,
            resumed: resumed.into_iter(),
            snapshots: snapshots.into_iter().map(rest).collect(),
            delta_follows: !begins || !puts.is_empty() || !deletes.is_empty() || !patches.is_empty(),
            puts: puts.into_iter(),
            deletes: deletes.into_iter(),
            patches: patches.into_iter(),
        }
    }

    fn next_kind(&mut self) -> Option<Kind> {
        if let Some(Resumed { prefix, age }) = self.resumed.next() {
            return Some(Kind::Resumed(v1::Resumed {
                prefix: prefix.to_string(),
                revision: Some(self.revision.into()),
                age_ms: milliseconds(age),
            }));
        }
        if let Some(snapshot) = self.snapshots.front_mut() {
            let part = snapshot.next_part(self.revision);
            if part.last {
                self.snapshots.pop_front();
            }
            return Some(Kind::Snapshot(part));
        }
        std::mem::take(&mut self.delta_follows).then(|| Kind::Delta(self.next_delta()))
    }

    /// Returns the next part of the delta: first puts, then deletes, then patches.
    fn next_delta(&mut self) -> v1::Delta {
        let mut delta = v1::Delta { revision: Some(self.revision.into()), ..v1::Delta::default() };
        let mut bytes = 0;
        delta.puts = fill(&mut self.puts, &mut bytes, entry_size, entry);
        if self.puts.as_slice().is_empty() {
            delta.deletes = fill(&mut self.deletes, &mut bytes, |key| key.len(), |key| key.to_string());
        }
        if self.puts.len() + self.deletes.len() == 0 {
            delta.patches = fill(&mut self.patches, &mut bytes, Bytes::len, |patch| patch);
        }
        self.delta_follows = self.puts.len() + self.deletes.len() + self.patches.len() > 0;
        delta
    }
}

impl Iterator for Messages {
    type Item = v1::WatchResponse;

    fn next(&mut self) -> Option<v1::WatchResponse> {
        let kind = self.next_kind()?;
        let more = self.resumed.len() + self.snapshots.len() > 0 || self.delta_follows;
        Some(v1::WatchResponse { kind: Some(kind), more })
    }
}

impl SnapshotRest {
    fn next_part(&mut self, revision: Revision) -> v1::Snapshot {
        let entries = fill(&mut self.entries, &mut 0, entry_size, entry);
        v1::Snapshot {
            prefix: self.prefix.to_string(),
            revision: Some(revision.into()),
            entries,
            last: self.entries.as_slice().is_empty(),
            age_ms: milliseconds(self.age),
        }
    }
}

/// Moves items into a part that already contains `bytes`, until the part is full.
fn fill<T, U>(
    items: &mut vec::IntoIter<T>,
    bytes: &mut usize,
    size: impl Fn(&T) -> usize,
    encode: impl Fn(T) -> U,
) -> Vec<U> {
    let mut part = Vec::new();
    while let Some(size) = items.as_slice().first().map(&size)
        && (*bytes == 0 || *bytes + size <= PART_BYTES)
    {
        *bytes += size;
        part.extend(items.next().map(&encode));
    }
    part
}

/// Returns the size of keys and values in an update without snapshots and resumptions, in bytes.
pub(super) fn delta_bytes(update: &Update) -> usize {
    let deletes = update.deletes.iter().map(|key| key.len());
    update.puts.iter().map(entry_size).chain(deletes).sum()
}

pub(super) fn ack_request(store: StoreId, number: u64) -> v1::WatchResponse {
    let revision = Revision { store, partition: 0, number };
    let request = v1::AckRequest { revision: Some(revision.into()) };
    v1::WatchResponse { kind: Some(Kind::AckRequest(request)), more: false }
}

pub(super) fn refused(prefix: &Prefix, reason: String) -> v1::WatchResponse {
    let refused = v1::Refused { prefix: prefix.to_string(), reason };
    v1::WatchResponse { kind: Some(Kind::Refused(refused)), more: false }
}

pub(super) fn age_update(age: Duration, behind: Option<Revision>) -> v1::WatchResponse {
    let update = v1::AgeUpdate { age_ms: milliseconds(age), behind: behind.map(Into::into) };
    v1::WatchResponse { kind: Some(Kind::AgeUpdate(update)), more: false }
}

/// Converts an age to milliseconds, rounded up because zero means that the copy is current.
pub(super) fn milliseconds(age: Duration) -> u64 {
    u64::try_from(age.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

pub(super) fn entry((key, entry): (Arc<str>, Entry)) -> v1::Entry {
    v1::Entry { key: key.to_string(), value: entry.value, revision: entry.revision }
}

fn entry_size((key, entry): &(Arc<str>, Entry)) -> usize {
    key.len() + entry.value.len()
}

/// Returns the size of an update on a connection, in bytes: its messages, each with a length of four bytes.
pub fn encoded_len(update: &Update) -> u64 {
    Messages::new(update.clone(), Vec::new()).map(|message| 4 + message.encoded_len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(keys: std::ops::Range<usize>, bytes: usize) -> Vec<(Arc<str>, Entry)> {
        let entry = |_| Entry { value: vec![7; bytes].into(), revision: 1 };
        keys.map(|i| (Arc::from(format!("/a/{i:04}")), entry(i))).collect()
    }

    #[test]
    fn parts_of_watch_update_are_built_lazily_and_only_last_ends_it() {
        let revision = Revision { store: StoreId(1), partition: 0, number: 3 };
        let (prefix, age) = (Prefix::new("/a/").unwrap(), Duration::from_micros(1500));
        let snapshot = Snapshot { prefix, entries: entries(0..10, PART_BYTES / 4), age };
        let deletes: Vec<Arc<str>> = (0..3).map(|i| Arc::from(format!("/b/{i}"))).collect();
        let key = snapshot.entries[9].0.clone();
        let update = Update {
            snapshots: vec![snapshot],
            puts: entries(10..12, 2 * PART_BYTES),
            deletes: deletes.clone(),
            ..Update::empty(revision)
        };
        let mut messages = Messages::new(update, Vec::new());
        let (mut parts, mut puts, mut deleted) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(message) = messages.next() {
            assert_eq!(message.more, messages.delta_follows || !messages.snapshots.is_empty());
            match message.kind {
                Some(Kind::Snapshot(part)) => {
                    assert_eq!((part.age_ms, part.last), (2, messages.snapshots.is_empty()));
                    assert_eq!(Arc::strong_count(&key), if part.last { 1 } else { 2 }, "still a reference");
                    parts.push(part.entries.len());
                }
                Some(Kind::Delta(delta)) => {
                    puts.push(delta.puts.len());
                    deleted.extend(delta.deletes);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((parts, puts), (vec![3, 3, 3, 1], vec![1, 1, 0]));
        assert_eq!(deleted, deletes.iter().map(ToString::to_string).collect::<Vec<_>>());
    }

    #[test]
    fn update_without_changes_is_sent_as_one_empty_delta() {
        let update = Update::empty(Revision { store: StoreId(1), partition: 0, number: 3 });
        let messages: Vec<_> = Messages::new(update, Vec::new()).collect();
        assert!(matches!(&messages[..], [v1::WatchResponse { kind: Some(Kind::Delta(_)), more: false }]));
    }
}
