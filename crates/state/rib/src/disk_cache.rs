//! On-disk copies of subscriptions, and the location of the process that saved them. A process starts with its last
//! state from here while no upstream responds (ServiceRouter §3.2).
//!
//! Each prefix has one file, which is replaced as a whole: a subscription is small, changes rarely and is read only
//! at startup. A database was rejected: the upstream has the data, so a checksum and an atomic rename protect the
//! copy well enough.
//!
//! Chunks of shard maps are large, numerous and content-addressed. Each chunk is written once to a separate file next
//! to the copy that names it, so that a changed chunk does not rewrite the others.

mod chunks;
mod file_format;
mod retired_copies;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use bytes::Bytes;
use fairmesh_model::{Invalid, Location, Prefix, Revision};
use fairmesh_wire::lock_file;
use xxhash_rust::xxh3::xxh3_128;

use crate::Entry;

/// Name of the lock file, which the writing process holds.
const LOCK: &str = "lock";
/// Name of the file with the revision at which every saved copy was last known to be current.
const CHECKPOINT: &str = "checkpoint";
/// Name of the file with the location of the writing process.
const LOCATION: &str = "location";
/// From this number of files on, one `syncfs` replaces an `fsync` per file.
const SYNCFS_THRESHOLD: usize = 16;
/// Extension of files with a saved subscription.
const COPY: &str = "copy";

/// A saved subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedCopy {
    /// The subscribed prefix.
    pub prefix: Prefix,
    /// A revision at which the copy is known to be current.
    pub revision: Revision,
    /// When the copy was last known to be current, to the millisecond.
    pub at: SystemTime,
    /// All entries below the prefix, ordered by key.
    pub entries: Vec<(Arc<str>, Entry)>,
}

/// Why a file cannot be read as a saved copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableCopy {
    /// The file is shorter than a header, or does not begin with one.
    #[error("it is cut short or no saved copy")]
    NoHeader,
    /// The file has another format version.
    #[error("it has format {0}, and this release reads {VERSION}", VERSION = file_format::VERSION)]
    Format(u32),
    /// The checksum does not match, because the file was damaged.
    #[error("its checksum does not fit its content")]
    Checksum,
    /// The time is missing or out of range.
    #[error("it has no valid time")]
    Time,
    /// The revision is missing.
    #[error("it has no revision")]
    NoRevision,
    /// The content is not a protobuf message of this kind.
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
    /// A field of the message is invalid.
    #[error(transparent)]
    Field(#[from] Invalid),
}

impl SavedCopy {
    /// Encodes the copy with a checksum, as the content of a file.
    pub fn encode(&self) -> Vec<u8> {
        file_format::encode(self)
    }

    /// Decodes the result of [`encode`](Self::encode).
    ///
    /// # Errors
    /// When the file is truncated, damaged, of another format version, or of another kind.
    pub fn decode(content: Bytes) -> Result<Self, UnreadableCopy> {
        file_format::decode(content)
    }
}

/// A folder of saved subscriptions.
///
/// Files that cannot be read, because they are damaged or of another release, are moved aside with a warning and
/// count as not saved. The follower then fetches their content again.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    /// Lock held while this process writes to the folder; `None` for reading only.
    _lock: Option<fs::File>,
}

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// A file system operation failed.
    #[error("cannot {action} {path}: {source}; check that the folder is writable and the disk has room")]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// File or folder of the operation.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// Another process writes to the folder.
    #[error("{path} is in use by another process; stop it, or give each its own folder")]
    InUse {
        /// The folder.
        path: PathBuf,
    },
}

