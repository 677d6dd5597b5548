//! Copies that are no longer followed, and stay for a while: a process that needs one again while no upstream responds has the
//! state of its last use.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use fairmesh_model::Prefix;

use super::{COPY, Cache, CacheError, failed, file_format};

/// The extension of files of retired copies. They are files of their own, since checkpoints are for copies that are followed.
const RETIRED: &str = "retired";
/// How long a retired copy stays.
pub(super) const RETENTION: Duration = Duration::from_secs(24 * 3600);
/// The most retired copies. The oldest make room.
const MAX_RETIRED: usize = 16_384;
/// The most bytes of retired copies, with their chunks. The oldest make room.
const MAX_RETIRED_BYTES: u64 = 1 << 30;

impl Cache {
    /// Keeps the copy of a subscription that is no longer followed, with the time when it was last known to be current. A missing
    /// copy is no error.
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

    /// Removes copies that were retired more than 24 hours before `now`, and the oldest where they are too many or too large.
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
                // A copy that is followed again has the chunks.
                if !path.with_extension(COPY).exists() {
                    self.remove_chunks_of(&path)?;
                }
            }
        }
        Ok(())
    }

    /// The files of retired copies, when each was written, and its bytes with those of its chunks.
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

/// Whether a copy of this time is older than [`RETENTION`].
pub(super) fn is_old(at: SystemTime, now: SystemTime) -> bool {
    now.duration_since(at).is_ok_and(|age| age > RETENTION)
}
