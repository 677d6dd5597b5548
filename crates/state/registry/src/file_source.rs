//! Registers endpoints from files, for servers that do not register themselves through the API.

mod scan;
mod sync;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fairmesh_model::ServiceName;

use crate::Registry;
use scan::{FileState, Source};

/// Label with the full path of the file that lists the endpoint. File names alone would collide between folders.
pub const SOURCE_LABEL: &str = "fairmesh.source";

/// Interval between two reads of the files.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// Registers the endpoints that a YAML file lists, or every `*.yaml` and `*.yml` file of a folder. The files may have
/// documents of `kind: Endpoints` only.
///
/// The source owns the endpoints that it wrote: their label [`SOURCE_LABEL`] has the file's path. It removes
/// endpoints that are no longer listed, including those of files deleted while the process was down. New content is
/// accepted once two consecutive scans have read it, since a file may be half written or about to be renamed. An
/// unreadable or invalid file changes nothing: the last valid state stays, and [`FileSource::status`] and the log
/// show the error.
#[derive(Debug)]
pub struct FileSource {
    registry: Registry,
    path: PathBuf,
    status: Arc<Mutex<FileStatus>>,
}

/// The status of a [`FileSource`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileStatus {
    /// Number of listed endpoints.
    pub endpoints: usize,
    /// Current errors by file; empty once all listed endpoints are registered.
    pub errors: BTreeMap<String, String>,
}

/// State of the files between two scans.
#[derive(Debug, Default)]
struct KnownFiles {
    /// The state of every file.
    files: BTreeMap<String, FileState>,
    /// Services for which each file may have registered endpoints.
    services: BTreeMap<String, BTreeSet<ServiceName>>,
}

impl FileSource {
    /// Creates a source for a file or a folder.
    pub fn new(registry: Registry, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        // Fails only for an empty path; reading that path reports the error.
        let path = std::path::absolute(&path).unwrap_or(path);
        Self { registry, path, status: Arc::default() }
    }

    /// Returns the files that a source at this path reads: the file itself, or those in the folder.
    ///
    /// # Errors
    /// When no file exists, or one is unreadable.
    pub fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(scan::files(path)?.into_values().collect())
    }

    /// Returns the status. It is current while [`FileSource::run`] runs.
    pub fn status(&self) -> FileStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Follows the files until `shutdown` completes. Endpoints stay registered afterwards.
    pub async fn run(&self, shutdown: impl Future<Output = ()> + Send) {
        tokio::select! {
            () = self.follow() => {}
            () = shutdown => {}
        }
    }

    async fn follow(&self) {
        let mut known = self.load_known();
        let mut period = tokio::time::interval(SCAN_INTERVAL);
        period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            period.tick().await;
            self.scan(&mut known).await;
        }
    }

    /// Reads the files and applies changes.
    async fn scan(&self, known: &mut KnownFiles) {
        let source = Source { path: self.path.clone(), known: known.files.clone() };
        // File system calls block, so they run on a blocking thread.
        let Ok(found) = tokio::task::spawn_blocking(move || source.read()).await else { return };
        let mut errors = BTreeMap::new();
        for (name, mut file) in found {
            if let Some(due) = &file.due {
                match self.sync(&name, due, known).await {
                    Ok(()) => file.due = None,
                    Err(error) => {
                        errors.insert(name.clone(), error.to_string());
                    }
                }
            }
            if let Some(error) = file.read_error.as_ref().or(file.error.as_ref()) {
                errors.insert(name.clone(), error.clone());
            }
            known.files.insert(name, file);
        }
        self.publish_status(known, errors);
    }

    /// Publishes the status and logs new errors.
    fn publish_status(&self, known: &KnownFiles, errors: BTreeMap<String, String>) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        for (file, error) in &errors {
            if status.errors.get(file) != Some(error) {
                tracing::warn!(file, error, "the endpoints of this file are unchanged");
            }
        }
        let endpoints = known.files.values().filter_map(|file| file.listed).sum();
        *status = FileStatus { endpoints, errors };
    }
}

#[cfg(test)]
mod tests;
