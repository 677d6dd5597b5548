use std::{sync::Arc, time::Duration};

use fairmesh_model::{Identity, Location, Prefix, Revision};
use fairmesh_rib::{
    Batch, Node,
    follower::FollowerHandle,
    server::{Backend, WriteError},
};
use tokio::sync::watch;

use crate::{ReplicaConfig, feed::Shared};

/// Serves what the replica holds.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaBackend {
    pub(crate) shared: Arc<Shared>,
    pub(crate) upstream: FollowerHandle,
    software: Arc<str>,
    /// Who is followed, for people.
    upstreams: Arc<str>,
}

impl ReplicaBackend {
    pub(crate) fn new(shared: Arc<Shared>, upstream: FollowerHandle, config: &ReplicaConfig) -> Self {
        let upstreams: Vec<String> = config.upstreams.iter().map(ToString::to_string).collect();
        let software = format!("replica {} {}", config.name, env!("CARGO_PKG_VERSION"));
        Self { shared, upstream, software: software.into(), upstreams: upstreams.join(" or ").into() }
    }
}

impl Backend for ReplicaBackend {
    fn node(&self) -> &Node {
        &self.shared.node
    }

    fn software(&self) -> String {
        self.software.to_string()
    }

    /// What answers here stands for no machine of the callers'.
    fn location(&self) -> Option<Location> {
        None
    }

    async fn write(&self, _: Batch, _: Identity) -> Result<Revision, WriteError> {
        Err(WriteError::NotWritable(format!(
            "a replica takes no writes; write to the control plane, which this one follows by way of {}",
            self.upstreams
        )))
    }

    /// Returns once anything is held: a copy from disk serves at once, with its age.
    async fn ready(&self, _: &Prefix) -> Result<(), String> {
        let mut ages = self.shared.ages();
        while !self.shared.holds() {
            // The sender lives in `self`, so this cannot fail.
            let _ = ages.changed().await;
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
        Some(self.shared.ages())
    }
}
