use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use fairmesh_model::{Audit, RecordKind};
use fairmesh_rib::{Commit, Node};

use super::{AuditChange, AuditValue};

/// Maximum number of commits that wait for their writer. A writer takes its commit as soon as the node has
/// it; other commits belong to another control plane, and are dropped when there are too many.
const MAX_COMMITS: usize = 1024;

/// A key, with its values before and after the commit.
type Changed = (String, Option<Bytes>, Option<Bytes>);

/// Changes by commit revision, kept until their writers log them. They are taken from the sequence of
/// commits, because another writer may come between a read and a write.
#[derive(Debug, Default)]
pub(super) struct CommittedChanges(Mutex<BTreeMap<u64, Vec<Changed>>>);

impl CommittedChanges {
    pub(super) fn observe(&self, commit: &Commit, node: &Node) {
        let is_logged =
            |key: &str| RecordKind::of(key).is_none_or(|kind| kind.rules().audit != Audit::Omitted);
        let changes = commit.changes.iter().filter(|(key, _)| is_logged(key));
        let changes: Vec<_> = changes
            .map(|(key, after)| (key.to_string(), node.get(key).map(|entry| entry.value), after.clone()))
            .collect();
        if changes.is_empty() {
            return;
        }
        let mut commits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        commits.insert(commit.revision, changes);
        while commits.len() > MAX_COMMITS {
            commits.pop_first();
        }
    }

    pub(super) fn take(&self, revision: u64) -> Vec<AuditChange> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&revision);
        let value = |bytes: Option<Bytes>| bytes.map(|bytes| AuditValue::of(&bytes));
        let change = |(key, before, after)| AuditChange { key, before: value(before), after: value(after) };
        taken.into_iter().flatten().map(change).collect()
    }
}
