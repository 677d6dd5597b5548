//! Where the routing information base (RIB) persists: one trait, redb behind it on one machine, and etcd, in one cluster
//! or several, where that is outgrown.
//!
//! The control plane and the registry write here; routers never see this crate. A write that is acknowledged is on
//! disk. Values live in the store alone: readers are served by `rib`, which follows [`Store::commits`].
//!
//! In a file one transaction commits many waiting batches, but each batch keeps its own revision and its own verdict. The
//! alternative, one transaction a batch, was rejected: a disk takes some hundred syncs a second, and a thousand
//! endpoints that register at once would wait for seconds.

mod error;
mod etcd;

mod file;
mod history;
mod place;

use std::{fmt::Debug, future::Future, pin::Pin, sync::Arc};

use fairmesh_model::{Revision, StoreId};
use fairmesh_rib::{Batch, Entry};
use tokio::{sync::watch, time::Instant};

pub use error::{StoreError, WriteError};
pub use etcd::{
    EtcdAddress, EtcdConfig, EtcdLogin, EtcdStore, EtcdTls, PartitionedStore, SplitEvent, SplitWish,
    is_partitioned,
};
#[doc(hidden)]
pub use file::OpenBackend;
pub use file::{Changes, Copied, CopyFile, RedbStore};
pub use history::{Behind, Commits};
pub use place::Place;

/// A future behind a trait object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Everything that a store holds: the number of its newest revision, and the entries by ascending key.
pub type Loaded = (u64, Vec<(Arc<str>, Entry)>);

/// A durable, versioned key space with linearizable, batched compare-and-set writes (ServiceRouter §3.1).
pub trait Store: Debug + Send + Sync + 'static {
    /// Who counts the revisions; drawn once, when the store was created.
    fn id(&self) -> StoreId;

    /// The partition that holds `key` now. A batch may touch several: it is one revision all the same.
    fn partition(&self, key: &str) -> u32;

    /// Writes a batch, whole or not at all, and answers once it is on disk with the revision that it became.
    ///
    /// Expectations are about the state before the batch. An empty batch changes nothing and answers the current
    /// revision. Dropping the future does not take the batch back.
    fn write(&self, batch: Batch) -> BoxFuture<'_, Result<Revision, WriteError>>;

    /// Reads everything at one revision.
    fn load(&self) -> BoxFuture<'_, Result<Loaded, StoreError>>;

    /// Every commit after the revision `after`, in order and with none left out, from now to the end of the store. Numbers
    /// ascend, and may have gaps.
    ///
    /// A bounded number of past commits is kept: ask with the revision that [`Store::load`] gave, soon after it.
    fn commits(&self, after: u64) -> Commits;

    /// Why nothing can be written any more, until the process is started again; `None` while all is well.
    fn broken(&self) -> Option<&str> {
        None
    }

    /// Why the last write failed, such as for a full disk; `None` where it did not. Unlike [`Store::broken`] this may pass.
    fn failing(&self) -> Option<String> {
        None
    }

    /// Reads all that is kept on this machine's disk and compares checksums, as is done when it is opened. Writes wait meanwhile.
    ///
    /// # Errors
    /// What is damaged. Nothing is changed by it: what is served does not come from there.
    fn verify(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    /// Until when no other process can write here, by this process's clock. It moves on for as long as that is so, and
    /// lies in the past from when another may have written what is not seen here. `None` where no other ever can, or was
    /// not asked to be kept from it.
    fn held_until(&self) -> Option<watch::Receiver<Instant>> {
        None
    }

    /// Gives up what keeps other processes from writing, before it is dropped. Nothing is to be written afterwards.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// How many bytes of this machine's disk it takes now; 0 where it takes none or that cannot be found out.
    fn disk_bytes(&self) -> u64 {
        0
    }
}
