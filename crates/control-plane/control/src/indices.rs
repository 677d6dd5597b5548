use std::sync::Arc;

use fairmesh_rib::{Commit, Entry, Node, access::AccessControl};

use crate::{
    audit::AuditLog,
    endpoint_counts::EndpointCounts,
    facts::FactsIndex,
    health_checks::{CheckIndex, Woken},
};

/// What is kept up to date beside the node, commit by commit, for parts that would have to search all records for it.
/// Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct Indices {
    pub(crate) endpoint_counts: Arc<EndpointCounts>,
    pub(crate) checks: Arc<CheckIndex>,
    pub(crate) facts: Arc<FactsIndex>,
    pub(crate) access: AccessControl,
    pub(crate) audit: AuditLog,
}

impl Indices {
    /// Empty ones, beside a node.
    pub(crate) fn new(node: &Node, audit: AuditLog) -> Self {
        let (endpoint_counts, checks, facts) = Default::default();
        Self { endpoint_counts, checks, facts, access: AccessControl::new(node.clone()), audit }
    }

    /// Starts from all records.
    pub(crate) fn load(&self, entries: &[(Arc<str>, Entry)]) {
        self.endpoint_counts.load(entries);
        self.checks.load(entries);
        self.facts.load(entries);
        self.access.changed();
    }

    /// Whether decisions on callers rest on what a commit changes.
    pub(crate) fn concerns_access(commit: &Commit) -> bool {
        commit.changes.iter().any(|(key, _)| AccessControl::concerns(key))
    }

    /// Takes a commit that the node does not have yet. The tasks that it wakes are to be woken once the node has it, which
    /// they read.
    pub(crate) fn apply(&self, commit: &Commit, node: &Node) -> Woken {
        self.endpoint_counts.apply(commit);
        self.facts.apply(commit, node);
        self.audit.observe(commit, node);
        self.checks.apply(commit, node)
    }
}
