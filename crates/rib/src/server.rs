//! Answers `fairmesh.v1.Rib` from a node: the same service at the control plane, replicas and agents.

use std::{future::Future, time::Duration};

use fairmesh_model::{Identity, Invalid, Location, Prefix, Revision};

use crate::{Batch, Conflict, Node};

/// What differs between those who serve the routing information base.
pub trait Backend: Clone + Send + Sync + 'static {
    /// What is served.
    fn node(&self) -> &Node;

    /// What the server says of itself in the handshake, for people: `control plane 0.1.0`.
    fn software(&self) -> String;

    /// Where it runs, told by agents to their callers.
    fn location(&self) -> Option<Location>;

    /// Writes a batch that is within all bounds and well formed, and returns once it is durable.
    fn write(
        &self,
        batch: Batch,
        identity: Identity,
    ) -> impl Future<Output = Result<Revision, WriteError>> + Send;

    /// Called before a prefix is first served to a watcher; returns when the node holds it. May be dropped half-way;
    /// each call is followed by one of [`Backend::unsubscribed`], whatever became of it.
    ///
    /// # Errors
    /// Why it cannot be served, for the caller.
    fn subscribed(&self, prefix: &Prefix) -> impl Future<Output = Result<(), String>> + Send;

    /// The watcher is done with the prefix.
    fn unsubscribed(&self, prefix: &Prefix);

    /// How old what the node holds of the prefix may be; zero where it is in touch with its upstream.
    fn age(&self, prefix: &Prefix) -> Duration;
}

/// Why a batch was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Somebody else wrote first.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// The batch is not well formed or out of bounds.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// This process takes no writes; the text says who does.
    #[error("{0}")]
    Elsewhere(String),
    /// The store failed; the text says how and what to do.
    #[error("{0}")]
    Failed(String),
}

/// Serves the node of a backend.
#[derive(Clone, Debug)]
pub struct RibServer<B> {
    backend: B,
}

impl<B: Backend> RibServer<B> {
    /// Serves what the backend holds.
    pub fn new(backend: B) -> Self {
        Self { backend }
    }
}
