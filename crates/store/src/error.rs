use std::{io, path::PathBuf};

use fairmesh_model::Invalid;
use fairmesh_rib::Conflict;

/// Why a store cannot be opened or read. The file is left as it was.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error(
        "store {path}: another process has it open; stop that one first, or give this one a data directory of its own"
    )]
    Locked {
        /// The store file.
        path: PathBuf,
    },
    /// The content cannot be trusted.
    #[error(
        "store {path}: the file is damaged ({problem}); restore it from a copy and start once with --new-store-id, or \
         move it away to start empty"
    )]
    Corrupt {
        /// The store file.
        path: PathBuf,
        /// What was found.
        problem: String,
    },
    /// Somebody else's file.
    #[error(
        "store {path}: this is not a Fairmesh store ({problem}); give another data directory, restore the store from \
         a copy and start once with --new-store-id, or move the file away to start empty"
    )]
    Foreign {
        /// The store file.
        path: PathBuf,
        /// What was found.
        problem: String,
    },
    /// Written by a later release.
    #[error(
        "store {path}: it has format {found} and this release reads up to {known}; start the release that wrote it"
    )]
    Newer {
        /// The store file.
        path: PathBuf,
        /// Its format.
        found: u128,
        /// The newest format that this release reads.
        known: u128,
    },
    /// No space is left.
    #[error("store {path}: the disk is full; free some space, then start again")]
    Full {
        /// The store file.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("store {path}: {source}; check that the directory exists, belongs to this user and is writable")]
    Unreadable {
        /// The store file, or the directory that it should be in.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a batch was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A key is not as the writer expects. Nothing is written.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// The batch is out of bounds, or names a key twice. Nothing is written.
    #[error("the batch is refused: {0}")]
    TooLarge(#[from] Invalid),
    /// More batches wait than the store takes. Nothing is written.
    #[error("store {path}: too many writes are waiting for the disk; try again in a moment")]
    Overloaded {
        /// The store file.
        path: PathBuf,
    },
    /// No space is left. The batch is not acknowledged and never stored in part.
    #[error("store {path}: the disk is full; free some space and write again")]
    Full {
        /// The store file.
        path: PathBuf,
    },
    /// The disk failed. The batch is not acknowledged and never stored in part.
    #[error("store {path}: the write failed ({source}); check the disk and write again")]
    Failed {
        /// The store file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
}
