//! Applies the upstream's updates to the node, and records changed keys for the writer to disk.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{Prefix, RecordKey};
use fairmesh_rib::{
    Node, Update,
    access::AccessControl,
    follower::{Freshness, Sink},
};
use fairmesh_store::ReplicaContents;
use fairmesh_wire::transport::Transport;
use tokio::{sync::watch, time::Instant};

use crate::disk_writer::{Disk, wall_clock};

/// State shared by the parts of a replica.
#[derive(Debug)]
pub(crate) struct ReplicaState {
    pub(crate) node: Node,
    /// Authorizes reads and calls.
    pub(crate) access: AccessControl,
    /// Freshness of the replica's only subscription.
    freshness: Mutex<Freshness>,
    pub(crate) disk: Disk,
    /// Notified when the first copy arrives, and when the copy starts or stops aging.
    age_changes: watch::Sender<u64>,
    pub(crate) deltas: AtomicU64,
    pub(crate) snapshots: AtomicU64,
}

/// Receives the updates of the replica's upstream.
#[derive(Debug)]
pub(crate) struct UpstreamSink {
    shared: Arc<ReplicaState>,
    transport: Transport,
    /// Key of the trust bundle's record.
    bundle: String,
    is_secured: bool,
}

impl UpstreamSink {
    /// Creates a sink that applies updates to `shared`. Once the records contain a trust domain, the sink informs
    /// `transport`.
    pub(crate) fn new(shared: Arc<ReplicaState>, transport: Transport) -> Self {
        let mut sink =
            Self { shared, transport, bundle: RecordKey::TrustBundle.to_string(), is_secured: false };
        sink.secure();
        sink
    }

    /// Requires peers to have an identity once the records contain a trust domain.
    fn secure(&mut self) {
        if !self.is_secured && self.shared.node.get(&self.bundle).is_some() {
            self.is_secured = true;
            self.transport.require_identity();
        }
    }
}

impl Sink for UpstreamSink {
    const TAKES_PATCHES: bool = true;

    fn patch_base(&self, key: &str) -> Option<Bytes> {
        self.shared.node.get(key).map(|entry| entry.value)
    }

    fn update(&mut self, update: Update) {
        self.shared.update(update);
        self.secure();
    }

    fn refused(&mut self, _: &Prefix, reason: &str) {
        tracing::warn!(reason, "the upstream does not serve replicas");
    }

    fn age_update(&mut self, age: Duration) {
        self.shared.freshness().set_age(age, Instant::now());
        self.shared.notify_age_change();
    }

    fn disconnected(&mut self) {
        self.shared.freshness().disconnected(Instant::now());
        self.shared.notify_age_change();
    }
}

impl ReplicaState {
    pub(crate) fn new(disk: Disk) -> Self {
        let node = Node::replica();
        Self {
            access: AccessControl::new(node.clone()),
            node,
            freshness: Mutex::default(),
            disk,
            age_changes: watch::Sender::new(0),
            deltas: AtomicU64::new(0),
            snapshots: AtomicU64::new(0),
        }
    }

    /// Restores the node from the copy on disk.
    pub(crate) fn restore(&self, held: ReplicaContents) {
        let ReplicaContents { revision, at, entries, floor, log } = held;
        let age = wall_clock().duration_since(at).unwrap_or_default();
        let (store, keys) = (revision.store, entries.len());
        tracing::info!(%revision, %store, keys, ?age, "starting from the copy on disk");
        *self.freshness() = Freshness::Held { at: Instant::now(), age };
        self.node.restore_with_log(revision, floor, entries, log);
        self.access.changed();
    }

    /// Returns the maximum age of the copy; zero while connected up to the source.
    pub(crate) fn age(&self) -> Duration {
        self.freshness().age(Instant::now())
    }

    /// Whether there is a copy.
    pub(crate) fn has_copy(&self) -> bool {
        *self.freshness() != Freshness::Missing
    }

    /// Returns a receiver that is notified when the first copy arrives, and when the copy starts or stops aging.
    pub(crate) fn age_changes(&self) -> watch::Receiver<u64> {
        self.age_changes.subscribe()
    }

    fn freshness(&self) -> MutexGuard<'_, Freshness> {
        // No code under this lock panics.
        self.freshness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_age_change(&self) {
        self.age_changes.send_modify(|ticks| *ticks += 1);
    }

    fn update(&self, update: Update) {
        let snapshots = update.snapshots.iter().map(|snapshot| snapshot.age);
        let entered = snapshots.chain(update.resumed.iter().map(|resumed| resumed.age)).max();
        self.snapshots.fetch_add(update.snapshots.len() as u64, Relaxed);
        self.deltas.fetch_add(u64::from(!update.puts.is_empty() || !update.deletes.is_empty()), Relaxed);
        // The lock is held while the node changes, so that each write to the file has the node's state at one
        // revision.
        let mut dirty = self.disk.dirty();
        let concerns_access = !update.snapshots.is_empty()
            || update.puts.iter().any(|(key, _)| AccessControl::concerns(key))
            || update.deletes.iter().any(|key| AccessControl::concerns(key));
        match self.node.apply_update(update) {
            Ok(changed) => {
                if concerns_access {
                    self.access.changed();
                }
                dirty.add(changed);
            }
            // The follower refuses updates from lagging upstreams, so this is a bug.
            Err(behind) => return tracing::error!(%behind, "an update was dropped"),
        }
        drop(dirty);
        if let Some(age) = entered {
            *self.freshness() = Freshness::Followed { at: Instant::now(), age };
            self.notify_age_change();
        }
    }
}
