use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use fairmesh_model::StoreId;
use fairmesh_rib::Batch;
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};

use super::{
    client::{Client, RetryPolicy},
    key_layout::Layout,
    txn::{self, Guard, TxnOutcome},
    write_admission::WriteAdmission,
};
use crate::{WriteError, commit_log::CommitLog};

/// Maximum number of batches in flight to etcd, which syncs concurrent proposals together.
const MAX_IN_FLIGHT: usize = 128;

/// State shared by the calls to a store and its watch loop.
#[derive(Debug)]
pub(super) struct EtcdState {
    pub(super) client: Client,
    pub(super) layout: Layout,
    pub(super) id: StoreId,
    /// Value of the metadata key `store` in etcd.
    pub(super) identity: Bytes,
    pub(super) commit_log: CommitLog,
    pub(super) admission: WriteAdmission,
    in_flight: Semaphore,
    /// Revision that created this process's `holder` key; 0 without a writer lease.
    fence: AtomicU64,
    /// Time until which no other process can acquire the writer lease.
    pub(super) lease_expiry: watch::Sender<Instant>,
    /// Newest revision written by this process, possibly not yet received from the watch.
    written: AtomicU64,
    /// Whether acquiring the lease writes the key `last`, instead of each batch, as in a partitioned store.
    pub(super) acquisition_writes_last: bool,
    /// Why no more writes are possible.
    fatal_error: OnceLock<String>,
}

impl EtcdState {
    pub(super) fn new(client: Client, layout: Layout, id: StoreId, identity: Bytes, revision: u64) -> Self {
        Self {
            client,
            layout,
            id,
            identity,
            commit_log: CommitLog::after(revision),
            admission: WriteAdmission::default(),
            in_flight: Semaphore::new(MAX_IN_FLIGHT),
            fence: AtomicU64::new(0),
            lease_expiry: watch::Sender::new(Instant::now()),
            written: AtomicU64::new(revision),
            acquisition_writes_last: false,
            fatal_error: OnceLock::new(),
        }
    }

    /// Ends the store after it was replaced or its lease was lost: writes are refused and subscriptions end.
    pub(super) fn fail(&self, reason: String) {
        tracing::error!(location = %self.client.location, reason, "the store is not usable any more");
        // Only the first reason is kept, because it is the cause of later ones.
        let _ = self.fatal_error.set(reason);
        self.lease_expiry.send_modify(|expiry| *expiry = Instant::now().min(*expiry));
        self.commit_log.close();
    }

    pub(super) fn fatal_error(&self) -> Option<&str> {
        self.fatal_error.get().map(String::as_str)
    }

    /// Makes every write conditional on this process's writer lease.
    pub(super) fn set_fence(&self, fence: u64) {
        self.fence.store(fence, Relaxed);
    }

    /// Returns the fence of every write; 0 without a writer lease.
    pub(super) fn fence(&self) -> u64 {
        self.fence.load(Relaxed)
    }

    /// Newest revision of `last` known to this process.
    pub(super) fn newest_known(&self) -> u64 {
        if self.acquisition_writes_last {
            return self.fence();
        }
        self.written.load(Relaxed).max(self.commit_log.newest())
    }

    /// Writes a batch once fewer than [`MAX_IN_FLIGHT`] batches are in flight, and returns the batch's revision.
    pub(super) async fn write(&self, batch: Batch) -> Result<u64, WriteError> {
        // The semaphore is never closed; if it were, another batch in flight would do no harm.
        let _permit = self.in_flight.acquire().await;
        let location = || self.client.location.clone();
        if let Some(reason) = self.fatal_error() {
            return Err(WriteError::Refused { location: location(), problem: reason.into() });
        }
        let fence = Some(self.fence.load(Relaxed)).filter(|fence| *fence > 0);
        let guard = Guard { identity: &self.identity, fence };
        let txn = txn::write_batch(&self.layout, guard, &batch);
        let (ops, bytes) = (txn.success.len(), prost::Message::encoded_len(&txn));
        let response = self.client.txn(RetryPolicy::NonRepeatable, txn).await;
        let response =
            response.map_err(|failure| failure.into_write_error(&self.client.location, ops, bytes))?;
        match txn::outcome(&self.layout, guard, &batch, response) {
            TxnOutcome::Written(revision) => {
                self.written.fetch_max(revision, Relaxed);
                Ok(revision)
            }
            TxnOutcome::Conflict(conflict) => Err(conflict.into()),
            // The task that renews the lease decides whether the lease is lost for good.
            TxnOutcome::Fenced => Err(WriteError::Refused {
                location: location(),
                problem:
                    "the writer lease is lost and nothing was written; write to the active control plane"
                        .into(),
            }),
            TxnOutcome::StoreReplaced => {
                let reason = "another store, or none, is below this root now; start the process again";
                self.fail(reason.into());
                Err(WriteError::Refused { location: location(), problem: reason.into() })
            }
        }
    }
}
