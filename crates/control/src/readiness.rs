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

/// Lifetime of a probe's result: it bounds the writes that readers of `/readyz` cause.
const PROBE_TTL: Duration = Duration::from_secs(1);
/// The same while no write has failed: a control plane without writers reports a full disk after this time.
const IDLE_PROBE_TTL: Duration = Duration::from_secs(60);
/// File that the probe writes and removes in the data directory; as large as a growth step of the store's file.
const PROBE_FILE: &str = ".readyz";
const PROBE_BYTES: usize = 1 << 20;

/// Interval of checksum verification, after the one at the start. Writes wait meanwhile: some milliseconds for each
/// megabyte.
const VERIFY_INTERVAL: Duration = Duration::from_secs(6 * 60 * 60);

/// Known damage of the store's file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Integrity(Arc<OnceLock<String>>);

impl Integrity {
    /// Verifies the store and the file of the imbalance indicator periodically, until the store is found damaged.
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

    /// The damage found, if any.
    pub(crate) fn damage(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// Probes the disk after a failed write and now and then: otherwise a control plane without writers would not notice that its disk
/// is full, nor become ready again.
#[derive(Debug)]
pub(crate) struct Readiness {
    /// Known damage of the store's file.
    pub(crate) integrity: Integrity,
    data_dir: PathBuf,
    probed: Mutex<Option<(Instant, bool)>>,
}

impl Readiness {
    pub(crate) fn of(data_dir: &Path) -> Self {
        let (integrity, probed) = (Integrity::default(), Mutex::default());
        Self { integrity, data_dir: data_dir.to_owned(), probed }
    }

    /// Why writes fail now; `None` if they succeed.
    pub(crate) async fn problem(&self, store: &dyn Store) -> Option<String> {
        if let Some(reason) = store.fatal_error() {
            return Some(format!("store: {reason}"));
        }
        let failure = store.write_failure();
        let ttl = if failure.is_some() { PROBE_TTL } else { IDLE_PROBE_TTL };
        if self.takes_writes(ttl).await {
            return None;
        }
        let folder = self.data_dir.display();
        Some(failure.map_or_else(
            || format!("the disk of {folder} takes no writes; free space on it"),
            |reason| format!("the last write failed: {reason}"),
        ))
    }

    async fn takes_writes(&self, ttl: Duration) -> bool {
        let mut probed = self.probed.lock().await;
        if let Some((at, result)) = *probed
            && at.elapsed() < ttl
        {
            return result;
        }
        let path = self.data_dir.join(PROBE_FILE);
        let result = spawn_blocking(move || probe(&path)).await.is_ok_and(|probed| probed.is_ok());
        *probed = Some((Instant::now(), result));
        result
    }
}

fn probe(path: &Path) -> io::Result<()> {
    let written = std::fs::write(path, vec![1; PROBE_BYTES])
        .and_then(|()| std::fs::File::open(path))
        .and_then(|file| file.sync_all());
    let removed = std::fs::remove_file(path);
    written.and(removed)
}