impl Cache {
    /// Opens the folder for writing, and creates it if missing. Only one process at a time may write.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, CacheError> {
        let folder = folder.as_ref().to_owned();
        fs::create_dir_all(&folder).map_err(failed("create", &folder))?;
        let path = folder.join(LOCK);
        match lock_file(&path) {
            Ok(lock) => Ok(Self { folder, _lock: Some(lock) }),
            Err(fs::TryLockError::WouldBlock) => Err(CacheError::InUse { path: folder }),
            Err(fs::TryLockError::Error(source)) => Err(failed("lock", &path)(source)),
        }
    }

    /// Opens the folder for reading, even while another process writes there. Never moves files aside.
    pub fn read_only(folder: impl AsRef<Path>) -> Self {
        Self { folder: folder.as_ref().to_owned(), _lock: None }
    }

    /// Loads every copy of the store that was saved last. Copies of other stores are outdated, and the writing
    /// process removes them. Chunks of shard maps are not read, so their values are empty.
    pub fn load_all(&self) -> Result<Vec<SavedCopy>, CacheError> {
        let (checkpoint, mut all) = (self.read_checkpoint()?, Vec::new());
        for file in fs::read_dir(&self.folder).map_err(failed("list", &self.folder))? {
            let path = file.map_err(failed("list", &self.folder))?.path();
            if path.extension().is_some_and(|end| end == COPY) {
                all.extend(self.read(&path, checkpoint.as_ref())?);
            }
        }
        let newest = all.iter().max_by_key(|saved| saved.at).map(|saved| saved.revision.store);
        let (all, outdated): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|saved| Some(saved.revision.store) == newest);
        if self._lock.is_some() {
            outdated.iter().try_for_each(|saved| self.remove(&saved.prefix))?;
        }
        Ok(all)
    }

    /// Loads the copy of one prefix. If there is none, loads a [retired](Self::retire) copy that was current within
    /// the day before `now`. `None` if neither exists or can be read.
    pub fn load(&self, prefix: &Prefix, now: SystemTime) -> Result<Option<SavedCopy>, CacheError> {
        // Another prefix may have the same hash.
        let saved = match self.read(&self.path(prefix), self.read_checkpoint()?.as_ref())? {
            Some(saved) => Some(saved),
            None => self
                .read(&self.retired_path(prefix), None)?
                .filter(|saved| !retired_copies::is_old(saved.at, now)),
        };
        let Some(mut saved) = saved.filter(|saved| saved.prefix == *prefix) else {
            return Ok(None);
        };
        for (key, entry) in &mut saved.entries {
            if chunks::is_chunk(key) {
                // The missing chunk was replaced concurrently or lost; the follower fetches the map again.
                let Some(value) = self.chunk(prefix, key)? else { return Ok(None) };
                entry.value = value;
            }
        }
        Ok(Some(saved))
    }

    /// Saves one subscription durably, completely or not at all. An empty value stands for a chunk saved earlier.
    pub fn save(&self, saved: &SavedCopy) -> Result<(), CacheError> {
        self.save_all(std::slice::from_ref(saved))
    }

    /// Saves several subscriptions durably, each completely or not at all.
    pub fn save_all(&self, all: &[SavedCopy]) -> Result<(), CacheError> {
        all.iter().try_for_each(|saved| self.save_chunks(saved))?;
        let content = |saved: &SavedCopy| {
            (self.path(&saved.prefix), file_format::encode(&chunks::without_chunk_values(saved)))
        };
        self.write_all(all.iter().map(content))?;
        all.iter().try_for_each(|saved| self.remove_file(&self.retired_path(&saved.prefix)))?;
        all.iter().try_for_each(|saved| self.sweep_chunks(saved))
    }

    /// Records that every saved copy is current at `revision`. A copy that has not changed for a long time can then
    /// resume from this revision.
    pub fn checkpoint(&self, revision: Revision, at: SystemTime) -> Result<(), CacheError> {
        let checkpoint = SavedCopy { prefix: Prefix::everything(), revision, at, entries: Vec::new() };
        self.write(&self.folder.join(CHECKPOINT), &file_format::encode(&checkpoint))
    }

    /// Records the location of this process, for other processes that read the copies while it is down.
    pub fn save_location(&self, location: &Location) -> Result<(), CacheError> {
        self.write(&self.folder.join(LOCATION), &file_format::encode_location(location))
    }

    /// Returns the location of the last process that wrote here; `None` if missing or unreadable.
    pub fn location(&self) -> Result<Option<Location>, CacheError> {
        self.read_file(&self.folder.join(LOCATION), file_format::decode_location)
    }

    /// Removes the copy of one prefix. A missing copy is not an error.
    pub fn remove(&self, prefix: &Prefix) -> Result<(), CacheError> {
        self.remove_file(&self.path(prefix))?;
        self.remove_file(&self.retired_path(prefix))?;
        self.remove_chunks(prefix)
    }

    fn remove_file(&self, path: &Path) -> Result<(), CacheError> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
            _ => Ok(()),
        }
    }

    fn path(&self, prefix: &Prefix) -> PathBuf {
        self.folder.join(format!("{:032x}.{COPY}", xxh3_128(prefix.as_str().as_bytes())))
    }

    /// Reads the revision at which every copy was last known to be current.
    fn read_checkpoint(&self) -> Result<Option<SavedCopy>, CacheError> {
        self.read_file(&self.folder.join(CHECKPOINT), file_format::decode)
    }

    /// Reads a copy, and advances its revision to that of the checkpoint.
    fn read(&self, path: &Path, checkpoint: Option<&SavedCopy>) -> Result<Option<SavedCopy>, CacheError> {
        let Some(mut saved) = self.read_file(path, file_format::decode)? else { return Ok(None) };
        if let Some(checkpoint) = checkpoint
            && checkpoint.revision.store == saved.revision.store
            && checkpoint.revision.number >= saved.revision.number
        {
            (saved.revision, saved.at) = (checkpoint.revision, saved.at.max(checkpoint.at));
        }
        Ok(Some(saved))
    }

    fn read_file<T>(
        &self,
        path: &Path,
        decode: impl FnOnce(Bytes) -> Result<T, UnreadableCopy>,
    ) -> Result<Option<T>, CacheError> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", path)(error)),
        };
        match decode(bytes.into()) {
            Ok(read) => Ok(Some(read)),
            Err(reason) => {
                let aside = path.with_extension("unreadable");
                tracing::warn!(path = %path.display(), %reason, "an unreadable copy was moved aside");
                if self._lock.is_some() {
                    fs::rename(path, &aside).map_err(failed("rename", path))?;
                }
                Ok(None)
            }
        }
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), CacheError> {
        self.write_all([(path.to_owned(), bytes.to_owned())])
    }

    /// Writes each file under a temporary name, then renames it. A reader or a crash finds either the old file or the
    /// new one.
    fn write_all(&self, files: impl IntoIterator<Item = (PathBuf, Vec<u8>)>) -> Result<(), CacheError> {
        let beside = |path: &Path| path.with_extension("new");
        let mut written = Vec::new();
        for (path, bytes) in files {
            fs::write(beside(&path), bytes).map_err(failed("write", &path))?;
            written.push(path);
        }
        if written.is_empty() {
            return Ok(());
        }
        let open = |path: &Path| fs::File::open(path).map_err(failed("open", path));
        let folder = open(&self.folder)?;
        if written.len() < SYNCFS_THRESHOLD {
            let sync = |path: &PathBuf| open(&beside(path))?.sync_all().map_err(failed("write", path));
            written.iter().try_for_each(sync)?;
        } else {
            rustix::fs::syncfs(&folder).map_err(|error| failed("write", &self.folder)(error.into()))?;
        }
        for path in &written {
            fs::rename(beside(path), path).map_err(failed("rename", path))?;
        }
        folder.sync_all().map_err(failed("write", &self.folder))
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CacheError + use<> {
    let path = path.to_owned();
    move |source| CacheError::Io { action, path, source }
}

#[cfg(test)]
mod tests;
