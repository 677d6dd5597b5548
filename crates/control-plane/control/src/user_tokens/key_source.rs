//! Keeps the keys of an issuer up to date.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use fairmesh_tokens::{Algorithm, DecodingKey, JwksError, KeySet};
use tokio::{sync::Mutex as AsyncMutex, task::spawn_blocking, time::Instant};

use super::JwksLocation;
use crate::http_fetch::{self, FetchError, MAX_JWKS_DOCUMENT as MAX_DOCUMENT, WebUrl};

/// Interval at which a file is compared with its last content.
const FILE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between fetches of keys. Together with the check interval, a withdrawn key is used for at most a
/// minute.
const FETCH_INTERVAL: Duration = Duration::from_secs(50);
/// Pause after a failed fetch.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum time between two fetches, regardless of the keys that tokens name, and the interval while there are no
/// keys.
const FETCH_PAUSE: Duration = Duration::from_secs(10);

/// The last valid keys of an issuer.
#[derive(Debug)]
pub(super) struct KeySource {
    location: JwksLocation,
    ca_file: Option<PathBuf>,
    /// `None` until a document is read. A set without keys is that of an issuer that withdrew all of them.
    keys: Mutex<Option<Arc<KeySet>>>,
    /// Lock held while keys are read. One task reads at a time, and other tasks wait for its result.
    reading: AsyncMutex<Reading>,
}

#[derive(Debug, Default)]
struct Reading {
    /// The file as last read, even if unusable, so that each content is reported only once.
    file: Option<FileState>,
    fetched: Option<Instant>,
    has_failed: bool,
    /// The last fetched document that is in use.
    document: Bytes,
}

/// Identifies the content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileState {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

/// Reason why the keys cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeysError {
    #[error("{}: {source}; give a JWKS as JSON", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("{} has more than {MAX_DOCUMENT} bytes", path.display())]
    TooLarge { path: PathBuf },
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("{location} {problem}")]
    Document { location: String, problem: JwksError },
}

/// Reason why there is no key to verify a token.
#[derive(Debug)]
pub(super) enum NoKey {
    /// The issuer has no key with this id.
    Unknown,
    /// No keys have been read yet.
    NotLoaded,
}

impl KeySource {
    pub(super) fn new(location: JwksLocation, ca_file: Option<PathBuf>) -> Self {
        Self { location, ca_file, keys: Mutex::default(), reading: AsyncMutex::default() }
    }

    /// Reads the keys, if they are in a file.
    ///
    /// # Errors
    /// The problem with the file.
    pub(super) async fn load_file(&self) -> Result<(), KeysError> {
        match &self.location {
            JwksLocation::File(path) => self.read_file(path).await,
            JwksLocation::Url(_) => Ok(()),
        }
    }

    /// Returns the key of a token. If it is unknown, reads the keys again, because an issuer may use a new key at
    /// once.
    pub(super) async fn key(&self, id: Option<&str>, algorithm: Algorithm) -> Result<DecodingKey, NoKey> {
        if let Some(key) = self.current().and_then(|keys| keys.find(id, algorithm).cloned()) {
            return Ok(key);
        }
        self.reread_key(id, algorithm).await
    }

    /// Returns the key of a token whose signature the known key does not verify. Reads the keys again first, because
    /// an issuer may replace a key under the same id.
    pub(super) async fn reread_key(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<DecodingKey, NoKey> {
        self.refresh(FETCH_PAUSE).await;
        let keys = self.current().ok_or(NoKey::NotLoaded)?;
        keys.find(id, algorithm).cloned().ok_or(NoKey::Unknown)
    }

    /// Keeps the keys up to date. Never completes.
    pub(super) async fn follow(&self) {
        loop {
            let pause = match &self.location {
                JwksLocation::File(_) => FILE_INTERVAL,
                JwksLocation::Url(_) => FETCH_PAUSE,
            };
            let has_keys = self.current().is_some_and(|keys| !keys.is_empty());
            self.refresh(if has_keys { FETCH_INTERVAL } else { FETCH_PAUSE }).await;
            tokio::time::sleep(pause).await;
        }
    }

    /// Reads the file if it has changed, or fetches the document unless it was fetched within `age`.
    async fn refresh(&self, age: Duration) {
        let read = match &self.location {
            JwksLocation::File(path) => self.read_file(path).await,
            JwksLocation::Url(url) => self.fetch(url, age).await,
        };
        if let Err(problem) = read {
            tracing::warn!(
                %problem,
                "the keys of the issuer of tokens cannot be read; the ones before stay in use"
            );
        }
    }

    async fn read_file(&self, path: &Path) -> Result<(), KeysError> {
        let mut reading = self.reading.lock().await;
        let (path, known) = (path.to_owned(), reading.file.clone());
        // Fails only when the runtime is shutting down.
        let read = spawn_blocking(move || read_changed(&path, known.as_ref())).await.unwrap_or(Ok(None));
        match read {
            Ok(None) => Ok(()),
            Ok(Some((state, document))) => {
                reading.file = Some(state);
                self.replace(&document)
            }
            Err(problem) => {
                // A file that is being replaced is missing for a moment. This is reported only once.
                match reading.file.take() {
                    Some(_) => Err(problem),
                    None if self.current().is_none() => Err(problem),
                    None => Ok(()),
                }
            }
        }
    }

    async fn fetch(&self, url: &WebUrl, age: Duration) -> Result<(), KeysError> {
        let mut reading = self.reading.lock().await;
        let age = if reading.has_failed { age.min(RETRY_INTERVAL) } else { age };
        if reading.fetched.is_some_and(|fetched| fetched.elapsed() < age) {
            return Ok(());
        }
        (reading.fetched, reading.has_failed) = (Some(Instant::now()), true);
        let document = http_fetch::fetch(url, self.ca_file.clone(), MAX_DOCUMENT).await?;
        if document != reading.document {
            self.replace(&document)?;
            reading.document = document;
        }
        reading.has_failed = false;
        Ok(())
    }

    fn replace(&self, document: &[u8]) -> Result<(), KeysError> {
        let keys = KeySet::parse(document)
            .map_err(|problem| KeysError::Document { location: self.location.to_string(), problem })?;
        match keys.len() {
            0 => tracing::warn!(
                location = %self.location,
                "the issuer of tokens has no key that verifies tokens: all of its tokens are refused"
            ),
            keys => tracing::info!(keys, location = %self.location, "read the keys of the issuer of tokens"),
        }
        *self.keys.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(keys));
        Ok(())
    }

    fn current(&self) -> Option<Arc<KeySet>> {
        // Poisoning is ignored, since every change is a single assignment.
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reads a file; `None` if its content is still the known one.
fn read_changed(path: &Path, known: Option<&FileState>) -> Result<Option<(FileState, Vec<u8>)>, KeysError> {
    let failed = |source| KeysError::File { path: path.to_owned(), source };
    let mut file = fs::File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let state =
        FileState { modified: metadata.modified().ok(), length: metadata.len(), inode: metadata.ino() };
    if known == Some(&state) {
        return Ok(None);
    }
    let mut document = Vec::new();
    let bound = u64::try_from(MAX_DOCUMENT).unwrap_or(u64::MAX);
    file.by_ref().take(bound + 1).read_to_end(&mut document).map_err(failed)?;
    match document.len() > MAX_DOCUMENT {
        true => Err(KeysError::TooLarge { path: path.to_owned() }),
        false => Ok(Some((state, document))),
    }
}
