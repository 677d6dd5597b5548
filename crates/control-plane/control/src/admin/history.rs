//! Earlier values of configuration, stored in the RIB under keys that routers do not read.
//!
//! A value is stored under the revision that wrote it. A period without the record is stored too, so that a rollback
//! over a creation deletes; it has no revision of its own, and is stored under the store's revision at which it ended,
//! which lies between the revisions of the values around it.
//!
//! Keys of one record ascend in the order of its values. After an import the revisions of this store begin below those that
//! the imported history is stored under: its next value is stored under the number after the last one, until the store's
//! revisions have passed it.

use std::sync::Arc;

use bytes::Bytes;
use fairmesh_model::{HistoryKind, MeshHistoryKind, Prefix, RecordKey, ServiceName};
use fairmesh_rib::{Entry, Node, Op};
use fairmesh_wire::{
    records::{self, History},
    v1,
};

use super::{planned_write::Author, rules};

/// Number of earlier values kept for a record.
pub const HISTORY_KEPT: usize = 20;

/// The writes that save `current` before it is replaced, and drop the oldest values. None for records without history.
pub(super) fn save_ops(
    node: &Node,
    key: &RecordKey,
    current: Option<Entry>,
    read_at: u64,
    author: &Author,
) -> Vec<Op> {
    let Some(folder) = Folder::of(key) else { return Vec::new() };
    let rows: Vec<_> = rows(node, &folder).into_iter().map(|(key, _)| key).collect();
    let at = number(current.as_ref().map_or(read_at, |entry| entry.revision), last_number(&rows));
    let earlier = History {
        key: key.clone(),
        revision: current.as_ref().map_or(0, |entry| entry.revision),
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
    dropped.chain([Op::put(history_record_key, records::encode_history(&earlier))]).collect()
}

/// The current value and the earlier ones, newest first. Empty if the record never existed.
pub(super) fn changes(node: &Node, key: &RecordKey) -> Vec<v1::Change> {
    let earlier = earlier(node, key);
    let current = rules::current(node, key);
    if earlier.is_empty() && current.is_none() {
        return Vec::new();
    }
    let last = earlier.last().map(|(number, _)| *number);
    let now = v1::Change {
        revision: current.as_ref().map_or(0, |entry| number(entry.revision, last)),
        stored_revision: current.as_ref().map_or(0, |entry| entry.revision),
        value: current.map(|entry| entry.value),
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
    [now].into_iter().chain(then).collect()
}

/// The number of a value that revision `revision` wrote, after the values up to number `last`.
fn number(revision: u64, last: Option<u64>) -> u64 {
    revision.max(last.map_or(0, |last| last.saturating_add(1)))
}

/// The number of the last of these history entries.
fn last_number(keys: &[Arc<str>]) -> Option<u64> {
    keys.iter().rev().find_map(|key| match RecordKey::parse(key) {
        Ok(RecordKey::History(_, _, at) | RecordKey::MeshHistory(_, at)) => Some(at),
        _ => None,
    })
}

/// The value that the record had at `revision`, or before the current one where that is 0; `None` when it did not
/// exist.
///
/// # Errors
/// A message with the existing revisions.
pub(super) fn value_at(node: &Node, key: &RecordKey, revision: u64) -> Result<Option<Bytes>, String> {
    let earlier = earlier(node, key);
    let last = earlier.last().map(|(number, _)| *number);
    let current = node.get(&key.to_string()).filter(|entry| number(entry.revision, last) == revision);
    if let Some(entry) = current {
        return Ok(Some(entry.value));
    }
    let known: Vec<_> = earlier.iter().map(|(revision, _)| revision.to_string()).collect();
    let found = match revision {
        0 => earlier.into_iter().next_back(),
        wanted => earlier.into_iter().find(|(revision, _)| *revision == wanted),
    };
    found.map(|(_, history)| history.value).ok_or_else(|| match known.len() {
        0 => format!("{} has no earlier value to roll back to", describe(key)),
        _ => format!(
            "no value of {} at revision {revision} is kept; choose one of {}",
            describe(key),
            known.join(", ")
        ),
    })
}

/// The record in words, for messages.
pub(super) fn describe(key: &RecordKey) -> String {
    match Folder::of(key) {
        Some(Folder::Service(HistoryKind::Services, service)) => format!("the declaration of {service}"),
        Some(Folder::Service(HistoryKind::Policies, service)) => format!("a policy of {service}"),
        Some(Folder::Service(HistoryKind::Workloads, service)) => format!("a workload of {service}"),
        Some(Folder::Service(HistoryKind::Authorizations, service)) => {
            format!("the authorization of {service}")
        }
        Some(Folder::Mesh(kind)) => format!("the record {} of the mesh", kind.as_str()),
        None => key.to_string(),
    }
}

/// Where the earlier values of a record are.
enum Folder<'a> {
    Service(HistoryKind, &'a ServiceName),
    Mesh(MeshHistoryKind),
}

impl<'a> Folder<'a> {
    /// The folder of a record; `None` if it has no history.
    fn of(key: &'a RecordKey) -> Option<Self> {
        match key {
            RecordKey::Service(service) => Some(Self::Service(HistoryKind::Services, service)),
            RecordKey::Policy(service) => Some(Self::Service(HistoryKind::Policies, service)),
            RecordKey::Workload(service) => Some(Self::Service(HistoryKind::Workloads, service)),
            RecordKey::Authorization(service) => Some(Self::Service(HistoryKind::Authorizations, service)),
            _ => MeshHistoryKind::of(key).map(Self::Mesh),
        }
    }

    fn key(&self, at: u64) -> RecordKey {
        match self {
            Self::Service(kind, service) => RecordKey::History(*kind, (*service).clone(), at),
            Self::Mesh(kind) => RecordKey::MeshHistory(*kind, at),
        }
    }

    fn prefix(&self) -> Prefix {
        match self {
            Self::Service(kind, service) => Prefix::history(*kind, service),
            Self::Mesh(kind) => Prefix::mesh_history(*kind),
        }
    }
}

/// Earlier values with their revisions, oldest first. Values that cannot be decoded are skipped.
fn earlier(node: &Node, key: &RecordKey) -> Vec<(u64, History)> {
    let Some(folder) = Folder::of(key) else { return Vec::new() };
    let read = |(history_record_key, entry): (Arc<str>, Entry)| match RecordKey::parse(&history_record_key) {
        Ok(RecordKey::History(_, _, at) | RecordKey::MeshHistory(_, at)) => {
            records::decode_history(&entry.value).ok().map(|history| (at, history))
        }
        _ => None,
    };
    rows(node, &folder).into_iter().filter_map(read).collect()
}

fn rows(node: &Node, folder: &Folder<'_>) -> Vec<(Arc<str>, Entry)> {
    node.read(&[folder.prefix()]).1
}
