//! Copies of prefixes that are no longer followed. They are kept for a while: if a process needs such a prefix again
//! while no upstream responds, it starts from the state at its last use.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use fairmesh_model::Prefix;

use super::{COPY, Cache, CacheError, failed, file_format};

/// Extension of files with a retired copy. They are separate files, because checkpoints apply only to followed
/// copies.
const RETIRED: &str = "retired";
/// How long a retired copy is kept.
pub(super) const RETENTION: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of retired copies. Beyond it, the oldest are removed.
const MAX_RETIRED: usize = 16_384;
/// Maximum size of retired copies with their chunks, in bytes. Beyond it, the oldest are removed.
const MAX_RETIRED_BYTES: u64 = 1 << 30;

impl Cache {
    /// Retires the copy of a prefix that is no longer followed. The copy keeps the time at which it was last known to
    /// be current. A missing copy is not an error.
    ///
    /// # Errors
    /// When the folder cannot be read or written.
    pub fn retire(&self, prefix: &Prefix) -> Result<(), CacheError> {
        let path = self.path(prefix);
        if let Some(saved) = self.read(&path, self.read_checkpoint()?.as_ref())? {
            self.write(&self.retired_path(prefix), &file_format::encode(&saved))?;
        }
        self.remove_file(&path)
    }

    /// Removes copies that were retired more than 24 hours before `now`, and the oldest copies beyond the maximum
    /// number and size.
    ///
    /// # Errors
    /// When the folder cannot be read or written.
    pub fn remove_old_retired(&self, now: SystemTime) -> Result<(), CacheError> {
        self.remove_retired_beyond(MAX_RETIRED_BYTES, now)
    }

    pub(super) fn remove_retired_beyond(&self, max_bytes: u64, now: SystemTime) -> Result<(), CacheError> {
        let mut retired = self.retired_files()?;
        retired.sort_unstable_by(|one, other| other.cmp(one));
        let mut kept_bytes = 0_u64;
        for (i, (since, path, bytes)) in retired.into_iter().enumerate() {
            kept_bytes = kept_bytes.saturating_add(bytes);
            if i >= MAX_RETIRED || kept_bytes > max_bytes || is_old(since, now) {
                self.remove_file(&path)?;
                // If the prefix is followed again, its copy uses the chunks.
                if !path.with_extension(COPY).exists() {
                    self.remove_chunks_of(&path)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the files of retired copies, with the time of their retirement and their size in bytes with their
    /// chunks.
    fn retired_files(&self) -> Result<Vec<(SystemTime, PathBuf, u64)>, CacheError> {
        let mut found = Vec::new();
        for file in fs::read_dir(&self.folder).map_err(failed("list", &self.folder))? {
            let path = file.map_err(failed("list", &self.folder))?.path();
            if path.extension().is_some_and(|end| end == RETIRED) {
                let file = fs::metadata(&path).map_err(failed("read", &path))?;
                let since = file.modified().map_err(failed("read", &path))?;
                let bytes = file.len() + self.chunk_bytes_of(&path)?;
                found.push((since, path, bytes));
            }
        }
        Ok(found)
    }

    pub(super) fn retired_path(&self, prefix: &Prefix) -> PathBuf {
        self.path(prefix).with_extension(RETIRED)
    }
}

/// Whether a copy last known to be current at `at` is older than [`RETENTION`].
pub(super) fn is_old(at: SystemTime, now: SystemTime) -> bool {
    now.duration_since(at).is_ok_and(|age| age > RETENTION)
}
