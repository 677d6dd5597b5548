//! Moves services to another part while they are read and written.
//!
//! Their records are copied, then what was written of them meanwhile, until little is left; then writes to the part that
//! they leave are held for moments, the rest is copied, and the map is changed in one transaction. Records keep their
//! numbers, so that readers notice nothing. Until then the former map is in force, whatever happens, and the copies are
//! nobody's.

mod copy;
mod plan;
mod target;

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use super::{
    super::{client, failure::Failure},
    change::Change,
    cluster::{Cluster, Patience, Verdict},
    core::{Core, Routes, Watched},
    map::{HOME, PartitionMap},
    open::{MAP, refused},
};
use crate::{EtcdAddress, StoreError};
use copy::Copier;

/// How long one step may take while a part does not answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// How long writes may wait until nothing is under way in the part that services leave.
const QUIET: Duration = Duration::from_secs(2);
/// As few records are left for when writes are held.
const FEW: usize = 200;
/// How often what was written meanwhile is copied, at most, before writes are held for what is left.
const ROUNDS: usize = 16;

/// What is to be moved, and where.
#[derive(Clone, Debug)]
pub struct SplitWish {
    /// The cluster and the root: an empty one, which becomes a part of the store, or one that is.
    pub into: EtcdAddress,
    /// The services, as `tenant/service`, all in one part; empty for half of the range that has most bytes.
    pub services: Vec<String>,
    /// Only say what would be moved.
    pub dry_run: bool,
}

/// How far a split is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SplitEvent {
    /// What is moved.
    Planned {
        /// The part that it leaves.
        from: u32,
        /// The part that it goes to.
        to: u32,
        /// How many services that have records.
        services: u64,
        /// How many records.
        records: u64,
        /// The bytes of their keys and values.
        bytes: u64,
    },
    /// So many records are copied; left out while the one before is not read.
    Copied(u64),
    /// So many records are the same in both parts, but for what was written since.
    Verified(u64),
    /// The map is changed.
    Moved {
        /// How often it was.
        version: u64,
        /// For how long writes to the part that was left were held.
        held: Duration,
    },
    /// Nothing is left behind.
    Done,
}

/// A move, from one part to another.
#[derive(Debug)]
pub(super) struct Move {
    before: Arc<Routes>,
    after: PartitionMap,
    from: usize,
    to: usize,
    /// Where it goes.
    target: Arc<Cluster>,
}

impl Move {
    /// Whether a record is moved.
    pub(super) fn moves(&self, key: &str) -> bool {
        self.after.part(key) == self.to && self.before.map.part(key) == self.from
    }

    fn source(&self) -> &Arc<Cluster> {
        &self.before.clusters[self.from]
    }
}

/// Waits for as long as this process holds the store.
struct Held<'a>(&'a Core);

impl Patience for Held<'_> {
    fn unsure(&mut self, _problem: &str) -> bool {
        self.0.home.broken().is_some()
    }
}

impl Core {
    pub(super) async fn split(
        &self,
        wish: &SplitWish,
        progress: &mpsc::Sender<SplitEvent>,
    ) -> Result<(), StoreError> {
        let busy = "another move is under way; wait for it";
        let moving = timeout(PATIENCE, self.moving.lock()).await;
        let _moving = moving.map_err(|_| refused(&self.place(), busy))?;
        let found = self.target(&wish.into).await?;
        let plan = self.plan(wish, found.part()).await?;
        tell(progress, plan.event()).await;
        if wish.dry_run {
            return Ok(());
        }
        let plan = self.ready(plan, found).await?;
        let moved = self.carry_out(&plan, progress).await;
        self.watch_move(None);
        moved?;
        let left = self.delete(plan.source(), |key| plan.after.part(key) == plan.from).await;
        if let Err(failure) = left {
            let problem = failure.words();
            tracing::warn!(problem, "what was moved still lies where it was; the next start takes it away");
        }
        tell(progress, SplitEvent::Done).await;
        Ok(())
    }

