//! Copies of subscriptions on disk, so that a process starts with what it knew though nobody answers (ServiceRouter §3.2); beside them,
//! where the process that saved them runs.
//!
//! One file a prefix, replaced whole: a subscription is small, changes seldom and is read once, at the start. A database
//! was rejected: it would protect against nothing that a checksum and a rename do not, since the truth is upstream.
//!
//! Chunks of shard maps are large, many, and named by what is in them, so that each is written once, to a file of its own
//! beside the copy that names it, and one that changes costs no writing of the others.

mod chunks;
mod file;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use bytes::Bytes;
use fairmesh_model::{Location, Prefix, Revision};
use xxhash_rust::xxh3::xxh3_128;

use crate::Entry;

/// The file that is locked while a process writes.
const LOCK: &str = "lock";
/// The file that says at which revision everything saved was known to be current.
const MARK: &str = "mark";
/// The file that says where the process that writes runs.
const LOCATION: &str = "location";
/// From how many files on that are written together the file system is told once to have all on disk, and not for each.
const MANY: usize = 16;
/// How files of subscriptions end.
const COPY: &str = "copy";

/// One subscription as it was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// What was subscribed to.
    pub prefix: Prefix,
    /// The revision that the copy is known to be current at.
    pub revision: Revision,
    /// When it was last known to be current, to the millisecond.
    pub at: SystemTime,
    /// All that was there, in the order of keys.
    pub entries: Vec<(Arc<str>, Entry)>,
}

impl Saved {
    /// The content of a file that holds it, with a checksum.
    pub fn encode(&self) -> Vec<u8> {
        file::encode(self)
    }

    /// Reads the content of such a file.
    ///
    /// # Errors
    /// What is wrong with it: cut short, damaged, of another format, or no such file.
    pub fn decode(content: Bytes) -> Result<Self, String> {
        file::decode(content)
    }
}

/// A folder of saved subscriptions.
///
/// Files that cannot be read, for damage or because another release wrote them, are moved aside with a warning and
/// count as not saved: what they held is fetched again.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    /// Held while this process writes there.
    _lock: Option<fs::File>,
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The system refused.
    #[error("cannot {action} {path}: {source}; check that the folder is writable and the disk has room")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process writes there.
    #[error("{path} is in use by another process; stop it, or give each its own folder")]
    InUse {
        /// The folder.
        path: PathBuf,
    },
}

impl Cache {
    /// Opens the folder for writing, making it where it is missing; one process at a time.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, CacheError> {
        let folder = folder.as_ref().to_owned();
        fs::create_dir_all(&folder).map_err(failed("create", &folder))?;
        let path = folder.join(LOCK);
        let lock = fs::File::create(&path).map_err(failed("create", &path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { folder, _lock: Some(lock) }),
            Err(fs::TryLockError::WouldBlock) => Err(CacheError::InUse { path: folder }),
            Err(fs::TryLockError::Error(source)) => Err(failed("lock", &path)(source)),
        }
    }

    /// Opens the folder for reading beside the process that writes there. Nothing is moved aside.
    pub fn read_only(folder: impl AsRef<Path>) -> Self {
        Self { folder: folder.as_ref().to_owned(), _lock: None }
    }

    /// Everything saved of the store that was saved last. What there is of others is outdated: nobody reads it again, so
    /// whoever writes here removes it. Chunks of shard maps are left where they are: their values are empty.
    pub fn load_all(&self) -> Result<Vec<Saved>, CacheError> {
        let (mark, mut all) = (self.marked()?, Vec::new());
        for file in fs::read_dir(&self.folder).map_err(failed("list", &self.folder))? {
            let path = file.map_err(failed("list", &self.folder))?.path();
            if path.extension().is_some_and(|end| end == COPY) {
                all.extend(self.read(&path, mark.as_ref())?);
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

    /// One subscription, or `None` where it was not saved or cannot be read.
    pub fn load(&self, prefix: &Prefix) -> Result<Option<Saved>, CacheError> {
        // Another prefix of the same hash is not this one.
        let saved = self.read(&self.path(prefix), self.marked()?.as_ref())?;
        let Some(mut saved) = saved.filter(|saved| saved.prefix == *prefix) else {
            return Ok(None);
        };
        for (key, entry) in &mut saved.entries {
            if chunks::is_chunk(key) {
                // Where it is not there it was replaced this moment, or lost: either way it is to be fetched.
                let Some(value) = self.chunk(prefix, key)? else { return Ok(None) };
                entry.value = value;
            }
        }
        Ok(Some(saved))
    }

    /// Saves one subscription: whole and on disk when this returns, or not at all. A chunk of a shard map whose value is
    /// empty is one that was saved before.
    pub fn save(&self, saved: &Saved) -> Result<(), CacheError> {
        self.save_all(std::slice::from_ref(saved))
    }

    /// The same for several, each of them whole or not at all.
    pub fn save_all(&self, all: &[Saved]) -> Result<(), CacheError> {
        all.iter().try_for_each(|saved| self.save_chunks(saved))?;
        let content = |saved: &Saved| (self.path(&saved.prefix), file::encode(&chunks::left_out(saved)));
        self.write_all(all.iter().map(content))?;
        all.iter().try_for_each(|saved| self.sweep_chunks(saved))
    }

    /// Says that everything saved is current at this revision, so that a copy that has not changed for long resumes
    /// from here.
    pub fn mark(&self, revision: Revision, at: SystemTime) -> Result<(), CacheError> {
        let mark = Saved { prefix: Prefix::everything(), revision, at, entries: Vec::new() };
        self.write(&self.folder.join(MARK), &file::encode(&mark))
    }

    /// Says where this process runs, so that whoever reads the copies in its absence decides from there.
    pub fn save_location(&self, location: &Location) -> Result<(), CacheError> {
        self.write(&self.folder.join(LOCATION), &file::encode_location(location))
    }

    /// Where the process that wrote here last runs, or `None` where it did not say so or that cannot be read.
    pub fn location(&self) -> Result<Option<Location>, CacheError> {
        self.read_file(&self.folder.join(LOCATION), file::decode_location)
    }

    /// Forgets one subscription. One that was never saved is no error.
    pub fn remove(&self, prefix: &Prefix) -> Result<(), CacheError> {
        let path = self.path(prefix);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &path)(error));
            }
            _ => {}
        }
        self.remove_chunks(prefix)
    }

    fn path(&self, prefix: &Prefix) -> PathBuf {
        self.folder.join(format!("{:032x}.{COPY}", xxh3_128(prefix.as_str().as_bytes())))
    }

    /// At which revision all was known to be current.
    fn marked(&self) -> Result<Option<Saved>, CacheError> {
        self.read_file(&self.folder.join(MARK), file::decode)
    }

    /// Reads a copy and moves it on to the mark.
    fn read(&self, path: &Path, mark: Option<&Saved>) -> Result<Option<Saved>, CacheError> {
        let Some(mut saved) = self.read_file(path, file::decode)? else { return Ok(None) };
        if let Some(mark) = mark
            && mark.revision.store == saved.revision.store
            && mark.revision.number >= saved.revision.number
        {
            (saved.revision, saved.at) = (mark.revision, saved.at.max(mark.at));
        }
        Ok(Some(saved))
    }

    fn read_file<T>(
        &self,
        path: &Path,
        decode: impl FnOnce(Bytes) -> Result<T, String>,
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
                tracing::warn!(path = %path.display(), %reason, "a saved copy is moved aside and fetched again");
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

    /// Writes beside, then renames: a reader or a crash finds the old file or the new one.
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
        if written.len() < MANY {
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
