//! A store in one etcd cluster. It survives the loss of a machine and serves several control planes.
//!
//! Revisions are etcd's own, so that every control plane uses the same numbers. A batch is one transaction, and one
//! watch receives the commits of all writers. Revisions counted by Fairmesh were rejected: every batch would have to
//! expect one shared key, so that one of two concurrent writers would always have to retry.

mod call_error;
mod client;
mod config;
mod connect;
mod key_layout;
mod load;
mod open_store;
mod partitioned;
mod state;
mod txn;
mod watch_assembler;
mod watch_loop;
mod write_admission;
mod writer_lease;

/// Protobuf messages of etcd, generated from `proto/etcd.proto`.
// Lints apply to hand-written code only.
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

use crate::{BoxFuture, Commits, Store, StoreError, StoreSnapshot, WriteError};
use client::{Client, RetryPolicy};
pub use config::{EtcdAddress, EtcdConfig, EtcdLogin, EtcdTls};
use key_layout::{Identity, Layout, StoreMeta};
pub use open_store::OpenStore;
pub use partitioned::{PartitionedStore, SplitEvent, SplitRequest, is_partitioned, read_home_record};
use state::EtcdState;
use watch_loop::{read_meta, watch_commits};
use writer_lease::WriterLease;

/// Value of etcd's `--max-txn-ops` that suffices for every batch: its operations, and one that records the revision.
const MAX_TXN_OPS: usize = fairmesh_rib::MAX_OPS + 1;
/// Value of etcd's `--max-request-bytes` that suffices for every batch: a transaction contains each key up to three
/// times.
const MAX_REQUEST_BYTES: usize = 8 << 20;
/// Time limit for releasing the lease on close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Fence of a process that waits for the writer lease: no key is ever created at this revision.
const UNHELD_FENCE: u64 = i64::MAX as u64;
/// The only partition of a store in one cluster.
const PARTITION: u32 = 0;

/// A store in an etcd cluster. Any number of processes may open it. It must not outlive the tokio runtime that opened
/// it.
#[derive(Debug)]
pub struct EtcdStore {
    shared: Arc<EtcdState>,
    watcher: AbortHandle,
    lease_keeper: OnceLock<LeaseKeeper>,
}

/// The task that renews the writer lease.
#[derive(Debug)]
struct LeaseKeeper {
    task: AbortHandle,
    /// Id of the current lease.
    lease_id: Arc<AtomicI64>,
}

impl EtcdStore {
    /// Opens the store, or creates it if absent.
    ///
    /// # Errors
    /// [`StoreError`] when no member responds for ten seconds, when etcd denies access, or when the keys below the root
    /// are not those of a store of a known format.
    pub async fn open(config: &EtcdConfig) -> Result<Self, StoreError> {
        let (client, layout) = (Client::new(config)?, Layout::new(config.address.root()));
        let store_error =
            |failure: call_error::CallError| failure.into_store_error(&config.address.location());
        let mut meta = read_meta(&client, &layout).await.map_err(store_error)?;
        if meta.identity.is_none() {
            let create = txn::create(
                &layout,
                &key_layout::encode_identity(Identity::SingleCluster(random_id(&client)?)),
            );
            // Idempotent: a second attempt finds the store that the first attempt or another process created.
            client.txn(RetryPolicy::Repeatable, create).await.map_err(store_error)?;
            meta = read_meta(&client, &layout).await.map_err(store_error)?;
        }
        let StoreMeta { last, revision, identity, .. } = meta;
        let identity = identity.unwrap_or_default();
        let id = key_layout::single_cluster_id(&identity, &client.location)?;
        let shared = Arc::new(EtcdState::new(client, layout, id, identity, last));
        let watcher = tokio::spawn(watch_commits(shared.clone(), revision + 1)).abort_handle();
        Ok(Self { shared, watcher, lease_keeper: OnceLock::new() })
    }

