//! Persistence of the routing information base (RIB). One trait has two implementations: redb in a file on one
//! machine, and etcd in one or several clusters.
//!
//! The control plane and the registry write to a store; routers never use this crate. An acknowledged write is
//! durable. The crate `rib` serves readers, and follows [`Store::commits`].
//!
//! In a file, one transaction commits many queued batches, but each batch keeps its own revision and result. One
//! transaction per batch was rejected: a disk completes some hundred syncs a second, and a thousand endpoints that
//! register at once would wait for seconds.

mod error;
mod etcd;
pub mod write_author;

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
    EtcdAddress, EtcdConfig, EtcdLogin, EtcdStore, EtcdTls, OpenStore, PartitionedStore, SplitEvent,
    SplitRequest, is_partitioned, read_home_record,
};
#[doc(hidden)]
pub use file::OpenBackend;
pub use file::{RedbStore, ReplicaContents, ReplicaFile, ReplicaUpdate};
pub use location::StoreLocation;

/// A boxed future, for methods of trait objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The whole contents of a store: its newest revision, and the entries by ascending key.
pub type StoreSnapshot = (u64, Vec<(Arc<str>, Entry)>);

/// A durable, versioned key space with linearizable, batched compare-and-set writes (ServiceRouter §3.1).
pub trait Store: Debug + Send + Sync + 'static {
    /// Identity of the revision sequence; chosen at random when the store is created.
    fn id(&self) -> StoreId;

    /// Returns the partition that currently contains `key`. A batch over several partitions still has a single
    /// revision.
    fn partition(&self, key: &str) -> u32;

    /// Writes a batch, whole or not at all, and returns its revision once it is durable.
    ///
    /// Expectations refer to the state before the batch. An empty batch changes nothing and returns the current
    /// revision. Dropping the future does not cancel the write.
    fn write(&self, batch: Batch) -> BoxFuture<'_, Result<Revision, WriteError>>;

    /// Reads the whole store at one revision.
    fn load(&self) -> BoxFuture<'_, Result<StoreSnapshot, StoreError>>;

    /// Subscribes to every commit after the revision `after`, in order and complete, until the store is closed.
    /// Revisions ascend and may have gaps.
    ///
    /// Only a bounded number of past commits is retained. Subscribe with the revision that [`Store::load`] returned,
    /// soon after the load.
    fn commits(&self, after: u64) -> Commits;

    /// Reason why no write can succeed until the process is restarted; `None` while the store works.
    fn fatal_error(&self) -> Option<&str> {
        None
    }

    /// Reason why the last write failed, for example because the disk is full; `None` if it succeeded. Unlike
    /// [`Store::fatal_error`], the reason may be temporary.
    fn write_failure(&self) -> Option<String> {
        None
    }

    /// Tests whether a write would succeed now, without changing anything; `None` if the store has no such test.
    ///
    /// # Errors
    /// Why a write would fail.
    fn probe_write(&self) -> Option<BoxFuture<'_, Result<(), String>>> {
        None
    }

    /// Reads the copy on this machine's disk and compares checksums, as on open. Writes wait meanwhile.
    ///
    /// # Errors
    /// The damage. Nothing is changed, and reads are not served from the damaged copy.
    fn verify(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    /// Time until which no other process can write to this store, by this process's clock. Renewals advance it.
    /// Afterwards, another process may have written data that is not visible here. `None` if no other process can
    /// ever write, or if no lease was acquired.
    fn lease_expiry(&self) -> Option<watch::Receiver<Instant>> {
        None
    }

    /// Releases the lease or lock that excludes other processes, before the store is dropped. Nothing may be written
    /// afterwards.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Returns the disk usage on this machine in bytes; 0 if none or unknown.
    fn disk_bytes(&self) -> u64 {
        0
    }
}
