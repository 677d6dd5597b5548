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
    layout::Layout,
    txn::{self, Guard, TxnOutcome},
    write_admission::WriteAdmission,
};
use crate::{WriteError, commit_log::CommitLog};

/// Batches in flight to etcd, which syncs concurrent proposals together.
const MAX_IN_FLIGHT: usize = 128;

/// State shared by the calls to a store and its watch loop.
#[derive(Debug)]
pub(super) struct EtcdState {
    pub(super) client: Client,
    pub(super) layout: Layout,
    pub(super) id: StoreId,
    /// Value of `store` in etcd.
    pub(super) identity: Bytes,
    pub(super) commit_log: CommitLog,
    pub(super) admission: WriteAdmission,
    in_flight: Semaphore,
    /// Revision that created the `holder` key of this process; 0 without a writer lease.
    fence: AtomicU64,
    /// Until when no other process can acquire the writer lease.
    pub(super) lease_expiry: watch::Sender<Instant>,
    /// Newest revision written by this process, possibly not yet delivered by the watch.
    written: AtomicU64,
    /// Whether acquiring the lease writes `last`, while batches do not.
    pub(super) acquisition_writes_last: bool,
    /// Why nothing can be written any more.
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

    /// Ends the store after it was replaced or its lease was lost: nothing is written, and subscriptions end.
    pub(super) fn fail(&self, reason: String) {
        tracing::error!(location = %self.client.location, reason, "the store is not usable any more");
        // The first reason is the cause of the later ones.
        let _ = self.fatal_error.set(reason);
        self.lease_expiry.send_modify(|expiry| *expiry = Instant::now().min(*expiry));
        self.commit_log.close();
    }

    pub(super) fn fatal_error(&self) -> Option<&str> {
        self.fatal_error.get().map(String::as_str)
    }

    /// Makes every write depend on the writer lease of this process.
    pub(super) fn set_fence(&self, fence: u64) {
        self.fence.store(fence, Relaxed);
    }

    /// Fence of every write; 0 without a writer lease.
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

    /// Writes a batch once fewer than [`MAX_IN_FLIGHT`] are in flight, and returns its revision.
    pub(super) async fn write(&self, batch: Batch) -> Result<u64, WriteError> {
        // The semaphore is never closed; if it were, one more batch in flight would do no harm.
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
            // The lease keeper determines whether the lease is lost for good.
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