    /// Waits until no other process holds the writer lease, and acquires it. From then on no other process that uses
    /// leases can write. `holder` names this process in messages. Another process can acquire the lease `ttl` after
    /// the last renewal. Call this once, before anything is written.
    ///
    /// A full etcd grants no lease. In this case the call returns, and the lease is acquired in the background once
    /// there is space. Until then the store serves reads, possibly stale, and refuses writes.
    ///
    /// If the lease is lost, nothing more is written and the store reports a [`fatal_error`](Store::fatal_error).
    /// This happens, for example, when another process acquires the lease during a pause longer than `ttl`.
    ///
    /// # Errors
    /// As for [`EtcdStore::open`].
    pub async fn acquire_writer_lease(&self, holder: &str, ttl: Duration) -> Result<(), StoreError> {
        let acquired = WriterLease::acquire(&self.shared, holder, ttl).await;
        let (shared, lease_id) = (self.shared.clone(), Arc::<AtomicI64>::default());
        let current = Arc::clone(&lease_id);
        let task = match acquired {
            Ok(lease) => {
                lease_id.store(lease.id(), Relaxed);
                tokio::spawn(lease.keep_alive(shared, current)).abort_handle()
            }
            Err(failure) if failure.is_full() => {
                tracing::error!(location = %shared.client.location, problem = failure.message(), "the store takes no writes; its records are served, and may be stale");
                shared.set_fence(UNHELD_FENCE);
                let lease = WriterLease::unheld(holder, ttl);
                tokio::spawn(lease.acquire_later(shared, current)).abort_handle()
            }
            Err(failure) => return Err(failure.into_store_error(&self.shared.client.location)),
        };
        // If called twice, the second lease is not kept and expires.
        let _ = self.lease_keeper.set(LeaseKeeper { task, lease_id });
        Ok(())
    }

    async fn release_lease(&self) {
        let Some(lease_keeper) = self.lease_keeper.get() else { return };
        lease_keeper.task.abort();
        let lease_id = lease_keeper.lease_id.load(Relaxed);
        let revoked = timeout(CLOSE_TIMEOUT, self.shared.client.revoke(lease_id)).await;
        if !matches!(revoked, Ok(Ok(()))) {
            tracing::warn!(location = %self.shared.client.location, "the writer lease could not be revoked and remains until it expires");
        }
    }

    /// Gives the store a new id and returns it. Do this once after restoring an older snapshot of etcd. Processes
    /// that have the store open then stop with an error.
    ///
    /// # Errors
    /// As for [`EtcdStore::open`]; a missing store is an error too.
    pub async fn regenerate_id(config: &EtcdConfig) -> Result<StoreId, StoreError> {
        let (client, layout) = (Client::new(config)?, Layout::new(config.address.root()));
        let store_error =
            |failure: call_error::CallError| failure.into_store_error(&config.address.location());
        let refused = |problem: &str| StoreError::Refused {
            location: config.address.location(),
            problem: problem.into(),
        };
        let meta = read_meta(&client, &layout).await.map_err(store_error)?;
        let before = meta.identity.ok_or_else(|| refused("there is no store; leave --new-store-id out"))?;
        key_layout::single_cluster_id(&before, &client.location)?;
        let id = random_id(&client)?;
        let renew =
            txn::regenerate_id(&layout, &before, &key_layout::encode_identity(Identity::SingleCluster(id)));
        match client.txn(RetryPolicy::NonRepeatable, renew).await.map_err(store_error)?.succeeded {
            true => Ok(id),
            false => {
                Err(refused("another process gave it a new id at the same time; leave --new-store-id out"))
            }
        }
    }

    async fn submit(&self, batch: Batch) -> Result<Revision, WriteError> {
        let location = || self.shared.client.location.clone();
        let number = if batch.ops.is_empty() {
            let meta = self.shared.meta().await;
            meta.map_err(|failure| failure.into_write_error(&location(), 0, 0))?.last
        } else {
            batch.validate()?;
            let (permit, shared) =
                (self.shared.admission.admit(&batch, &self.shared.client.location)?, self.shared.clone());
            // Spawned as a task, so that cancelling the caller does not cancel a write in flight.
            let written = tokio::spawn(async move {
                let _permit = permit;
                shared.write(batch).await
            });
            let lost = |ended: tokio::task::JoinError| WriteError::Unknown {
                location: location(),
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

    fn load(&self) -> BoxFuture<'_, Result<StoreSnapshot, StoreError>> {
        Box::pin(load::load(&self.shared))
    }

    fn commits(&self, after: u64) -> Commits {
        self.shared.commit_log.subscribe(after)
    }

    fn fatal_error(&self) -> Option<&str> {
        self.shared.fatal_error()
    }

    fn probe_write(&self) -> Option<BoxFuture<'_, Result<(), String>>> {
        let deadline = txn::probe_deadline();
        Some(Box::pin(txn::probe_write(&self.shared.client, &self.shared.layout, deadline)))
    }

    fn lease_expiry(&self) -> Option<watch::Receiver<Instant>> {
        self.lease_keeper.get().map(|_| self.shared.lease_expiry.subscribe())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.release_lease())
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.watcher.abort();
        if let Some(lease_keeper) = self.lease_keeper.get() {
            lease_keeper.task.abort();
        }
        self.shared.commit_log.close();
    }
}

fn random_id(client: &Client) -> Result<StoreId, StoreError> {
    let mut id = [0; 16];
    let drawn = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut id));
    drawn.map_err(|source| StoreError::Io { location: client.location.clone(), source })?;
    Ok(StoreId(u128::from_be_bytes(id)))
}
