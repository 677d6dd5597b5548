use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use fairmesh_model::StoreId;
use fairmesh_rib::Batch;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    client::{Again, Client},
    layout::Layout,
    write::{self, Guard, Verdict},
};
use crate::{WriteError, history::History};

/// How many batches may wait.
const MAX_WAITING: usize = 4096;
/// How many bytes of keys and values they may hold.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// How many batches are with etcd at once: it syncs those of a moment together.
const MAX_SENT: usize = 128;

/// What the calls to a store and its follower share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) layout: Layout,
    pub(super) id: StoreId,
    /// What stands in etcd for the id.
    pub(super) mark: Bytes,
    pub(super) history: History,
    waiting: Arc<Semaphore>,
    waiting_bytes: Arc<Semaphore>,
    sent: Semaphore,
    /// The revision that proves that this process holds the store; 0 where it was not asked to.
    fence: AtomicU64,
    /// The newest revision that this process wrote, which may not have come back yet.
    written: AtomicU64,
    /// Why nothing can be written any more.
    broken: OnceLock<String>,
}

/// What a batch that waits takes up.
#[derive(Debug)]
pub(super) struct Room {
    _batch: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

impl Shared {
    pub(super) fn new(client: Client, layout: Layout, id: StoreId, mark: Bytes, revision: u64) -> Self {
        Self {
            client,
            layout,
            id,
            mark,
            history: History::after(revision),
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
            waiting_bytes: Arc::new(Semaphore::new(MAX_WAITING_BYTES)),
            sent: Semaphore::new(MAX_SENT),
            fence: AtomicU64::new(0),
            written: AtomicU64::new(revision),
            broken: OnceLock::new(),
        }
    }

    /// The store is not what it was: nothing is written, and subscribers come to their end.
    pub(super) fn broke(&self, reason: String) {
        tracing::error!(place = %self.client.place, reason, "the store cannot be used any more");
        // The first reason is the one that matters.
        let _ = self.broken.set(reason);
        self.history.close();
    }

    pub(super) fn broken(&self) -> Option<&str> {
        self.broken.get().map(String::as_str)
    }

    /// From now on every write rests on this process holding the store.
    pub(super) fn fence(&self, fence: u64) {
        self.fence.store(fence, Relaxed);
    }

    /// The newest revision that this process knows of.
    pub(super) fn known(&self) -> u64 {
        self.written.load(Relaxed).max(self.history.newest())
    }

    /// Room for a batch to wait, or a refusal where too much waits already.
    pub(super) fn room(&self, batch: &Batch) -> Result<Room, WriteError> {
        let bytes: usize =
            batch.ops.iter().map(|op| op.key.len() + op.value.as_ref().map_or(0, Bytes::len)).sum();
        let overloaded = |_| WriteError::Overloaded { place: self.client.place.clone() };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Ok(Room {
            _batch: self.waiting.clone().try_acquire_owned().map_err(overloaded)?,
            _bytes: self.waiting_bytes.clone().try_acquire_many_owned(bytes).map_err(overloaded)?,
        })
    }

    /// Writes a batch when it is its turn, and answers its revision.
    pub(super) async fn write(&self, batch: Batch) -> Result<u64, WriteError> {
        // The semaphore is never closed; if it were, a batch more with etcd would do no harm.
        let _turn = self.sent.acquire().await;
        let place = || self.client.place.clone();
        if let Some(reason) = self.broken() {
            return Err(WriteError::Refused { place: place(), problem: reason.into() });
        }
        let fence = Some(self.fence.load(Relaxed)).filter(|fence| *fence > 0);
        let guard = Guard { mark: &self.mark, fence };
        let txn = write::transaction(&self.layout, guard, &batch);
        let (ops, bytes) = (txn.success.len(), prost::Message::encoded_len(&txn));
        let answer = self.client.txn(Again::Unsent, txn).await;
        let answer = answer.map_err(|failure| failure.writing(&self.client.place, ops, bytes))?;
        match write::verdict(&self.layout, guard, &batch, answer) {
            Verdict::Written(revision) => {
                self.written.fetch_max(revision, Relaxed);
                Ok(revision)
            }
            Verdict::Conflict(conflict) => Err(conflict.into()),
            // Whether it is over is for the keeper of the lease to find out.
            Verdict::Deposed => Err(WriteError::Refused {
                place: place(),
                problem: "this process does not hold the store any more; nothing was written, ask who does"
                    .into(),
            }),
            Verdict::Replaced => {
                let reason = "another store, or none, took its place in etcd; start the process again";
                self.broke(reason.into());
                Err(WriteError::Refused { place: place(), problem: reason.into() })
            }
        }
    }
}
