//! Persistence of the routing information base (RIB): one trait, implemented by redb in a file on one machine, and by
//! etcd in one cluster or several.
//!
//! The control plane and the registry write here; routers never use this crate. An acknowledged write is durable.
//! `rib` serves readers, and follows [`Store::commits`].
//!
//! In a file one transaction commits many queued batches, but each batch keeps its own revision and its own result. The
//! alternative, one transaction per batch, was rejected: a disk takes some hundred syncs a second, and a thousand
//! endpoints that register at once would wait for seconds.

pub mod author;
mod error;
mod etcd;

mod commit_log;
mod file;
mod location;

use std::{fmt::Debug, future::Future, pin::Pin, sync::Arc};

use fairmesh_model::{Revision, StoreId};
use fairmesh_rib::{Batch, Entry};
use tokio::{sync::watch, time::Instant};

pub use commit_log::{Commits, Compacted};
pub use error::{StoreError, WriteError};
pub use etcd::{
    EtcdAddress, EtcdConfig, EtcdLogin, EtcdStore, EtcdTls, PartitionedStore, SplitEvent, SplitRequest,
    is_partitioned,
};
#[doc(hidden)]
pub use file::OpenBackend;
pub use file::{RedbStore, ReplicaContents, ReplicaFile, ReplicaUpdate};
pub use location::StoreLocation;

/// A future behind a trait object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The whole contents of a store: its newest revision, and the entries by ascending key.
pub type StoreSnapshot = (u64, Vec<(Arc<str>, Entry)>);

/// A durable, versioned key space with linearizable, batched compare-and-set writes (ServiceRouter §3.1).
pub trait Store: Debug + Send + Sync + 'static {
    /// Identity of the revision sequence; random, chosen when the store was created.
    fn id(&self) -> StoreId;

    /// The partition that contains `key` now. A batch over several partitions is still one revision.
    fn partition(&self, key: &str) -> u32;

    /// Writes a batch, whole or not at all, and returns its revision once it is durable.
    ///
    /// Expectations refer to the state before the batch. An empty batch changes nothing and returns the current
    /// revision. Dropping the future does not cancel the write.
    fn write(&self, batch: Batch) -> BoxFuture<'_, Result<Revision, WriteError>>;

    /// Reads the whole store at one revision.
    fn load(&self) -> BoxFuture<'_, Result<StoreSnapshot, StoreError>>;

    /// Every commit after the revision `after`, in order and complete, until the store is closed. Revisions ascend, and
    /// may have gaps.
    ///
    /// A bounded number of past commits is retained: subscribe with the revision that [`Store::load`] returned, soon
    /// after it.
    fn commits(&self, after: u64) -> Commits;

    /// Why nothing can be written until the process is restarted; `None` while the store works.
    fn fatal_error(&self) -> Option<&str> {
        None
    }

    /// Why the last write failed, such as a full disk; `None` if it succeeded. Unlike [`Store::fatal_error`] it may be
    /// temporary.
    fn write_failure(&self) -> Option<String> {
        None
    }

    /// Tests whether a write would succeed now, without changing anything; `None` if the store cannot test this.
    ///
    /// # Errors
    /// Why it would fail.
    fn probe_write(&self) -> Option<BoxFuture<'_, Result<(), String>>> {
        None
    }

    /// Reads the copy on this machine's disk and compares checksums, as at open. Writes wait meanwhile.
    ///
    /// # Errors
    /// The damage. Nothing is changed, and reads do not use that copy.
    fn verify(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    /// Until when no other process can write to this store, by this process's clock. Renewals advance it. Once it is
    /// in the past, another process may have written data that is not visible here. `None` if no other process ever
    /// can, or no lease was acquired.
    fn lease_expiry(&self) -> Option<watch::Receiver<Instant>> {
        None
    }

    /// Releases the lease or lock that excludes other processes, before the store is dropped. Nothing may be written
    /// afterwards.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Disk usage in bytes on this machine; 0 if none or unknown.
    fn disk_bytes(&self) -> u64 {
        0
    }
}
