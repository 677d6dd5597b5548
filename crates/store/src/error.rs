use std::io;

use fairmesh_model::Invalid;
use fairmesh_rib::Conflict;

use crate::Place;

/// Why a store cannot be opened or read. It is left as it was.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error(
        "store {place}: another process has it open; stop that one first, or give this one a data directory of its own"
    )]
    Locked {
        /// Where it is.
        place: Place,
    },
    /// The content cannot be trusted.
    #[error(
        "store {place}: the file is damaged ({problem}); restore it from a copy and start once with --new-store-id, or \
         move it away to start empty"
    )]
    Corrupt {
        /// Where it is.
        place: Place,
        /// What was found.
        problem: String,
    },
    /// Somebody else's file.
    #[error(
        "store {place}: this is not a Fairmesh store ({problem}); give another data directory, restore the store from \
         a copy and start once with --new-store-id, or move the file away to start empty"
    )]
    Foreign {
        /// Where it is.
        place: Place,
        /// What was found.
        problem: String,
    },
    /// Written by a later release.
    #[error(
        "store {place}: it has format {found} and this release reads up to {known}; start the release that wrote it"
    )]
    Newer {
        /// Where it is.
        place: Place,
        /// Its format.
        found: u128,
        /// The newest format that this release reads.
        known: u128,
    },
    /// No space is left.
    #[error("store {place}: the disk is full; free some space, then start again")]
    Full {
        /// Where it is.
        place: Place,
    },
    /// The operating system refused.
    #[error("store {place}: {source}; check that the directory exists, belongs to this user and is writable")]
    Unreadable {
        /// Where it is, or the directory that it should be in.
        place: Place,
        /// What the system said.
        source: io::Error,
    },
    /// No etcd of the cluster answers.
    #[error(
        "store {place}: etcd does not answer ({problem}); check its addresses, its certificates, and that a majority runs"
    )]
    Away {
        /// Where it is.
        place: Place,
        /// What the last attempt ended with.
        problem: String,
    },
    /// Etcd answers and does not do what was asked, or what it holds is not this store.
    #[error("store {place}: {problem}")]
    Refused {
        /// Where it is.
        place: Place,
        /// What it said, and what to do.
        problem: String,
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
    #[error("store {place}: too many writes are waiting; try again in a moment")]
    Overloaded {
        /// Where it is.
        place: Place,
    },
    /// No space is left. The batch is not acknowledged and never stored in part.
    #[error("store {place}: the disk is full; free some space and write again")]
    Full {
        /// Where it is.
        place: Place,
    },
    /// The disk failed. The batch is not acknowledged and never stored in part.
    #[error("store {place}: the write failed ({source}); check the disk and write again")]
    Failed {
        /// Where it is.
        place: Place,
        /// What went wrong.
        source: io::Error,
    },
    /// No etcd of the cluster took the batch. Nothing is written.
    #[error("store {place}: etcd does not answer ({problem}); nothing was written, try again")]
    Away {
        /// Where it is.
        place: Place,
        /// What the last attempt ended with.
        problem: String,
    },
    /// Etcd refused the batch. Nothing is written.
    #[error("store {place}: {problem}")]
    Refused {
        /// Where it is.
        place: Place,
        /// What it said, and what to do.
        problem: String,
    },
    /// The batch was sent and no verdict came back. It is not acknowledged; it is stored whole or not at all.
    #[error(
        "store {place}: no answer to a write ({problem}); it may have been carried out: read before writing it again"
    )]
    Unknown {
        /// Where it is.
        place: Place,
        /// How the answer was lost.
        problem: String,
    },
}
