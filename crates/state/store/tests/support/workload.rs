//! Several writers; each writes numbered batches one after the other.
//!
//! Batch `b` of writer `w` puts three keys in the slot `b % SLOTS`, advances the writer's mark by compare-and-set on
//! its previous revision, and replaces one key with the next. Any state of the store therefore shows which batches it
//! contains and whether each batch is complete. Every batch takes one revision, so the state also shows gaps in
//! revisions.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use fairmesh_model::arith::mix64;
use fairmesh_rib::{Batch, Entry, Expect};
use fairmesh_store::{RedbStore, Store, StoreSnapshot};

use super::{batch, delete, put};

pub(crate) const WRITERS: u64 = 4;
const SLOTS: u64 = 50;
const PARTS: u64 = 3;

/// An acknowledged batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) writer: u64,
    pub(crate) number: u64,
    pub(crate) revision: u64,
}

/// Position of a writer: its last stored batch and the revision of that batch; zeros if there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    pub(crate) number: u64,
    pub(crate) revision: u64,
}

/// Returns unique content of up to a kilobyte, which begins with the batch number.
fn content(writer: u64, number: u64, part: u64) -> Bytes {
    let seed = mix64(writer << 48 | number << 8 | part);
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.extend((0..seed % 128).flat_map(|i| mix64(seed ^ i).to_be_bytes()));
    bytes.into()
}

fn next(writer: u64, mark: Mark) -> Batch {
    let number = mark.number + 1;
    let slot = number % SLOTS;
    let expect = if mark.number == 0 { Expect::Absent } else { Expect::Revision(mark.revision) };
    let mut ops: Vec<_> = (0..PARTS)
        .map(|part| put(format!("/slot/{writer}/{slot}/{part}"), content(writer, number, part), Expect::Any))
        .collect();
    ops.push(put(format!("/mark/{writer}"), content(writer, number, PARTS), expect));
    ops.push(put(format!("/one/{writer}/{number}"), "", Expect::Absent));
    ops.push(delete(format!("/one/{writer}/{}", mark.number), expect));
    batch(ops)
}

/// Writes as one writer until the store refuses a batch, at most `limit` batches, and reports each acknowledgement.
pub(crate) async fn write(
    store: Arc<RedbStore>,
    writer: u64,
    mut mark: Mark,
    limit: u64,
    mut acknowledged: impl FnMut(Acknowledged),
) {
    for _ in 0..limit {
        let Ok(revision) = store.write(next(writer, mark)).await else { return };
        mark = Mark { number: mark.number + 1, revision: revision.number };
        acknowledged(Acknowledged { writer, number: mark.number, revision: mark.revision });
    }
}

fn number_of(entry: &Entry) -> u64 {
    entry.value.first_chunk().map_or(0, |number| u64::from_be_bytes(*number))
}

/// Checks that the store has only complete batches, no gaps in revisions, and all acknowledged batches. Returns the
/// positions of the writers.
pub(crate) fn check(
    (revision, entries): &StoreSnapshot,
    acknowledged: &[Acknowledged],
) -> Result<Vec<Mark>, String> {
    let rows: BTreeMap<&str, &Entry> = entries.iter().map(|(key, entry)| (&**key, entry)).collect();
    let mut marks = Vec::new();
    let mut expected_rows = 0;
    for writer in 0..WRITERS {
        let mark = rows
            .get(&*format!("/mark/{writer}"))
            .map_or(Mark::default(), |entry| Mark { number: number_of(entry), revision: entry.revision });
        expected_rows += check_writer(&rows, writer, mark)?;
        marks.push(mark);
    }
    if rows.len() != expected_rows {
        return Err(format!("{} rows instead of {expected_rows}: a batch is stored in part", rows.len()));
    }
    let stored: u64 = marks.iter().map(|mark| mark.number).sum();
    if stored != *revision {
        return Err(format!("revision {revision} after {stored} batches"));
    }
    for a in acknowledged {
        let mark = marks[usize::try_from(a.writer).unwrap()];
        if mark.number < a.number || mark.revision < a.revision {
            return Err(format!("lost: {a:?}, the writer is at {mark:?}"));
        }
        if mark.number == a.number && mark.revision != a.revision {
            return Err(format!("{a:?} has another revision now: {mark:?}"));
        }
    }
    Ok(marks)
}

/// Checks every batch of a writer whose keys are not overwritten yet. Returns the writer's expected number of keys.
fn check_writer(rows: &BTreeMap<&str, &Entry>, writer: u64, mark: Mark) -> Result<usize, String> {
    let oldest = (mark.number + 1).saturating_sub(SLOTS).max(1);
    for number in oldest..=mark.number {
        let mut revisions = Vec::new();
        for part in 0..PARTS {
            let key = format!("/slot/{writer}/{}/{part}", number % SLOTS);
            match rows.get(&*key) {
                Some(entry) if entry.value == content(writer, number, part) => revisions.push(entry.revision),
                _ => return Err(format!("{key} is not of batch {number}: it is stored in part")),
            }
        }
        if revisions.iter().any(|revision| *revision != revisions[0]) {
            return Err(format!("batch {number} of writer {writer} has revisions {revisions:?}"));
        }
        if number == mark.number && revisions[0] != mark.revision {
            return Err(format!("batch {number} of writer {writer} and its mark differ in revision"));
        }
    }
    let kept = usize::try_from(mark.number.min(SLOTS) * PARTS).unwrap();
    if mark.number == 0 {
        return Ok(0);
    }
    if !rows.contains_key(&*format!("/one/{writer}/{}", mark.number)) {
        return Err(format!("the last batch of writer {writer} is stored in part"));
    }
    Ok(kept + 2)
}
