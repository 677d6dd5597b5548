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
    client::{Again, Client},
    layout::Layout,
    waiting::Waiting,
    write::{self, Guard, Verdict},
};
use crate::{WriteError, history::History};

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
    pub(super) waiting: Waiting,
    sent: Semaphore,
    /// The revision that proves that this process holds the store; 0 where it was not asked to.
    fence: AtomicU64,
    /// Until when nobody else can hold the store.
    pub(super) until: watch::Sender<Instant>,
    /// The newest revision that this process wrote, which may not have come back yet.
    written: AtomicU64,
    /// Whether taking hold is what writes `last`, and batches do not.
    pub(super) traces_holds: bool,
    /// Why nothing can be written any more.
    broken: OnceLock<String>,
}

impl Shared {
    pub(super) fn new(client: Client, layout: Layout, id: StoreId, mark: Bytes, revision: u64) -> Self {
        Self {
            client,
            layout,
            id,
            mark,
            history: History::after(revision),
            waiting: Waiting::default(),
            sent: Semaphore::new(MAX_SENT),
            fence: AtomicU64::new(0),
            until: watch::Sender::new(Instant::now()),
            written: AtomicU64::new(revision),
            traces_holds: false,
            broken: OnceLock::new(),
        }
    }

    /// The store is not what it was: nothing is written, and subscribers come to their end.
    pub(super) fn broke(&self, reason: String) {
        tracing::error!(place = %self.client.place, reason, "the store cannot be used any more");
        // The first reason is the one that matters.
        let _ = self.broken.set(reason);
        self.until.send_modify(|until| *until = Instant::now().min(*until));
        self.history.close();
    }

    pub(super) fn broken(&self) -> Option<&str> {
        self.broken.get().map(String::as_str)
    }

    /// From now on every write rests on this process holding the store.
    pub(super) fn fence(&self, fence: u64) {
        self.fence.store(fence, Relaxed);
    }

    /// What every write rests on; 0 where this process does not hold the store.
    pub(super) fn held(&self) -> u64 {
        self.fence.load(Relaxed)
    }

    /// The newest revision of `last` that this process knows of.
    pub(super) fn known(&self) -> u64 {
        if self.traces_holds {
            return self.held();
        }
        self.written.load(Relaxed).max(self.history.newest())
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
