use std::io;

use fairmesh_model::Invalid;
use fairmesh_rib::Conflict;

use crate::StoreLocation;

/// Why a store cannot be opened or read. The store is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has the file open.
    #[error(
        "store {location}: another process has it open; stop that one first, or give this one a data directory of its own"
    )]
    Locked {
        /// Location of the store.
        location: StoreLocation,
    },
    /// The file is damaged.
    #[error(
        "store {location}: the file is damaged ({problem}); restore it from a copy and start once with --new-store-id, or \
         move it away to start empty"
    )]
    Corrupt {
        /// Location of the store.
        location: StoreLocation,
        /// Detected damage.
        problem: String,
    },
    /// The file is not a Fairmesh store.
    #[error(
        "store {location}: this is not a Fairmesh store ({problem}); give another data directory, restore the store from \
         a copy and start once with --new-store-id, or move the file away to start empty"
    )]
    Foreign {
        /// Location of the store.
        location: StoreLocation,
        /// The content that was found instead of a store.
        problem: String,
    },
    /// The store has a format of a later release.
    #[error(
        "store {location}: it has format {found} and this release reads up to {known}; start the release that wrote it"
    )]
    NewerFormat {
        /// Location of the store.
        location: StoreLocation,
        /// Format of the store.
        found: u128,
        /// Newest format that this release reads.
        known: u128,
    },
    /// The disk is full.
    #[error("store {location}: the disk is full; free some space, then start again")]
    DiskFull {
        /// Location of the store.
        location: StoreLocation,
    },
    /// The operating system reported an error.
    #[error(
        "store {location}: {source}; check that the directory exists, belongs to this user and is writable"
    )]
    Io {
        /// Location of the store, or the directory that should contain it.
        location: StoreLocation,
        /// Error from the operating system.
        source: io::Error,
    },
    /// No member of the etcd cluster responds.
    #[error(
        "store {location}: etcd is unavailable ({problem}); check its addresses, its certificates, and that a majority runs"
    )]
    Unavailable {
        /// Location of the store.
        location: StoreLocation,
        /// Result of the last attempt.
        problem: String,
    },
    /// Etcd refused the call, or the keys below the root belong to another store or application.
    #[error("store {location}: {problem}")]
    Refused {
        /// Location of the store.
        location: StoreLocation,
        /// The reason and the remedy.
        problem: String,
    },
}

/// Why a batch was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// An expectation of the batch does not hold. Nothing is written.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// The batch exceeds a bound, or contains a key twice. Nothing is written.
    #[error("the batch is refused: {0}")]
    TooLarge(#[from] Invalid),
    /// The write queue is full. Nothing is written.
    #[error("store {location}: too many writes are queued; retry in a moment")]
    Overloaded {
        /// Location of the store.
        location: StoreLocation,
    },
    /// The disk is full. The batch is not acknowledged and never stored in part.
    #[error("store {location}: the disk is full; free some space and write again")]
    DiskFull {
        /// Location of the store.
        location: StoreLocation,
    },
    /// The disk failed. The batch is not acknowledged and never stored in part.
    #[error("store {location}: the write failed ({source}); check the disk and write again")]
    Failed {
        /// Location of the store.
        location: StoreLocation,
        /// Error from the disk.
        source: io::Error,
    },
    /// No member of the etcd cluster accepted the batch. Nothing is written.
    #[error("store {location}: etcd is unavailable ({problem}); nothing was written, retry")]
    Unavailable {
        /// Location of the store.
        location: StoreLocation,
        /// Result of the last attempt.
        problem: String,
    },
    /// Etcd refused the batch. Nothing is written.
    #[error("store {location}: {problem}")]
    Refused {
        /// Location of the store.
        location: StoreLocation,
        /// The reason and the remedy.
        problem: String,
    },
    /// The outcome is unknown: the batch was sent, but no response came. It is not acknowledged, and is stored whole
    /// or not at all.
    #[error(
        "store {location}: no response to a write ({problem}); it may have been applied: read before retrying it"
    )]
    Unknown {
        /// Location of the store.
        location: StoreLocation,
        /// How the response was lost.
        problem: String,
    },
}
