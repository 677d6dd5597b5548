//! Endpoints from files: a second source beside the API, for what no program announces.

mod folder;
mod sync;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fairmesh_model::ServiceName;

use crate::Registry;
use folder::{Seen, Source};

/// The label that says from which file an endpoint comes, by its whole path: names alone would make files in two folders
/// quarrel.
pub const SOURCE_LABEL: &str = "fairmesh.source";

/// How often files are looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// Keeps the endpoints that a YAML file, or every `*.yaml` and `*.yml` of a folder, lists (documents of
/// `kind: Endpoints` only).
///
/// It owns the endpoints that it wrote, which carry [`SOURCE_LABEL`] with the file's path, and takes out those that are
/// listed no more, also those of a file that was deleted while nobody looked. What a file says counts once two looks
/// have found it so: it may be half written, or away between two names. A file that cannot be read, or is wrong, changes
/// nothing: the last good state stays, and [`FileSource::status`] and the log say what is wrong.
#[derive(Debug)]
pub struct FileSource {
    registry: Registry,
    path: PathBuf,
    status: Arc<Mutex<FileStatus>>,
}

/// How a [`FileSource`] fares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileStatus {
    /// How many endpoints it vouches for.
    pub endpoints: usize,
    /// What is wrong now, by file; empty when everything listed is registered.
    pub errors: BTreeMap<String, String>,
}

/// What a source knows between two looks.
#[derive(Debug, Default)]
struct Memory {
    /// Every file as it was last read.
    files: BTreeMap<String, Seen>,
    /// The services in which each file may have endpoints.
    services: BTreeMap<String, BTreeSet<ServiceName>>,
}

impl FileSource {
    /// A source that reads a file or a folder.
    pub fn new(registry: Registry, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        // Fails only for an empty path, which reading will complain of.
        let path = std::path::absolute(&path).unwrap_or(path);
        Self { registry, path, status: Arc::default() }
    }

    /// How it fares; to be asked while [`FileSource::run`] is under way.
    pub fn status(&self) -> FileStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Follows the files until `shutdown` is done. The endpoints stay.
    pub async fn run(&self, shutdown: impl Future<Output = ()> + Send) {
        tokio::select! {
            () = self.follow() => {}
            () = shutdown => {}
        }
    }

    async fn follow(&self) {
        let mut memory = self.remember();
        let mut period = tokio::time::interval(PERIOD);
        period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            period.tick().await;
            self.look(&mut memory).await;
        }
    }

    /// Reads what changed and carries it out.
    async fn look(&self, memory: &mut Memory) {
        let source = Source { path: self.path.clone(), known: memory.files.clone() };
        // File systems block.
        let Ok(found) = tokio::task::spawn_blocking(move || source.read()).await else { return };
        let mut errors = BTreeMap::new();
        for (file, mut seen) in found {
            if let (Some(wanted), false) = (&seen.wanted, seen.done) {
                match self.sync(&file, wanted, memory).await {
                    Ok(()) => seen.done = true,
                    Err(error) => {
                        errors.insert(file.clone(), error.to_string());
                    }
                }
            }
            if let Some(error) = seen.trouble.as_ref().or(seen.error.as_ref()) {
                errors.insert(file.clone(), error.clone());
            }
            memory.files.insert(file, seen);
        }
        self.tell(memory, errors);
    }

    /// Publishes the status, and logs what is newly wrong.
    fn tell(&self, memory: &Memory, errors: BTreeMap<String, String>) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        for (file, error) in &errors {
            if status.errors.get(file) != Some(error) {
                tracing::warn!(file, error, "endpoints of this file stay as they were");
            }
        }
        let endpoints = memory.files.values().filter_map(|seen| seen.wanted.as_ref());
        *status = FileStatus { endpoints: endpoints.map(Vec::len).sum(), errors };
    }
}

#[cfg(test)]
mod tests;
