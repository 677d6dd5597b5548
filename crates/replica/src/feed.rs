//! Where what the upstream sends goes: into the node, and from there to watchers and disk.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::Prefix;
use fairmesh_rib::{
    Node, Update,
    follower::{Freshness, Sink},
};
use fairmesh_store::ReplicaContents;
use tokio::{sync::watch, time::Instant};

use crate::disk::{Disk, wall_clock};

/// What the parts of a replica share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) node: Node,
    /// How everything stands: there is one subscription only.
    standing: Mutex<Freshness>,
    pub(crate) disk: Disk,
    /// Ticks when what is held began or ceased to age, or came at all.
    ages: watch::Sender<u64>,
    pub(crate) deltas: AtomicU64,
    pub(crate) snapshots: AtomicU64,
}

/// The sink of the replica's upstream.
#[derive(Debug)]
pub(crate) struct Feed {
    shared: Arc<Shared>,
}

impl Feed {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl Sink for Feed {
    const TAKES_PATCHES: bool = true;

    fn patch_base(&self, key: &str) -> Option<Bytes> {
        self.shared.node.get(key).map(|entry| entry.value)
    }

    fn update(&mut self, update: Update) {
        self.shared.update(update);
    }

    fn refused(&mut self, _: &Prefix, reason: &str) {
        tracing::warn!(reason, "the upstream does not serve replicas");
    }

    fn age_update(&mut self, age: Duration) {
        self.shared.standing().set_age(age, Instant::now());
        self.shared.aged();
    }

    fn disconnected(&mut self) {
        self.shared.standing().disconnected(Instant::now());
        self.shared.aged();
    }
}

impl Shared {
    pub(crate) fn new(disk: Disk) -> Self {
        Self {
            node: Node::replica(),
            standing: Mutex::default(),
            disk,
            ages: watch::Sender::new(0),
            deltas: AtomicU64::new(0),
            snapshots: AtomicU64::new(0),
        }
    }

    /// Starts with what was on disk.
    pub(crate) fn restore(&self, held: ReplicaContents) {
        let ReplicaContents { revision, at, entries, floor, log } = held;
        let age = wall_clock().duration_since(at).unwrap_or_default();
        tracing::info!(%revision, store = %revision.store, keys = entries.len(), ?age, "starting from the copy on disk");
        *self.standing() = Freshness::Held { at: Instant::now(), age };
        self.node.restore_with_log(revision, floor, entries, log);
    }

    /// How old what is held may be; zero where it is followed to the source.
    pub(crate) fn age(&self) -> Duration {
        self.standing().age(Instant::now())
    }

    /// Whether anything is held.
    pub(crate) fn holds(&self) -> bool {
        *self.standing() != Freshness::Missing
    }

    /// Ticks when what is held began or ceased to age, or came at all.
    pub(crate) fn ages(&self) -> watch::Receiver<u64> {
        self.ages.subscribe()
    }

    fn standing(&self) -> MutexGuard<'_, Freshness> {
        // Nothing that runs under the lock panics.
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn aged(&self) {
        self.ages.send_modify(|ticks| *ticks += 1);
    }

    fn update(&self, update: Update) {
        let snapshots = update.snapshots.iter().map(|snapshot| snapshot.age);
        let entered = snapshots.chain(update.resumed.iter().map(|resumed| resumed.age)).max();
        self.snapshots.fetch_add(update.snapshots.len() as u64, Relaxed);
        self.deltas.fetch_add(u64::from(!update.puts.is_empty() || !update.deletes.is_empty()), Relaxed);
        // Held over the change of the node, so that what is written is always what the node was at one revision.
        let mut dirty = self.disk.dirty();
        match self.node.apply_update(update) {
            Ok(changed) => dirty.add(changed),
            // The reader refuses upstreams that lag, so this is a fault of ours.
            Err(behind) => return tracing::error!(%behind, "an update is left out"),
        }
        drop(dirty);
        if let Some(age) = entered {
            *self.standing() = Freshness::Followed { at: Instant::now(), age };
            self.aged();
        }
    }
}
