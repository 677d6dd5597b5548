//! Whether this control plane can do its work, for load balancers and people.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use fairmesh_store::{Store, StoreError};
use tokio::{sync::Mutex, task::spawn_blocking, time::Instant};

/// How long the result of a probe is believed: whoever reads `/readyz` causes no more writes than this.
const BELIEVED: Duration = Duration::from_secs(1);
/// Written and taken away again, in the data directory: about what the store's file grows by.
const PROBE: &str = ".readyz";
const PROBE_BYTES: usize = 1 << 20;

/// How often the checksums of the store are verified, from the start on, which does so itself. Writes wait for as long as it takes: some
/// milliseconds for each megabyte.
const VERIFIED_EVERY: Duration = Duration::from_secs(6 * 60 * 60);

/// Whether the store's file is known to be damaged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Integrity(Arc<OnceLock<String>>);

impl Integrity {
    /// Verifies the store now and then, until it is found damaged.
    pub(crate) async fn watch(self, store: Arc<dyn Store>) {
        loop {
            tokio::time::sleep(VERIFIED_EVERY).await;
            let error = match store.verify().await {
                Ok(()) => continue,
                Err(error @ (StoreError::Corrupt { .. } | StoreError::Foreign { .. })) => error,
                Err(error) => {
                    tracing::warn!(%error, "the store's file cannot be verified; trying again later");
                    continue;
                }
            };
            tracing::error!(
                %error,
                "the store's file is damaged; this process goes on by what it has in memory, and the next start would refuse the file: save \
                 all records with 'fairmesh rib export' now, then put them or a copy back"
            );
            let _ = self.0.set(error.to_string());
            return;
        }
    }

    /// What was found, where it is damaged.
    pub(crate) fn damage(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// Looks whether the disk takes writes again after one has failed: else a control plane without writers would never be ready again.
#[derive(Debug)]
pub(crate) struct Readiness {
    /// What is known of the store's file.
    pub(crate) integrity: Integrity,
    data_dir: PathBuf,
    probed: Mutex<Option<(Instant, bool)>>,
}

impl Readiness {
    pub(crate) fn of(data_dir: &Path) -> Self {
        let (integrity, probed) = (Integrity::default(), Mutex::default());
        Self { integrity, data_dir: data_dir.to_owned(), probed }
    }

    /// Why nothing can be written now, where that is so.
    pub(crate) async fn problem(&self, store: &dyn Store) -> Option<String> {
        if let Some(reason) = store.fatal_error() {
            return Some(format!("the store: {reason}"));
        }
        let reason = store.write_failure()?;
        if self.takes_writes().await { None } else { Some(format!("the last write failed: {reason}")) }
    }

    async fn takes_writes(&self) -> bool {
        let mut probed = self.probed.lock().await;
        if let Some((at, result)) = *probed
            && at.elapsed() < BELIEVED
        {
            return result;
        }
        let path = self.data_dir.join(PROBE);
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
