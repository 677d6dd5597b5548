//! A watcher of all records, as a replica is one. It starts after the store is filled, and checks that all writes
//! arrive.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fairmesh_model::{Prefix, Revision};
use fairmesh_rib::{
    Update,
    follower::{Backoff, Follower, FollowerConfig, FollowerHandle, Sink},
};
use fairmesh_wire::transport::Address;
use tokio::sync::watch;

use super::write_target::{Keys, Written};

/// Timeout for the last write to arrive.
const PATIENCE: Duration = Duration::from_secs(60);

/// An open watch. Dropping it ends the watch.
pub(super) struct DeliveryCheck {
    seen: Arc<Mutex<Seen>>,
    at: watch::Receiver<u64>,
    handle: FollowerHandle,
}

#[derive(Default)]
struct Seen {
    keys: Keys,
    /// Number of times the watcher was too far behind and got a new snapshot.
    anew: usize,
    revision: Option<Revision>,
}

struct FollowedState {
    seen: Arc<Mutex<Seen>>,
    at: watch::Sender<u64>,
}

impl Sink for FollowedState {
    fn update(&mut self, update: Update) {
        let number = update.revision.number;
        let mut seen = lock(&self.seen);
        if !update.snapshots.is_empty() {
            // Keys missing in a snapshot are deleted.
            seen.keys = Keys::default();
            seen.anew += 1;
        }
        let snapshots = update.snapshots.iter().flat_map(|snapshot| &snapshot.entries);
        for (key, entry) in snapshots.chain(&update.puts) {
            seen.keys.note(key, entry.revision, true);
        }
        for key in &update.deletes {
            seen.keys.note(key, number, false);
        }
        seen.revision = Some(update.revision);
        self.at.send_replace(number);
    }

    fn refused(&mut self, prefix: &Prefix, reason: &str) {
        eprintln!("the watcher of {prefix} was refused: {reason}");
    }
}

impl DeliveryCheck {
    /// Follows all writes after `revision`.
    pub(super) async fn start(address: Address, revision: Revision) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let (tell, at) = watch::channel(0);
        let config = FollowerConfig {
            transport: Default::default(),
            addresses: vec![address],
            software: "bench".into(),
            backoff: Backoff::default(),
            refuse_lagging: false,
        };
        let handle = Follower::spawn(config, FollowedState { seen: seen.clone(), at: tell });
        handle.subscribe_from([(Prefix::everything(), revision)]);
        let mut began = at.clone();
        let _ = tokio::time::timeout(PATIENCE, began.changed()).await;
        Self { seen, at, handle }
    }

    /// Acknowledges received updates, as replicas do, until dropped.
    pub(super) async fn acknowledge(&self) {
        let mut at = self.at.clone();
        while at.changed().await.is_ok() {
            if let Some(revision) = lock(&self.seen).revision {
                self.handle.ack(revision);
            }
        }
    }

    /// Waits for the last write, and compares all keys. Returns how often the watcher got a new snapshot.
    pub(super) async fn check(&mut self, written: &Written) -> Result<usize, String> {
        let last = self.at.wait_for(|at| *at >= written.revision);
        let Ok(Ok(_)) = tokio::time::timeout(PATIENCE, last).await else {
            return Err(format!("revision {} did not come to the watcher", written.revision));
        };
        let seen = lock(&self.seen);
        match written.keys.missing_from(&seen.keys) {
            0 => Ok(seen.anew),
            missing => Err(format!(
                "{missing} of {} keys came to the watcher wrongly or not at all",
                written.keys.len()
            )),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
