use std::{sync::Arc, time::Duration};

use fairmesh_model::{Identity, Location, Prefix, Revision};
use fairmesh_rib::{
    Batch, Node,
    access::Caller,
    follower::FollowerHandle,
    server::{ServedRib, WriteError},
};
use tokio::sync::watch;

use crate::{ReplicaConfig, upstream_sink::ReplicaState};

/// Serves the replica's node.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaRib {
    pub(crate) shared: Arc<ReplicaState>,
    pub(crate) upstream: FollowerHandle,
    software: Arc<str>,
    /// Addresses of the upstreams, shown to operators.
    upstreams: Arc<str>,
}

impl ReplicaRib {
    pub(crate) fn new(shared: Arc<ReplicaState>, upstream: FollowerHandle, config: &ReplicaConfig) -> Self {
        let upstreams: Vec<String> = config.upstreams.iter().map(ToString::to_string).collect();
        let software = format!("replica {} {}", config.name, env!("CARGO_PKG_VERSION"));
        Self { shared, upstream, software: software.into(), upstreams: upstreams.join(" or ").into() }
    }
}

impl ServedRib for ReplicaRib {
    fn node(&self) -> &Node {
        &self.shared.node
    }

    fn software(&self) -> String {
        self.software.to_string()
    }

    /// A replica is on another machine than its callers, so it has no location to send.
    fn location(&self) -> Option<Location> {
        None
    }

    async fn write(&self, _: Batch, _: Identity) -> Result<Revision, WriteError> {
        Err(WriteError::NotWritable(format!(
            "a replica takes no writes; write to the control plane, which this one follows through {}",
            self.upstreams
        )))
    }

    fn permits(&self, caller: &Caller, prefix: &Prefix) -> Result<(), String> {
        // Without records, the caller's permissions are unknown.
        if matches!(caller.identity, Identity::Spiffe(_)) && !self.shared.has_copy() {
            return Err("this replica has no copy yet; it cannot tell what this caller may read".into());
        }
        self.shared.access.permits(caller, prefix)
    }

    fn permission_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.shared.access.changes())
    }

    /// Waits until the replica has a copy. A copy from disk is served at once, with its age.
    async fn ready(&self, _: &Prefix) -> Result<(), String> {
        let mut changes = self.shared.age_changes();
        while !self.shared.has_copy() {
            // The sender lives in `self`, so the wait cannot fail.
            let _ = changes.changed().await;
        }
        Ok(())
    }

    fn age(&self, _: &Prefix) -> Duration {
        self.max_age()
    }

    fn max_age(&self) -> Duration {
        self.shared.age()
    }

    fn age_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.shared.age_changes())
    }
}
