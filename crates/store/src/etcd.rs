//! The store in an etcd cluster: for those who outgrow one machine, or want several control planes.
//!
//! The number of a revision is etcd's own, so that every control plane of a cluster counts alike. A batch is one
//! transaction; what anybody commits comes back through one watch. Numbers of our own were rejected: they would be a key
//! that every batch has to expect, and of two writers at once one would always have to try again.

mod client;
mod config;
mod connect;
mod failure;
mod follow;
mod gather;
mod hold;
mod layout;
mod load;
mod partitioned;
mod shared;
mod waiting;
mod write;

/// The messages of etcd, generated from `proto/etcd.proto`.
// Our lints are for code that people wrote.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub, dead_code)]
#[allow(clippy::all, clippy::too_many_lines, clippy::cognitive_complexity, clippy::disallowed_methods)]
mod proto {
    tonic::include_proto!("etcdserverpb");
}

use std::{
    fs::File,
    io::Read,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{Revision, StoreId};
use fairmesh_rib::Batch;
use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, timeout},
};

use crate::{BoxFuture, Commits, Loaded, Store, StoreError, WriteError};
use client::{Again, Client};
pub use config::{EtcdAddress, EtcdConfig, EtcdLogin, EtcdTls};
use follow::{follow, read_state};
use hold::Hold;
use layout::{Layout, Mark, State};
pub use partitioned::{PartitionedStore, SplitEvent, SplitWish, is_partitioned};
use shared::Shared;

/// What `--max-txn-ops` has to be for every batch to fit: its operations, and one that notes the revision.
const MAX_TXN_OPS: usize = fairmesh_rib::MAX_OPS + 1;
/// What `--max-request-bytes` has to be for every batch to fit: keys stand in a transaction up to three times.
const MAX_REQUEST_BYTES: usize = 8 << 20;
/// How long giving a store up may take.
const FAREWELL: Duration = Duration::from_secs(2);
/// The one partition of a store in one cluster.
const PARTITION: u32 = 0;

/// A store in an etcd cluster, which any number of processes may hold. Lives within the tokio runtime that opened it.
#[derive(Debug)]
pub struct EtcdStore {
    shared: Arc<Shared>,
    follower: AbortHandle,
    keeper: OnceLock<Keeper>,
}

/// The task that renews the lease of a store that is held.
#[derive(Debug)]
struct Keeper {
    task: AbortHandle,
    /// The lease.
    lease: Arc<AtomicI64>,
}

impl EtcdStore {
    /// Opens the store, and creates it where there is none.
    ///
    /// # Errors
    /// [`StoreError`] when no member answers for ten seconds, when etcd denies access, or when the keys below the root
    /// are not those of a store of a known format.
    pub async fn open(config: &EtcdConfig) -> Result<Self, StoreError> {
        let (client, layout) = (Client::new(config)?, Layout::new(config.address.root()));
        let reading = |failure: failure::Failure| failure.reading(&config.address.place());
        let mut state = read_state(&client, &layout).await.map_err(reading)?;
        if state.mark.is_none() {
            let creation = write::creation(&layout, &layout::mark(Mark::Whole(draw(&client)?)));
            // Twice does no harm: the second finds what the first, or somebody else's, created.
            client.txn(Again::Always, creation).await.map_err(reading)?;
            state = read_state(&client, &layout).await.map_err(reading)?;
        }
        let State { last, revision, mark, .. } = state;
        let mark = mark.unwrap_or_default();
        let id = layout::id_in(&mark, &client.place)?;
        let shared = Arc::new(Shared::new(client, layout, id, mark, last));
        let follower = tokio::spawn(follow(shared.clone(), revision + 1)).abort_handle();
        Ok(Self { shared, follower, keeper: OnceLock::new() })
    }

