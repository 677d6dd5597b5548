//! Earlier values of configuration, stored in the RIB under keys that routers do not read.
//!
//! A value is stored under the revision that wrote it. A period without the record is stored too, so that
//! rolling back a creation deletes the record. Such a period has no revision of its own; it is stored under
//! the store's revision at its end, which lies between the revisions before and after it.
//!
//! Keys of one record sort in the order of its values. After an import, the store's revisions are lower than
//! those of the imported history. The next value is then stored under the number after the last one, until
//! the store's revisions have passed that number.
//!
//! The rules of a service have a history of their own. Values of its policy are therefore read without the copy of
//! the rules: rolling back a policy must not bring back rules that have been narrowed since.

use std::sync::Arc;

use bytes::Bytes;
use fairmesh_model::{Prefix, RecordKey, RecordKind, ServiceName};
use fairmesh_rib::{Entry, Node, Op};
use fairmesh_wire::{
    record_encoding::{self, History},
    v1,
};

use super::{authorization_rules, planned_write::Author};

/// Maximum number of earlier values that are kept per record.
pub const HISTORY_KEPT: usize = 20;

/// Returns the operations that save `current` before `value` replaces it, and drop the oldest values. Empty for records
/// without history. However often the rules of a policy change, it has one row, with the revision of its first write.
pub(super) fn save_ops(
    node: &Node,
    (key, value): (&RecordKey, Option<&Bytes>),
    current: Option<Entry>,
    read_at: u64,
    author: &Author,
) -> Vec<Op> {
    let Some(folder) = Folder::of(key) else { return Vec::new() };
    let rows: Vec<_> = rows(node, &folder).into_iter().map(|(key, _)| key).collect();
    let compared = |value: &Bytes| without_rules(key, value.clone());
    let now = current.as_ref().and_then(|entry| compared(&entry.value));
    let known = earlier(node, key).pop().filter(|(_, last)| now.is_some() && last.value == now);
    if known.is_some() && value.and_then(compared) == now {
        return Vec::new();
    }
    let written = current.as_ref().map(|entry| entry.revision);
    let at = known.as_ref().map(|(at, _)| *at);
    let at = at.unwrap_or_else(|| number(written.unwrap_or(read_at), last_number(&rows)));
    let earlier = History {
        key: key.clone(),
        revision: known.map(|(_, last)| last.revision).or(written).unwrap_or(0),
        value: current.map(|entry| entry.value),
        replaced_at_ms: author.at_ms,
        replaced_by: author.by.clone(),
        replaced_message: author.message.clone(),
    };
    let history_record_key: Arc<str> = folder.key(at).to_string().into();
    let mut kept = rows;
    kept.retain(|key| *key != history_record_key);
    let surplus = (kept.len() + 1).saturating_sub(HISTORY_KEPT);
    let dropped = kept.into_iter().take(surplus).map(Op::delete);
    dropped.chain([Op::put(history_record_key, record_encoding::encode_history(&earlier))]).collect()
}

/// Returns the current and earlier values, newest first. Empty if the record never existed. Policies are without rules,
/// and a write that changed only their rules is no change of theirs.
pub(crate) fn changes(node: &Node, key: &RecordKey) -> Vec<v1::Change> {
    let earlier = earlier(node, key);
    let current = authorization_rules::current(node, key);
    if earlier.is_empty() && current.is_none() {
        return Vec::new();
    }
    let last = earlier.last().map(|(number, _)| *number);
    let now = v1::Change {
        revision: current.as_ref().map_or(0, |entry| number(entry.revision, last)),
        stored_revision: current.as_ref().map_or(0, |entry| entry.revision),
        value: current.and_then(|entry| without_rules(key, entry.value)),
        ..v1::Change::default()
    };
    let then = earlier.into_iter().rev().map(|(revision, history)| v1::Change {
        revision,
        value: history.value,
        replaced_at_ms: history.replaced_at_ms,
        replaced_by: history.replaced_by,
        replaced_message: history.replaced_message,
        ..v1::Change::default()
    });
    let mut changes: Vec<v1::Change> = Vec::new();
    for change in [now].into_iter().chain(then) {
        match changes.last_mut() {
            // The newer write changed only rules: the value dates from the older one.
            Some(newer) if change.value.is_some() && newer.value == change.value => {
                newer.revision = change.revision
            }
            _ => changes.push(change),
        }
    }
    changes
}

