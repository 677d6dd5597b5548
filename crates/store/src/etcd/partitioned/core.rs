//! What the calls to a store over several clusters share.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use fairmesh_rib::{Batch, Op};
use tokio::{sync::Semaphore, time::sleep};

use super::{
    super::{EtcdConfig, shared::Shared, waiting::Room},
    cluster::{Cluster, Verdict},
    keys::Keys,
    map::{HOME, PartitionMap},
    sequence::Sequence,
    split::Move,
    sweep::carry,
};
use crate::{Place, WriteError};

/// How many batches over several parts are under way at once: they hold a lane in each, and one part that does not answer
/// must not use up the lanes of the others.
const SPANNING: usize = 8;
/// The pause after a part could not be told that a number is passed over.
const NOTE_PAUSE: Duration = Duration::from_millis(50);

/// What stands where numbers were passed over.
pub(super) const GAP: &str = "gap";

#[derive(Debug)]
pub(super) struct Core {
    /// Who holds the store, what is published and what waits.
    pub(super) home: Arc<Shared>,
    /// How clusters are reached.
    pub(super) config: EtcdConfig,
    routes: RwLock<Arc<Routes>>,
    pub(super) sequence: Sequence,
    pub(super) keys: Keys,
    pub(super) spanning: Semaphore,
    /// Whoever moves records as they are.
    pub(super) moving: tokio::sync::Mutex<()>,
    /// While records are copied to another part: what was written of them since.
    pub(super) watched: Mutex<Option<Watched>>,
    /// Where it stands that numbers were passed over.
    noted: tokio::sync::Mutex<Option<Arc<Cluster>>>,
}

/// Where everything is.
#[derive(Debug)]
pub(super) struct Routes {
    pub(super) map: PartitionMap,
    pub(super) clusters: Vec<Arc<Cluster>>,
}

/// Keys whose part changes, that were written since they were copied.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) plan: Arc<Move>,
    pub(super) written: BTreeSet<Arc<str>>,
}

impl Routes {
    /// The operations of each part that a batch touches.
    pub(super) fn divide(&self, batch: &Batch) -> BTreeMap<usize, Vec<Op>> {
        let mut parts = BTreeMap::<usize, Vec<Op>>::new();
        for op in &batch.ops {
            parts.entry(self.map.part(&op.key)).or_default().push(op.clone());
        }
        parts
    }
}

impl Core {
    pub(super) fn new(home: Arc<Shared>, config: EtcdConfig, routes: Routes, newest: u64) -> Self {
        Self {
            sequence: Sequence::after(newest, home.clone()),
            home,
            config,
            routes: RwLock::new(Arc::new(routes)),
            keys: Keys::default(),
            spanning: Semaphore::new(SPANNING),
            moving: tokio::sync::Mutex::default(),
            watched: Mutex::new(None),
            noted: tokio::sync::Mutex::new(None),
        }
    }

    pub(super) fn place(&self) -> Place {
        self.home.client.place.clone()
    }

    /// Where everything is now. Who holds the gate of a part may rely on it for that part.
    pub(super) fn routes(&self) -> Arc<Routes> {
        self.routes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_routes(&self, routes: Routes) {
        *self.routes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(routes);
    }

    /// Room for a batch to wait: in its part, or among those over several parts.
    pub(super) fn room(&self, batch: &Batch) -> Result<Room, WriteError> {
        let routes = self.routes();
        let mut parts = batch.ops.iter().map(|op| routes.map.part(&op.key));
        let first = parts.next().unwrap_or(HOME);
        let cluster = &routes.clusters[first];
        match parts.all(|part| part == first) {
            true => cluster.waiting.room(batch, &cluster.client.place),
            false => self.home.waiting.room(batch, &self.home.client.place),
        }
    }

    /// Notes what a committed batch wrote, where that is being copied.
    pub(super) fn watch(&self, batch: &Batch) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Watched { plan, written }) = &mut *watched {
            let moving = batch.ops.iter().filter(|op| plan.moves(&op.key));
            written.extend(moving.map(|op| op.key.clone()));
        }
    }

    /// Does away with numbers that keep others waiting for too long, until it is dropped.
    ///
    /// What becomes of them is written anew under later numbers. Readers are not told in between, and should this process
    /// end there, the next would not know: so it is written down first, in a part that answers.
    pub(super) async fn pass_overdue(&self) {
        loop {
            let overdue = self.sequence.overdue().await;
            let cluster = self.routes().clusters[overdue.alive].clone();
            let mut noted = self.noted.lock().await;
            if noted.is_none() {
                let value = overdue.number.to_be_bytes().to_vec();
                match cluster.note(cluster.layout.meta(GAP), Some(value.into())).await {
                    Ok(Verdict::Written) => *noted = Some(cluster),
                    _ => {
                        drop(noted);
                        sleep(NOTE_PAUSE).await;
                        continue;
                    }
                }
            }
            tracing::debug!(?overdue, "the other parts of the store go on without a batch");
            self.sequence.pass(overdue.number);
        }
    }

    /// Before the store is given up: where all that was passed over has been published since, nobody has to be told of it.
    pub(super) async fn cross_note_out(&self) {
        let mut noted = self.noted.lock().await;
        let Some(cluster) = noted.take() else { return };
        let routes = self.routes();
        let gates: Result<Vec<_>, _> =
            routes.clusters.iter().map(|cluster| cluster.gate.clone().try_write_owned()).collect();
        if gates.is_ok()
            && let Err(failure) = carry(&cluster, vec![(cluster.layout.meta(GAP), None)]).await
        {
            tracing::debug!(problem = failure.words(), "readers take a snapshot of the next process");
        }
    }

    /// What a refusal means to who wanted to write.
    pub(super) fn refused(&self, cluster: &Cluster, verdict: Verdict) -> WriteError {
        let problem = match verdict {
            Verdict::Replaced => {
                let reason =
                    "a part of the store was replaced, or written by others; start the process again";
                self.home.broke(format!("{}: {reason}", cluster.client.place));
                reason
            }
            _ => "this process does not hold the store any more; nothing was written, ask who does",
        };
        WriteError::Refused { place: cluster.client.place.clone(), problem: problem.into() }
    }
}
