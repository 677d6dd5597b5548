use std::{collections::VecDeque, sync::Arc, time::Duration};

use fairmesh_model::{Prefix, Revision, StoreId};
use fairmesh_wire::v1::{self, watch_response::Kind};
use prost::Message;

use bytes::Bytes;

use crate::{Entry, Resumed, Snapshot, Update};

/// The most bytes of entries in one part of a snapshot or of a delta; a part has at least one entry.
const PART_BYTES: usize = 1024 * 1024;

/// Splits an update into messages: all but the last set `more`, so that the reader applies them as one change.
pub(super) fn split(
    update: Update,
    patches: Vec<Bytes>,
    mut age: impl FnMut(&Prefix) -> Duration,
) -> VecDeque<v1::WatchResponse> {
    let Update { revision, resumed, snapshots, puts, deletes } = update;
    let mut kinds: Vec<Kind> = Vec::new();
    for Resumed { prefix, .. } in resumed {
        let age_ms = milliseconds(age(&prefix));
        kinds.push(Kind::Resumed(v1::Resumed {
            prefix: prefix.to_string(),
            revision: Some(revision.into()),
            age_ms,
        }));
    }
    for snapshot in snapshots {
        let age = age(&snapshot.prefix);
        snapshot_parts(snapshot, revision, age, &mut kinds);
    }
    if kinds.is_empty() || !puts.is_empty() || !deletes.is_empty() {
        delta_parts(puts, &deletes, patches, revision, &mut kinds);
    }
    let last = kinds.len() - 1;
    kinds
        .into_iter()
        .enumerate()
        .map(|(i, kind)| v1::WatchResponse { kind: Some(kind), more: i < last })
        .collect()
}

/// Whether an update without snapshots and resumptions fits into about so many messages.
pub(super) fn fits(update: &Update, messages: usize) -> bool {
    let puts = update.puts.iter().map(|(key, entry)| key.len() + entry.value.len());
    let deletes = update.deletes.iter().map(|key| key.len());
    puts.chain(deletes).sum::<usize>() <= messages * PART_BYTES
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

pub(super) fn age_update(age: Duration) -> v1::WatchResponse {
    let update = v1::AgeUpdate { age_ms: milliseconds(age) };
    v1::WatchResponse { kind: Some(Kind::AgeUpdate(update)), more: false }
}

/// Rounded up: zero stands for a current copy.
pub(super) fn milliseconds(age: Duration) -> u64 {
    u64::try_from(age.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

pub(super) fn entry((key, entry): (Arc<str>, Entry)) -> v1::Entry {
    v1::Entry { key: key.to_string(), value: entry.value, revision: entry.revision }
}

/// The bytes of an update on a connection: its messages, each with a length of four bytes.
pub fn encoded_len(update: &Update) -> u64 {
    split(update.clone(), Vec::new(), |_| Duration::ZERO)
        .iter()
        .map(|message| 4 + message.encoded_len() as u64)
        .sum()
}

fn delta_parts(
    puts: Vec<(Arc<str>, Entry)>,
    deletes: &[Arc<str>],
    patches: Vec<Bytes>,
    revision: Revision,
    kinds: &mut Vec<Kind>,
) {
    let empty = || v1::Delta { revision: Some(revision.into()), ..v1::Delta::default() };
    let (mut part, mut bytes) = (empty(), 0);
    // A full part is sent, and the next one begins.
    let mut reserve = |part: &mut v1::Delta, size: usize| {
        if bytes + size > PART_BYTES && bytes > 0 {
            kinds.push(Kind::Delta(std::mem::replace(part, empty())));
            bytes = 0;
        }
        bytes += size;
    };
    for (key, value) in puts {
        reserve(&mut part, key.len() + value.value.len());
        part.puts.push(entry((key, value)));
    }
    for key in deletes {
        reserve(&mut part, key.len());
        part.deletes.push(key.to_string());
    }
    for patch in patches {
        reserve(&mut part, patch.len());
        part.patches.push(patch);
    }
    kinds.push(Kind::Delta(part));
}

fn snapshot_parts(snapshot: Snapshot, revision: Revision, age: Duration, kinds: &mut Vec<Kind>) {
    let empty = || v1::Snapshot {
        prefix: snapshot.prefix.to_string(),
        revision: Some(revision.into()),
        entries: Vec::new(),
        last: false,
        age_ms: milliseconds(age),
    };
    let (mut part, mut bytes) = (empty(), 0);
    for (key, value) in snapshot.entries {
        let size = key.len() + value.value.len();
        if bytes + size > PART_BYTES && !part.entries.is_empty() {
            kinds.push(Kind::Snapshot(std::mem::replace(&mut part, empty())));
            bytes = 0;
        }
        bytes += size;
        part.entries.push(entry((key, value)));
    }
    part.last = true;
    kinds.push(Kind::Snapshot(part));
}