    /// Waits until no other process holds the store, and from then on lets only this one write, of those that hold it.
    /// `who` is for people. It is held for `term` at a time: so long after a death another can take over. To be called
    /// once, before anything is written.
    ///
    /// When it is lost, as after a pause of more than the term in which another took over, nothing more is written and
    /// the store is [`broken`](Store::broken).
    ///
    /// # Errors
    /// As [`EtcdStore::open`].
    pub async fn hold(&self, who: &str, term: Duration) -> Result<(), StoreError> {
        let taken = Hold::take(&self.shared, who, term).await;
        let hold = taken.map_err(|failure| failure.reading(&self.shared.client.place))?;
        let lease = Arc::new(AtomicI64::new(hold.lease()));
        let task = tokio::spawn(hold.keep(self.shared.clone(), Arc::clone(&lease))).abort_handle();
        // Held once already: the newer lease runs out.
        let _ = self.keeper.set(Keeper { task, lease });
        Ok(())
    }

    async fn give_up(&self) {
        let Some(keeper) = self.keeper.get() else { return };
        keeper.task.abort();
        let lease = keeper.lease.load(Relaxed);
        let revoked = timeout(FAREWELL, self.shared.client.revoke(lease)).await;
        if !matches!(revoked, Ok(Ok(()))) {
            tracing::warn!(place = %self.shared.client.place, "the store stays held until the hold runs out");
        }
    }

    /// Gives the store another id, and answers it: once, after an older copy of etcd's data was put back. Processes that
    /// have the store open end.
    ///
    /// # Errors
    /// As [`EtcdStore::open`]; a store that is not there is an error too.
    pub async fn renew_id(config: &EtcdConfig) -> Result<StoreId, StoreError> {
        let (client, layout) = (Client::new(config)?, Layout::new(config.address.root()));
        let reading = |failure: failure::Failure| failure.reading(&config.address.place());
        let refused =
            |problem: &str| StoreError::Refused { place: config.address.place(), problem: problem.into() };
        let state = read_state(&client, &layout).await.map_err(reading)?;
        let before = state.mark.ok_or_else(|| refused("there is no store; leave --new-store-id out"))?;
        layout::id_in(&before, &client.place)?;
        let id = draw(&client)?;
        let renewal = write::renewal(&layout, &before, &layout::mark(Mark::Whole(id)));
        match client.txn(Again::Unsent, renewal).await.map_err(reading)?.succeeded {
            true => Ok(id),
            false => {
                Err(refused("somebody else gave it a new id at the same time; leave --new-store-id out"))
            }
        }
    }

    async fn submit(&self, batch: Batch) -> Result<Revision, WriteError> {
        let place = || self.shared.client.place.clone();
        let number = if batch.ops.is_empty() {
            let state = self.shared.state().await;
            state.map_err(|failure| failure.writing(&place(), 0, 0))?.last
        } else {
            batch.validate()?;
            let (room, shared) =
                (self.shared.waiting.room(&batch, &self.shared.client.place)?, self.shared.clone());
            // A task of its own, so that a caller who leaves does not take the batch back half way.
            let written = tokio::spawn(async move {
                let _room = room;
                shared.write(batch).await
            });
            let lost = |ended: tokio::task::JoinError| WriteError::Unknown {
                place: place(),
                problem: ended.to_string(),
            };
            written.await.map_err(lost)??
        };
        Ok(Revision { store: self.shared.id, partition: PARTITION, number })
    }
}

impl Store for EtcdStore {
    fn id(&self) -> StoreId {
        self.shared.id
    }

    fn partition(&self, _key: &str) -> u32 {
        PARTITION
    }

    fn write(&self, batch: Batch) -> BoxFuture<'_, Result<Revision, WriteError>> {
        Box::pin(self.submit(batch))
    }

    fn load(&self) -> BoxFuture<'_, Result<Loaded, StoreError>> {
        Box::pin(load::load(&self.shared))
    }

    fn commits(&self, after: u64) -> Commits {
        self.shared.history.subscribe(after)
    }

    fn broken(&self) -> Option<&str> {
        self.shared.broken()
    }

    fn held_until(&self) -> Option<watch::Receiver<Instant>> {
        self.keeper.get().map(|_| self.shared.until.subscribe())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.give_up())
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.follower.abort();
        if let Some(keeper) = self.keeper.get() {
            keeper.task.abort();
        }
        self.shared.history.close();
    }
}

fn draw(client: &Client) -> Result<StoreId, StoreError> {
    let mut id = [0; 16];
    let drawn = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut id));
    drawn.map_err(|source| StoreError::Unreadable { place: client.place.clone(), source })?;
    Ok(StoreId(u128::from_be_bytes(id)))
}