    async fn carry_out(
        &self,
        plan: &Arc<Move>,
        progress: &mpsc::Sender<SplitEvent>,
    ) -> Result<(), StoreError> {
        let (source, target) = (plan.source().clone(), plan.target.clone());
        let reading = |failure: Failure| failure.reading(&source.client.place);
        let own = |key: &str| plan.before.map.part(key) == plan.to;
        self.delete(&target, own).await.map_err(|failure| failure.reading(&target.client.place))?;
        let quiet = self.quiet(&source).await?;
        self.watch_move(Some(Watched { plan: plan.clone(), written: BTreeSet::new() }));
        drop(quiet);

        let mut copier = Copier::new(plan, progress);
        copier.everything().await.map_err(reading)?;
        for _ in 0..ROUNDS {
            let written = self.written();
            copier.keys(&written).await.map_err(reading)?;
            if written.len() <= FEW {
                break;
            }
        }
        let (same, differing) = copier.compare().await.map_err(reading)?;
        tell(progress, SplitEvent::Verified(same)).await;

        let quiet = self.quiet(&source).await?;
        let since = Instant::now();
        let written = self.written();
        copier.keys(&written).await.map_err(reading)?;
        let wrong = differing.into_iter().find(|key| !written.contains(key));
        if let Some(key) = wrong.or(copier.differs(&written).await.map_err(reading)?) {
            let problem =
                format!("{key} is not what was copied; somebody else writes there. Nothing was moved");
            return Err(refused(&target.client.place, &problem));
        }
        self.flip(plan).await?;
        drop(quiet);
        let held = since.elapsed();
        tracing::info!(from = plan.from, to = plan.to, ?held, "services lie in another part now");
        tell(progress, SplitEvent::Moved { version: plan.after.version, held }).await;
        Ok(())
    }

    /// Puts the new map in force. Once it was sent, nothing is written to that part until it is certain that it is: what
    /// follows deletes what the former map led to.
    async fn flip(&self, plan: &Move) -> Result<(), StoreError> {
        let home = &plan.before.clusters[HOME];
        let reading = |failure: Failure| failure.reading(&home.client.place);
        let map: Bytes = plan.after.encode().into();
        let change = Change::raw(vec![(home.layout.meta(MAP), Some(map.clone()))]);
        match home.carry(&change, &mut Held(self)).await {
            Ok(Verdict::Written) => {}
            Ok(_) => {
                return Err(refused(&home.client.place, "this process does not hold the store any more"));
            }
            Err(failure) => {
                if let Failure::Unknown(problem) = &failure {
                    self.home.broke(format!(
                        "whether services were moved is not known ({problem}); start the process again"
                    ));
                }
                return Err(reading(failure));
            }
        }
        if self.map_at(home).await? != Some(map) {
            let problem = "the map of its parts is not what this process wrote; start the process again";
            self.home.broke(problem.into());
            return Err(refused(&home.client.place, problem));
        }
        let mut clusters = plan.before.clusters.clone();
        if plan.to == clusters.len() {
            clusters.push(plan.target.clone());
        }
        self.set_routes(Routes { map: plan.after.clone(), clusters });
        Ok(())
    }

    /// The map that is in force, however long it takes to read it.
    async fn map_at(&self, home: &Cluster) -> Result<Option<Bytes>, StoreError> {
        let mut failures = 0;
        loop {
            match home.value(MAP).await {
                Err(failure) if self.home.broken().is_some() => {
                    return Err(failure.reading(&home.client.place));
                }
                Err(_) => failures += 1,
                Ok(map) => return Ok(map),
            }
            sleep(client::pause(failures)).await;
        }
    }

    /// Keeps a part from being written, once nothing is under way there.
    async fn quiet(&self, cluster: &Cluster) -> Result<tokio::sync::OwnedRwLockWriteGuard<()>, StoreError> {
        let quiet = timeout(QUIET, cluster.gate.clone().write_owned()).await;
        quiet.map_err(|_| StoreError::Away {
            place: cluster.client.place.clone(),
            problem: "a write there is not answered yet; nothing was moved, try again".into(),
        })
    }

    fn watch_move(&self, watched: Option<Watched>) {
        *self.watched.lock().unwrap_or_else(PoisonError::into_inner) = watched;
    }

    /// What was written of what is moved, since this was last asked.
    fn written(&self) -> BTreeSet<Arc<str>> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.as_mut().map(|watched| std::mem::take(&mut watched.written)).unwrap_or_default()
    }
}

/// Nobody has to listen.
async fn tell(progress: &mpsc::Sender<SplitEvent>, event: SplitEvent) {
    let _ = progress.send(event).await;
}
