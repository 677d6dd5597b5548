//! Writes what changed, soon and together, off the workers that serve.

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

use crate::{error::ReplicaError, feed::Shared};

/// The least time between two writes: what changes meanwhile is written once.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// How often a copy that does not change is marked as current.
const MARK_EVERY: Duration = Duration::from_secs(60);
/// How long to wait after the disk refused.
const SAVE_RETRY: Duration = Duration::from_secs(5);

/// The file of the copy and what is to be written there.
#[derive(Debug)]
pub(crate) struct Disk {
    file: Arc<Mutex<ReplicaFile>>,
    /// Keys whose entries in the file are not those of the node.
    dirty: Mutex<BTreeSet<Arc<str>>>,
    wake: Notify,
    pub(crate) failures: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// The revision that the file was last brought to.
    pub(crate) saved: AtomicU64,
}

/// The locked keys to be written; the saver is woken when they are released.
#[derive(Debug)]
pub(crate) struct Dirty<'a> {
    keys: MutexGuard<'a, BTreeSet<Arc<str>>>,
    wake: &'a Notify,
}

impl Dirty<'_> {
    pub(crate) fn add(&mut self, keys: impl IntoIterator<Item = Arc<str>>) {
        self.keys.extend(keys);
    }
}

impl Drop for Dirty<'_> {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

impl Disk {
    /// Opens the file and reads what is there.
    pub(crate) async fn open(path: PathBuf) -> Result<(Self, Option<ReplicaContents>), ReplicaError> {
        // Joining fails only when opening panics, which then goes on here.
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

    /// Locked before the node, where both are.
    pub(crate) fn dirty(&self) -> Dirty<'_> {
        Dirty { keys: self.keys(), wake: &self.wake }
    }

    fn keys(&self) -> MutexGuard<'_, BTreeSet<Arc<str>>> {
        // Nothing that runs under the lock panics.
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Saves until `stopping`, and what is left then.
    pub(crate) async fn save_all(self: Arc<Self>, stopping: CancellationToken) {
        while !stopping.is_cancelled() {
            tokio::select! {
                () = self.disk.wake.notified() => {}
                () = sleep(MARK_EVERY) => {}
                () = stopping.cancelled() => break,
            }
            let began = Instant::now();
            let wait = match self.save().await {
                // A slow disk is left alone for as long as it took.
                true => began.elapsed().max(SAVE_EVERY),
                false => SAVE_RETRY,
            };
            tokio::select! {
                () = sleep(wait) => {}
                () = stopping.cancelled() => {}
            }
        }
        self.save().await;
    }

    /// Returns whether all of it is on disk; what is not is tried again.
    async fn save(&self) -> bool {
        if !self.holds() {
            return true;
        }
        let changes = Arc::new(self.changes());
        let (file, written) = (self.disk.file.clone(), changes.clone());
        let write = move || {
            // A panic under the lock leaves a file that is opened anew for the next write.
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
        tracing::warn!(error, "what is held is not saved; a restart without upstream would miss it");
        self.disk.failures.fetch_add(1, Relaxed);
        self.disk.keys().extend(changes.keys.iter().map(|(key, _)| key.clone()));
        false
    }

    /// Everything that the file does not have, at one revision.
    fn changes(&self) -> ReplicaUpdate {
        let mut dirty = self.disk.keys();
        let (revision, keys) = self.node.values(std::mem::take(&mut *dirty));
        let floor = self.node.floor();
        drop(dirty);
        let now = wall_clock();
        ReplicaUpdate { revision, at: now.checked_sub(self.age()).unwrap_or(now), floor, keys }
    }
}

/// The time of day, which only files that outlive a restart need.
#[allow(
    clippy::disallowed_methods,
    reason = "ages of files are kept over restarts, which no monotonic clock is"
)]
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
    use crate::feed::Feed;

    const KEYS: u64 = 16;
    const REVISIONS: u64 = 20_000;

    /// Every revision writes one key and deletes another.
    fn update(number: u64) -> Update {
        let revision = Revision { store: StoreId(1), partition: 0, number };
        let entry = Entry { value: Bytes::from(number.to_string()), revision: number };
        let puts = vec![(key(number), entry)];
        Update { puts, deletes: vec![key(number + KEYS / 2)], ..Update::empty(revision) }
    }

    fn key(number: u64) -> Arc<str> {
        format!("/{}", number % KEYS).into()
    }

    /// The number that wrote each key, at a revision.
    fn at(number: u64) -> BTreeMap<Arc<str>, u64> {
        let last = (number.saturating_sub(KEYS / 2) + 1).max(1)..=number;
        last.map(|number| (key(number), number)).collect()
    }

    #[tokio::test]
    async fn what_is_taken_to_be_written_is_one_revision_whatever_comes_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, _) = Disk::open(folder.path().join("copy")).await.unwrap();
        let shared = Arc::new(Shared::new(disk));
        let mut feed = Feed::new(shared.clone());
        let feeding =
            std::thread::spawn(move || (1..=REVISIONS).for_each(|number| feed.update(update(number))));
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
        feeding.join().unwrap();
    }
}
