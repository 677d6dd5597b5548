//! Saves each chunk of a shard map in a separate file.

use std::{
    borrow::Cow,
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use fairmesh_model::{Prefix, RecordKey};
use xxhash_rust::xxh3::xxh3_128;

use super::{Cache, CacheError, SavedCopy, failed};

/// Extension of folders that contain chunks.
const CHUNKS_EXTENSION: &str = "chunks";

/// Whether this is the key of a chunk, whose value is saved in a separate file.
pub(super) fn is_chunk(key: &str) -> bool {
    // Parsing costs more than a substring search, and nearly all keys are of other kinds.
    key.contains("/chunks/") && matches!(RecordKey::parse(key), Ok(RecordKey::ShardChunk(..)))
}

/// Returns the copy without the values of chunks.
pub(super) fn without_chunk_values(saved: &SavedCopy) -> Cow<'_, SavedCopy> {
    if !saved.entries.iter().any(|(key, _)| is_chunk(key)) {
        return Cow::Borrowed(saved);
    }
    let mut index = saved.clone();
    let chunks = index.entries.iter_mut().filter(|(key, _)| is_chunk(key));
    chunks.for_each(|(_, entry)| entry.value = Bytes::new());
    Cow::Owned(index)
}

impl Cache {
    /// Returns the value of a saved chunk; `None` if missing or empty.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn chunk(&self, prefix: &Prefix, key: &str) -> Result<Option<Bytes>, CacheError> {
        let path = self.chunk_folder(prefix).join(file_name(key));
        match fs::read(&path) {
            // The reader compares the content with the hash in the chunk's name.
            Ok(bytes) => Ok(Some(bytes.into()).filter(|value: &Bytes| !value.is_empty())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    /// Writes chunks that are not saved yet. Called before the copy that names them is written.
    pub(super) fn save_chunks(&self, saved: &SavedCopy) -> Result<(), CacheError> {
        let folder = self.chunk_folder(&saved.prefix);
        let mut new = Vec::new();
        for (key, entry) in saved.entries.iter().filter(|(key, _)| is_chunk(key)) {
            let path = folder.join(file_name(key));
            if !entry.value.is_empty() && !path.exists() {
                new.push((path, &entry.value));
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        fs::create_dir_all(&folder).map_err(failed("create", &folder))?;
        for (path, value) in new {
            // Not synced one by one: a chunk damaged by a crash does not match the hash in its name and is fetched
            // again.
            let beside = path.with_extension("new");
            fs::write(&beside, value).map_err(failed("write", &beside))?;
            fs::rename(&beside, &path).map_err(failed("rename", &path))?;
        }
        Ok(())
    }

    /// Removes the saved chunks that the copy no longer names.
    pub(super) fn sweep_chunks(&self, saved: &SavedCopy) -> Result<(), CacheError> {
        let folder = self.chunk_folder(&saved.prefix);
        let Some(files) = list(&folder)? else { return Ok(()) };
        let kept = saved.entries.iter().filter(|(key, _)| is_chunk(key)).map(|(key, _)| file_name(key));
        let kept: HashSet<PathBuf> = kept.map(|name| folder.join(name)).collect();
        for path in files.into_iter().filter(|path| !kept.contains(path)) {
            remove(&path)?;
        }
        Ok(())
    }

    pub(super) fn remove_chunks(&self, prefix: &Prefix) -> Result<(), CacheError> {
        self.remove_chunks_of(&self.path(prefix))
    }

    /// Removes the chunks of the copy in the file `copy`.
    pub(super) fn remove_chunks_of(&self, copy: &Path) -> Result<(), CacheError> {
        let folder = copy.with_extension(CHUNKS_EXTENSION);
        let Some(files) = list(&folder)? else { return Ok(()) };
        files.iter().try_for_each(|path| remove(path))?;
        fs::remove_dir(&folder).map_err(failed("remove", &folder))
    }

    /// Returns the size of the chunks of the copy in the file `copy`, in bytes.
    pub(super) fn chunk_bytes_of(&self, copy: &Path) -> Result<u64, CacheError> {
        let files = list(&copy.with_extension(CHUNKS_EXTENSION))?.unwrap_or_default();
        let bytes = |path: &PathBuf| fs::metadata(path).map(|file| file.len()).map_err(failed("read", path));
        files.iter().map(bytes).sum()
    }

    fn chunk_folder(&self, prefix: &Prefix) -> PathBuf {
        self.path(prefix).with_extension(CHUNKS_EXTENSION)
    }
}

/// Returns the file name of a chunk: a hash of the whole key, which includes the part and the chunk's name.
fn file_name(key: &str) -> String {
    format!("{:032x}", xxh3_128(key.as_bytes()))
}

fn list(folder: &Path) -> Result<Option<Vec<PathBuf>>, CacheError> {
    let files = match fs::read_dir(folder) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("list", folder)(error)),
    };
    let files: Result<Vec<_>, _> = files.map(|file| file.map(|file| file.path())).collect();
    files.map(Some).map_err(failed("list", folder))
}

fn remove(path: &Path) -> Result<(), CacheError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}
