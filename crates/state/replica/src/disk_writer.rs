//! Saves changes to disk in batches soon after they occur, on a separate task.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use fairmesh_store::{ReplicaContents, ReplicaFile, ReplicaUpdate, StoreError};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{error::ReplicaError, upstream_sink::ReplicaState};

/// Minimum time between two writes; changes in between are batched.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which an unchanged copy is marked as current.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);
/// Pause after a failed write.
const SAVE_RETRY: Duration = Duration::from_secs(5);

/// The file with the copy, and the keys that are still to be written.
#[derive(Debug)]
pub(crate) struct Disk {
    file: Arc<Mutex<ReplicaFile>>,
    /// Keys whose entries in the file differ from those in the node.
    dirty: Mutex<BTreeSet<Arc<str>>>,
    wake: Notify,
    pub(crate) failures: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Revision of the file.
    pub(crate) saved: AtomicU64,
}

/// The locked dirty keys. Releasing the lock wakes the saver.
#[derive(Debug)]
pub(crate) struct DirtyKeysGuard<'a> {
    keys: MutexGuard<'a, BTreeSet<Arc<str>>>,
    wake: &'a Notify,
}

impl DirtyKeysGuard<'_> {
    pub(crate) fn add(&mut self, keys: impl IntoIterator<Item = Arc<str>>) {
        self.keys.extend(keys);
    }
}

impl Drop for DirtyKeysGuard<'_> {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

impl Disk {
    /// Opens the file and reads its content.
    pub(crate) async fn open(path: PathBuf) -> Result<(Self, Option<ReplicaContents>), ReplicaError> {
        // Joining fails only if opening panics; the panic is resumed here.
        let opened = tokio::task::spawn_blocking(move || ReplicaFile::open(path)).await;
        let (file, held) =
            opened.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))?;
        let disk = Self {
            bytes: AtomicU64::new(file.bytes()),
            saved: AtomicU64::new(held.as_ref().map_or(0, |held| held.revision.number)),
            file: Arc::new(Mutex::new(file)),
            dirty: Mutex::default(),
            wake: Notify::new(),
            failures: AtomicU64::new(0),
        };
        Ok((disk, held))
    }

    /// Locks the dirty keys. Lock order: the dirty keys before the node.
    pub(crate) fn dirty(&self) -> DirtyKeysGuard<'_> {
        DirtyKeysGuard { keys: self.keys(), wake: &self.wake }
    }

    fn keys(&self) -> MutexGuard<'_, BTreeSet<Arc<str>>> {
        // No code under this lock panics.
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReplicaState {
    /// Saves changes until `stopping`, then saves once more.
    pub(crate) async fn save_all(self: Arc<Self>, stopping: CancellationToken) {
        while !stopping.is_cancelled() {
            tokio::select! {
                () = self.disk.wake.notified() => {}
                () = sleep(CHECKPOINT_INTERVAL) => {}
                () = stopping.cancelled() => break,
            }
            let began = Instant::now();
            let wait = match self.save().await {
                // After a write, a slow disk stays idle for as long as the write took.
                true => began.elapsed().max(SAVE_INTERVAL),
                false => SAVE_RETRY,
            };
            tokio::select! {
                () = sleep(wait) => {}
                () = stopping.cancelled() => {}
            }
        }
        self.save().await;
    }

    /// Saves dirty keys. Returns whether everything is on disk. After a failure, the keys stay dirty and are retried.
    async fn save(&self) -> bool {
        if !self.has_copy() {
            return true;
        }
        let changes = Arc::new(self.changes());
        let (file, written) = (self.disk.file.clone(), changes.clone());
        let write = move || {
            // If a panic poisoned this lock, the next write reopens the file.
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            file.write(&written).map(|()| file.bytes())
        };
        let error = match tokio::task::spawn_blocking(write).await {
            Ok(Ok(bytes)) => {
                self.disk.bytes.store(bytes, Relaxed);
                self.disk.saved.store(changes.revision.number, Relaxed);
                return true;
            }
            Ok(Err(error)) => StoreError::to_string(&error),
            Err(panicked) => panicked.to_string(),
        };
        tracing::warn!(
            error,
            "cannot save the copy; a restart without upstream would lose the latest changes"
        );
        self.disk.failures.fetch_add(1, Relaxed);
        self.disk.keys().extend(changes.keys.iter().map(|(key, _)| key.clone()));
        false
    }

    /// Returns the entries of all dirty keys, at one revision.
    fn changes(&self) -> ReplicaUpdate {
        let mut dirty = self.disk.keys();
        let (revision, keys) = self.node.values(std::mem::take(&mut *dirty));
        let floor = self.node.floor();
        drop(dirty);
        let now = wall_clock();
        ReplicaUpdate { revision, at: now.checked_sub(self.age()).unwrap_or(now), floor, keys }
    }
}

/// Returns wall-clock time, which is needed for files that outlive a restart.
#[allow(clippy::disallowed_methods, reason = "ages of files must survive restarts, unlike a monotonic clock")]
pub(crate) fn wall_clock() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use fairmesh_model::{Revision, StoreId};
    use fairmesh_rib::{Entry, Update, follower::Sink};

    use super::*;
    use crate::upstream_sink::UpstreamSink;
    use fairmesh_wire::transport::Transport;

    const KEYS: u64 = 16;
    const REVISIONS: u64 = 20_000;

    /// Returns an update in which one key is written and another deleted.
    fn update(number: u64) -> Update {
        let revision = Revision { store: StoreId(1), partition: 0, number };
        let entry = Entry { value: Bytes::from(number.to_string()), revision: number };
        let puts = vec![(key(number), entry)];
        Update { puts, deletes: vec![key(number + KEYS / 2)], ..Update::empty(revision) }
    }

    fn key(number: u64) -> Arc<str> {
        format!("/{}", number % KEYS).into()
    }

    /// Returns the last revision that wrote each key, as of revision `number`.
    fn at(number: u64) -> BTreeMap<Arc<str>, u64> {
        let last = (number.saturating_sub(KEYS / 2) + 1).max(1)..=number;
        last.map(|number| (key(number), number)).collect()
    }

    #[tokio::test]
    async fn replica_saves_consistent_revisions_during_concurrent_updates() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, _) = Disk::open(folder.path().join("copy")).await.unwrap();
        let shared = Arc::new(ReplicaState::new(disk));
        let mut sink = UpstreamSink::new(shared.clone(), Transport::default());
        let updating =
            std::thread::spawn(move || (1..=REVISIONS).for_each(|number| sink.update(update(number))));
        let (mut copy, mut last) = (BTreeMap::new(), 0);
        while last < REVISIONS {
            let changes = shared.changes();
            last = changes.revision.number;
            for (key, entry) in changes.keys {
                match entry {
                    Some(entry) => drop(copy.insert(key, entry.revision)),
                    None => drop(copy.remove(&key)),
                }
            }
            assert_eq!(copy, at(last), "at revision {last}");
        }
        updating.join().unwrap();
    }
}
