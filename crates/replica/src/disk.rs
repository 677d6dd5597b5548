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

use fairmesh_store::{Changes, Copied, CopyFile, StoreError};
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
    file: Arc<Mutex<CopyFile>>,
    /// Keys whose entries in the file are not those of the node.
    dirty: Mutex<BTreeSet<Arc<str>>>,
    wake: Notify,
    pub(crate) failures: AtomicU64,
    pub(crate) bytes: AtomicU64,
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
    pub(crate) async fn open(path: PathBuf) -> Result<(Self, Option<Copied>), ReplicaError> {
        // Joining fails only when opening panics, which then goes on here.
        let opened = tokio::task::spawn_blocking(move || CopyFile::open(path)).await;
        let (file, held) =
            opened.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))?;
        let disk = Self {
            bytes: AtomicU64::new(file.bytes()),
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
    fn changes(&self) -> Changes {
        let mut dirty = self.disk.keys();
        let (revision, keys) = self.node.values(std::mem::take(&mut *dirty));
        drop(dirty);
        let now = wall_clock();
        Changes { revision, at: now.checked_sub(self.age()).unwrap_or(now), keys }
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
