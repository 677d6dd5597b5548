//! Readiness of this control plane, for load balancers and operators.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use fairmesh_store::{Store, StoreError};
use tokio::{sync::Mutex, task::spawn_blocking, time::Instant};

use crate::imbalance::Imbalance;

/// Validity of a probe's result. It limits the writes that requests for `/readyz` cause.
const PROBE_TTL: Duration = Duration::from_secs(1);
/// Validity of a probe's result for a store that is not on this machine's disk.
const REMOTE_PROBE_TTL: Duration = Duration::from_secs(5);
/// Validity of a probe's result for this machine's disk while no write has failed. A control plane without writers
/// reports a full disk after at most this time.
const IDLE_PROBE_TTL: Duration = Duration::from_secs(60);
/// File that the probe writes and removes in the data directory. It is as large as the step by which the store's file
/// grows.
const PROBE_FILE: &str = ".readyz";
const PROBE_BYTES: usize = 1 << 20;

/// Interval between verifications of checksums, after the verification at startup. Writes wait during a verification:
/// some milliseconds per megabyte.
const VERIFY_INTERVAL: Duration = Duration::from_secs(6 * 60 * 60);

/// Damage found in the store's file, if any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Integrity(Arc<OnceLock<String>>);

impl Integrity {
    /// Verifies the files of the store and of the imbalance indicator periodically, until the store is found
    /// to be damaged.
    pub(crate) async fn watch(self, store: Arc<dyn Store>, imbalance: Arc<Imbalance>) {
        loop {
            tokio::time::sleep(VERIFY_INTERVAL).await;
            if let Err(error) = imbalance.verify().await {
                tracing::error!(
                    %error,
                    "cannot verify the file of the imbalance indicator; its figures may be wrong, and routing is not \
                     affected: move the file away and restart the control plane"
                );
            }
            let error = match store.verify().await {
                Ok(()) => continue,
                Err(error @ (StoreError::Corrupt { .. } | StoreError::Foreign { .. })) => error,
                Err(error) => {
                    tracing::warn!(%error, "cannot verify the store's file; retrying later");
                    continue;
                }
            };
            tracing::error!(
                %error,
                "the store's file is damaged; this process continues from memory, but the next start would \
                 refuse the file: save all records now with 'fairmesh rib export', then restore them or a backup"
            );
            let _ = self.0.set(error.to_string());
            return;
        }
    }

    /// Damage found, if any.
    pub(crate) fn damage(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// Probes the disk, after a failed write and periodically. Otherwise a control plane without writers would neither
/// notice a full disk nor become ready again.
#[derive(Debug)]
pub(crate) struct Readiness {
    /// Damage found in the store's file, if any.
    pub(crate) integrity: Integrity,
    data_dir: PathBuf,
    /// Time of the last probe, and the reason why writes failed, if they did.
    probed: Mutex<Option<(Instant, Option<String>)>>,
}

impl Readiness {
    pub(crate) fn of(data_dir: &Path) -> Self {
        let (integrity, probed) = (Integrity::default(), Mutex::default());
        Self { integrity, data_dir: data_dir.to_owned(), probed }
    }

    /// The reason why writes fail at present; `None` if they succeed.
    pub(crate) async fn problem(&self, store: &dyn Store) -> Option<String> {
        if let Some(reason) = store.fatal_error() {
            return Some(format!("store: {reason}"));
        }
        let mut probed = self.probed.lock().await;
        let has_failed =
            probed.as_ref().is_some_and(|(_, problem)| problem.is_some()) || store.write_failure().is_some();
        let ttl = match store.probe_write() {
            _ if has_failed => PROBE_TTL,
            Some(_) => REMOTE_PROBE_TTL,
            None => IDLE_PROBE_TTL,
        };
        if let Some((at, problem)) = &*probed
            && at.elapsed() < ttl
        {
            return problem.clone();
        }
        let problem = self.probe(store).await;
        *probed = Some((Instant::now(), problem.clone()));
        problem
    }

    /// Returns the reason why the store does not accept writes; `None` if it does.
    async fn probe(&self, store: &dyn Store) -> Option<String> {
        if let Some(probing) = store.probe_write() {
            return probing.await.err().map(|problem| format!("the store takes no writes: {problem}"));
        }
        let path = self.data_dir.join(PROBE_FILE);
        if spawn_blocking(move || probe(&path)).await.is_ok_and(|probed| probed.is_ok()) {
            return None;
        }
        let folder = self.data_dir.display();
        Some(store.write_failure().map_or_else(
            || format!("the disk of {folder} takes no writes; free space on it"),
            |reason| format!("the last write failed: {reason}"),
        ))
    }
}

fn probe(path: &Path) -> io::Result<()> {
    let written = std::fs::write(path, vec![1; PROBE_BYTES])
        .and_then(|()| std::fs::File::open(path))
        .and_then(|file| file.sync_all());
    let removed = std::fs::remove_file(path);
    written.and(removed)
}
