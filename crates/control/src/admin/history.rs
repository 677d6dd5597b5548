//! Earlier values of services and policies. They stand in the RIB beside what they are about, outside what routers read.
//!
//! A value is kept under the revision that wrote it. A time without the record is kept too, so that going back over a
//! creation deletes; it has no revision of its own and stands under the store's revision at which it ended, which lies
//! between the revisions of the values around it.

use std::sync::Arc;

use bytes::Bytes;
use fairmesh_model::{HistoryKind, Prefix, RecordKey, ServiceName};
use fairmesh_rib::{Entry, Node, Op};
use fairmesh_wire::{
    records::{self, History},
    v1,
};

use super::plan::Author;

/// How many earlier values of a record are kept.
pub const HISTORY_KEPT: usize = 20;

/// The writes that keep `current` before it is replaced, and drop what is too old. None for records without history.
pub(super) fn keep(
    node: &Node,
    key: &RecordKey,
    current: Option<Entry>,
    read_at: u64,
    author: &Author,
) -> Vec<Op> {
    let Some((kind, service)) = subject(key) else { return Vec::new() };
    let at = current.as_ref().map_or(read_at, |entry| entry.revision);
    let earlier = History {
        key: key.clone(),
        revision: current.as_ref().map_or(0, |entry| entry.revision),
        value: current.map(|entry| entry.value),
        replaced_at_ms: author.at_ms,
        replaced_by: author.by.clone(),
    };
    let place: Arc<str> = RecordKey::History(kind, service.clone(), at).to_string().into();
    let mut kept: Vec<_> = rows(node, kind, service).into_iter().map(|(key, _)| key).collect();
    kept.retain(|key| *key != place);
    let surplus = (kept.len() + 1).saturating_sub(HISTORY_KEPT);
    let dropped = kept.into_iter().take(surplus).map(Op::delete);
    dropped.chain([Op::put(place, records::encode_history(&earlier))]).collect()
}

/// The current value and the earlier ones, newest first. Nothing when the record never existed.
pub(super) fn changes(node: &Node, key: &RecordKey) -> Vec<v1::Change> {
    let earlier = earlier(node, key);
    let current = node.get(&key.to_string());
    if earlier.is_empty() && current.is_none() {
        return Vec::new();
    }
    let now = v1::Change {
        revision: current.as_ref().map_or(0, |entry| entry.revision),
        value: current.map(|entry| entry.value),
        replaced_at_ms: 0,
        replaced_by: String::new(),
    };
    let then = earlier.into_iter().rev().map(|(revision, history)| v1::Change {
        revision,
        value: history.value,
        replaced_at_ms: history.replaced_at_ms,
        replaced_by: history.replaced_by,
    });
    [now].into_iter().chain(then).collect()
}

/// The value that the record had at `revision`, or before the current one where that is 0; `None` when it did not exist.
///
/// # Errors
/// Which revisions there are.
pub(super) fn value_at(node: &Node, key: &RecordKey, revision: u64) -> Result<Option<Bytes>, String> {
    let current = node.get(&key.to_string()).filter(|entry| entry.revision == revision);
    if let Some(entry) = current {
        return Ok(Some(entry.value));
    }
    let earlier = earlier(node, key);
    let known: Vec<_> = earlier.iter().map(|(revision, _)| revision.to_string()).collect();
    let found = match revision {
        0 => earlier.into_iter().next_back(),
        asked => earlier.into_iter().find(|(revision, _)| *revision == asked),
    };
    found.map(|(_, history)| history.value).ok_or_else(|| match known.len() {
        0 => format!("{} has no earlier value to go back to", words(key)),
        _ => format!(
            "no value of {} at revision {revision} is kept; choose one of {}",
            words(key),
            known.join(", ")
        ),
    })
}

/// What a person calls the record.
pub(super) fn words(key: &RecordKey) -> String {
    match subject(key) {
        Some((HistoryKind::Services, service)) => format!("the declaration of {service}"),
        Some((HistoryKind::Policies, service)) => format!("a policy of {service}"),
        None => key.to_string(),
    }
}

/// Earlier values with what they are called, oldest first. One that cannot be read is passed over.
fn earlier(node: &Node, key: &RecordKey) -> Vec<(u64, History)> {
    let Some((kind, service)) = subject(key) else { return Vec::new() };
    let read = |(place, entry): (Arc<str>, Entry)| match RecordKey::parse(&place) {
        Ok(RecordKey::History(_, _, at)) => {
            records::decode_history(&entry.value).ok().map(|history| (at, history))
        }
        _ => None,
    };
    rows(node, kind, service).into_iter().filter_map(read).collect()
}

fn rows(node: &Node, kind: HistoryKind, service: &ServiceName) -> Vec<(Arc<str>, Entry)> {
    node.read(&[Prefix::history(kind, service)]).1
}

fn subject(key: &RecordKey) -> Option<(HistoryKind, &ServiceName)> {
    match key {
        RecordKey::Service(service) => Some((HistoryKind::Services, service)),
        RecordKey::Policy(service) => Some((HistoryKind::Policies, service)),
        _ => None,
    }
}