/// Removes from a policy its copy of the rules; other records, and policies that cannot be read, stay as they are.
fn without_rules(key: &RecordKey, value: Bytes) -> Option<Bytes> {
    let is_readable = || record_encoding::decode(key, &value).is_ok();
    match key {
        RecordKey::Policy(_) if record_encoding::rules_of(&value).is_some() && is_readable() => {
            record_encoding::with_rules(Some(&value), None)
        }
        _ => Some(value),
    }
}

/// Returns the history number for a value written at `revision`. `last` is the last number of earlier values.
fn number(revision: u64, last: Option<u64>) -> u64 {
    revision.max(last.map_or(0, |last| last.saturating_add(1)))
}

/// The highest number among these history entries.
fn last_number(keys: &[Arc<str>]) -> Option<u64> {
    keys.iter().rev().find_map(|key| match RecordKey::parse(key) {
        Ok(RecordKey::History(_, _, at) | RecordKey::MeshHistory(_, at)) => Some(at),
        _ => None,
    })
}

/// Reason why a rollback is not possible.
#[derive(Debug, thiserror::Error)]
pub(super) enum MissingValue {
    #[error("{0} has no earlier value to roll back to")]
    NoneKept(String),
    #[error("no value of {record} at revision {revision} is kept; choose one of {kept}")]
    NotKept { record: String, revision: u64, kept: String },
}

/// The value of the record at `revision`, of a policy without its rules; with 0, the last value that differs from the
/// current one. `None` if the record did not exist.
///
/// # Errors
/// No such value is stored.
pub(super) fn value_at(node: &Node, key: &RecordKey, revision: u64) -> Result<Option<Bytes>, MissingValue> {
    let earlier = earlier(node, key);
    let last = earlier.last().map(|(number, _)| *number);
    let current = node.get(&key.to_string());
    let is_wanted = current.as_ref().is_some_and(|entry| number(entry.revision, last) == revision);
    let current = current.and_then(|entry| without_rules(key, entry.value));
    if is_wanted {
        return Ok(current);
    }
    let known: Vec<_> = earlier.iter().map(|(revision, _)| revision.to_string()).collect();
    let found = match revision {
        0 => earlier.into_iter().rev().find(|(_, history)| history.value != current),
        wanted => earlier.into_iter().find(|(revision, _)| *revision == wanted),
    };
    found.map(|(_, history)| history.value).ok_or_else(|| {
        let (record, kept) = (describe(key), known.join(", "));
        match kept.is_empty() || revision == 0 {
            true => MissingValue::NoneKept(record),
            false => MissingValue::NotKept { record, revision, kept },
        }
    })
}

/// The name of a record in messages.
pub(super) fn describe(key: &RecordKey) -> String {
    match (key.kind().kept_name(), key.service()) {
        (Some(kind), Some(service)) => format!("the record {kind} of {service}"),
        (Some(kind), None) => format!("the record {kind} of the mesh"),
        (None, _) => key.to_string(),
    }
}

/// The folder with a record's earlier values.
struct Folder<'a> {
    kind: RecordKind,
    /// The service of the record; `None` for records of the mesh.
    service: Option<&'a ServiceName>,
}

impl<'a> Folder<'a> {
    /// The history folder of a record; `None` if the kind keeps no earlier values.
    fn of(key: &'a RecordKey) -> Option<Self> {
        let kind = key.kind();
        kind.kept_name().map(|_| Self { kind, service: key.service() })
    }

    fn key(&self, at: u64) -> RecordKey {
        match self.service {
            Some(service) => RecordKey::History(self.kind, service.clone(), at),
            None => RecordKey::MeshHistory(self.kind, at),
        }
    }

    fn prefix(&self) -> Prefix {
        match self.service {
            Some(service) => Prefix::history(self.kind, service),
            None => Prefix::mesh_history(self.kind),
        }
    }
}

/// Earlier values with their revisions, oldest first; policies are without rules. Values that cannot be decoded are skipped.
fn earlier(node: &Node, key: &RecordKey) -> Vec<(u64, History)> {
    let Some(folder) = Folder::of(key) else { return Vec::new() };
    let read = |(history_record_key, entry): (Arc<str>, Entry)| match RecordKey::parse(&history_record_key) {
        Ok(RecordKey::History(_, _, at) | RecordKey::MeshHistory(_, at)) => {
            let mut history = record_encoding::decode_history(&entry.value).ok()?;
            history.value = history.value.and_then(|value| without_rules(key, value));
            Some((at, history))
        }
        _ => None,
    };
    rows(node, &folder).into_iter().filter_map(read).collect()
}

fn rows(node: &Node, folder: &Folder<'_>) -> Vec<(Arc<str>, Entry)> {
    node.read(&[folder.prefix()]).1
}
