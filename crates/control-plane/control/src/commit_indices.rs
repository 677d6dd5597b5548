use std::sync::Arc;

use fairmesh_rib::{Commit, Entry, Node, access::AccessControl};

use crate::{
    audit::AuditLog,
    endpoint_counts::EndpointCounts,
    health_checks::{CheckIndex, Woken},
    planner_facts::FactsIndex,
};

/// Indices that commits update together with the node. Without them, code would search all records. Clones share
/// their state.
#[derive(Clone, Debug)]
pub(crate) struct Indices {
    pub(crate) endpoint_counts: Arc<EndpointCounts>,
    pub(crate) checks: Arc<CheckIndex>,
    pub(crate) facts: Arc<FactsIndex>,
    pub(crate) access: AccessControl,
    pub(crate) audit: AuditLog,
}

impl Indices {
    /// Creates empty indices for a node.
    pub(crate) fn new(node: &Node, audit: AuditLog) -> Self {
        let (endpoint_counts, checks, facts) = Default::default();
        Self { endpoint_counts, checks, facts, access: AccessControl::new(node.clone()), audit }
    }

    /// Builds the indices from all records.
    pub(crate) fn load(&self, entries: &[(Arc<str>, Entry)]) {
        self.endpoint_counts.load(entries);
        self.checks.load(entries);
        self.facts.load(entries);
        self.access.changed();
    }

    /// Whether a commit changes records that decide what callers may do.
    pub(crate) fn concerns_access(commit: &Commit) -> bool {
        commit.changes.iter().any(|(key, _)| AccessControl::concerns(key))
    }

    /// Indexes a commit that the node has not applied yet. Wake the returned tasks only after the node has
    /// applied it, because they read the node.
    pub(crate) fn apply(&self, commit: &Commit, node: &Node) -> Woken {
        self.endpoint_counts.apply(commit);
        self.facts.apply(commit, node);
        self.audit.observe(commit, node);
        self.checks.apply(commit, node)
    }
}
