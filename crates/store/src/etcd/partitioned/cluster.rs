//! One part of a store: the connection to its cluster, what proves that this process may write there, and lanes.
//!
//! A **lane** makes every write happen exactly once. It is a key with the number of the last batch that it carried, and
//! a batch is written if the lane stands where this process left it. So a transaction whose answer was lost is made
//! again as it is: whichever of the two etcd carries out first moves the lane, the other finds it moved, and what the lane
//! says tells whether the batch is committed. Without it, one that was delayed on the way could overwrite a later one.

#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, RwLock, Semaphore},
    time::sleep,
};

use super::{
    super::{
        client::{self, Again, Client},
        failure::Failure,
        layout::Layout,
        proto::{Compare, KeyValue, RangeRequest, RequestOp, TxnRequest, TxnResponse, compare},
        shared::Shared,
        waiting::Waiting,
    },
    change::{self, Change, Unmet},
};

/// How many batches are with one part at once.
const LANES: usize = 32;

/// One part of a store.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) client: Client,
    pub(super) layout: Layout,
    /// What stands at `store`.
    pub(super) mark: Bytes,
    fence: Fence,
    /// Held while a batch is under way; whoever has it alone knows that none is.
    pub(super) gate: Arc<RwLock<()>>,
    /// For batches of this part alone: those of one that does not answer take no room from others.
    pub(super) waiting: Waiting,
    turns: Arc<Semaphore>,
    free: Mutex<Vec<Lane>>,
    /// For what moves records as they are, one at a time.
    copier: tokio::sync::Mutex<Lane>,
    /// Whether it answered lately, for the log.
    away: AtomicBool,
}

/// What proves that this process may write.
#[derive(Debug)]
pub(super) enum Fence {
    /// In the home: the key that goes with a lease.
    Holder(Arc<Shared>),
    /// Elsewhere: the fence that this process took the home with, which is greater than that of every holder before it.
    /// A lease of its own was rejected: whoever holds the home would have to wait for one that a former holder renews.
    Turn(u64),
}

/// A key that says which batch it carried last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lane {
    name: String,
    at: u64,
    /// The greatest number that it was asked to carry. Beyond `at` it may have carried it, or still do: none is used again.
    tried: u64,
}

/// A lane in one batch's hands, until this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) cluster: Arc<Cluster>,
    lane: Lane,
    _permit: OwnedSemaphorePermit,
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is carried out.
    Written,
    /// Something is not as expected. Nothing is written.
    Conflict(Unmet),
    /// Another process may write, or nobody. Nothing is written.
    Deposed,
    /// The part is not there any more, or not as this process left it. Nothing is written.
    Replaced,
    /// This process took its hold anew in the meantime. Nothing is written; it would be now.
    Raced,
}

/// Hears of a transaction that may be carried out or not, and says whether to give up.
pub(super) trait Patience: Send {
    /// It was sent, and no verdict came back.
    fn unsure(&mut self, problem: &str) -> bool;
}

impl Cluster {
    /// A part with what its `meta` says.
    pub(super) fn new(
        (client, layout): (Client, Layout),
        mark: Bytes,
        fence: Fence,
        meta: &HashMap<String, KeyValue>,
    ) -> Self {
        let lane = |name: String| {
            let at = meta.get(&name).map_or(0, |kv| lane_at(&kv.value));
            Lane { name, at, tried: at }
        };
        let free = (0..LANES).map(|i| lane(format!("lane/{i:02}"))).collect();
        Self {
            client,
            layout,
            mark,
            fence,
            gate: Arc::default(),
            waiting: Waiting::default(),
            turns: Arc::new(Semaphore::new(LANES)),
            free: Mutex::new(free),
            copier: tokio::sync::Mutex::new(lane("copier".into())),
            away: AtomicBool::new(false),
        }
    }

    /// The newest number that any of its lanes carried.
    pub(super) fn newest(&self) -> u64 {
        self.lanes().iter().map(|lane| lane.at).max().unwrap_or(0)
    }

    /// Waits for a lane.
    pub(super) async fn turn(self: &Arc<Self>) -> Turn {
        loop {
            // The semaphore is never closed, and there are as many lanes as permits.
            if let Ok(permit) = self.turns.clone().acquire_owned().await
                && let Some(lane) = self.lanes().pop()
            {
                return Turn { cluster: self.clone(), lane, _permit: permit };
            }
        }
    }

    /// Whether conditions hold now; nothing is written.
    pub(super) async fn check(&self, change: &Change) -> Result<Verdict, Failure> {
        let answer = self.client.txn(Again::Always, self.transaction(None, change)).await?;
        Ok(match answer.succeeded {
            true => Verdict::Written,
            false => self.unguarded(change, answer),
        })
    }

    /// Leaves word at a key, or takes it away, as often as it takes. Safe to be carried out late for names and values that
    /// are used once.
    pub(super) async fn note(&self, key: Bytes, value: Option<Bytes>) -> Result<Verdict, Failure> {
        let change = Change::default().and(key, value);
        let answer = self.client.txn(Again::Always, self.transaction(None, &change)).await?;
        Ok(if answer.succeeded { Verdict::Written } else { self.unguarded(&change, answer) })
    }

    /// Carries out a change that is no revision, as [`Cluster::commit`] does.
    pub(super) async fn carry(
        &self,
        change: &Change,
        patience: &mut dyn Patience,
    ) -> Result<Verdict, Failure> {
        let mut lane = self.copier.lock().await;
        if lane.tried > lane.at {
            // What became of the last one is not known: it was given up, or its future was dropped.
            lane.at = self.stands(&lane).await.map_err(Failure::unsent)?;
        }
        let number = lane.next();
        self.commit(&mut lane, number, change, patience).await
    }

    /// Where a lane stands in etcd.
    async fn stands(&self, lane: &Lane) -> Result<u64, Failure> {
        Ok(self.value(&lane.name).await?.map_or(0, |value| lane_at(&value)))
    }

    /// What stands at a key of `meta`.
    pub(super) async fn value(&self, name: &str) -> Result<Option<Bytes>, Failure> {
        let ask = RangeRequest { key: self.layout.meta(name), ..RangeRequest::default() };
        Ok(self.client.range(ask).await?.kvs.into_iter().next().map(|kv| kv.value))
    }

    /// Carries a change out exactly once or not at all, under a number that the lane has not had. Tries until that is
    /// certain, unless `patience` ends.
    pub(super) async fn commit(
        &self,
        lane: &mut Lane,
        number: u64,
        change: &Change,
        patience: &mut dyn Patience,
    ) -> Result<Verdict, Failure> {
        let (mut unsure, mut failures) = (false, 0);
        loop {
            let txn = self.transaction(Some((lane, number)), change);
            let problem = match self.client.txn(Again::Unsent, txn).await {
                Ok(answer) => {
                    self.heard();
                    let (at, verdict) = match answer.succeeded {
                        true => (number, Verdict::Written),
                        false => self.refusal(lane, number, change, answer),
                    };
                    match verdict {
                        Verdict::Written => lane.at = number,
                        Verdict::Raced => continue,
                        // Whether it was written before others went on from there is not to be seen any more.
                        _ if unsure && at != lane.at => {
                            return Err(Failure::Unknown("another process went on from there".into()));
                        }
                        _ => {}
                    }
                    return Ok(verdict);
                }
                Err(Failure::Unknown(problem)) => {
                    unsure = true;
                    problem
                }
                Err(failure) if !unsure => return Err(failure),
                Err(failure) => failure.words(),
            };
            self.unheard(&problem);
            if patience.unsure(&problem) {
                return Err(Failure::Unknown(problem));
            }
            failures += 1;
            sleep(client::pause(failures)).await;
        }
    }

    fn transaction(&self, lane: Option<(&Lane, u64)>, change: &Change) -> TxnRequest {
        let stands = lane.map(|(lane, _)| match lane.at {
            0 => change::absent(self.layout.meta(&lane.name)),
            at => {
                let value = at.to_be_bytes().to_vec();
                change::value(self.layout.meta(&lane.name), compare::Result::Equal, value)
            }
        });
        let moves = lane.map(|(lane, number)| {
            change::put(self.layout.meta(&lane.name), number.to_be_bytes().to_vec().into())
        });
        let lane_read = lane.map(|(lane, _)| change::read(self.layout.meta(&lane.name)));
        let guard = [change::read(self.layout.store()), change::read(self.fence_key())];
        TxnRequest {
            compare: self.guard().into_iter().chain(stands).chain(change.compare()).collect(),
            success: change.requests().chain(moves).collect(),
            failure: guard.into_iter().chain(lane_read).chain(change.reads()).collect::<Vec<RequestOp>>(),
        }
    }

    /// What has to be so for anything to be written here.
    fn guard(&self) -> [Compare; 2] {
        let fence = match &self.fence {
            Fence::Holder(home) => change::created(self.fence_key(), home.held()),
            Fence::Turn(turn) => {
                change::value(self.fence_key(), compare::Result::Equal, turn.to_be_bytes().to_vec())
            }
        };
        [change::value(self.layout.store(), compare::Result::Equal, self.mark.to_vec()), fence]
    }

    fn fence_key(&self) -> Bytes {
        match &self.fence {
            Fence::Holder(_) => self.layout.holder(),
            Fence::Turn(_) => self.layout.meta("turn"),
        }
    }

    /// Where the lane stands and what became of a transaction that was not carried out now.
    fn refusal(&self, lane: &Lane, number: u64, change: &Change, answer: TxnResponse) -> (u64, Verdict) {
        let mut found = change::found(answer);
        let guarded = self.guarded(&mut found);
        let at = found.next().flatten().map_or(0, |kv| lane_at(&kv.value));
        let verdict = match guarded {
            Some(verdict) => verdict,
            // Nobody else writes here, so it was carried out when the answer was lost. Without the fence that would be
            // no proof: two processes may use a number.
            None if at == number => Verdict::Written,
            None if at != lane.at => Verdict::Replaced,
            None => change.unmet(found).map_or(Verdict::Raced, Verdict::Conflict),
        };
        (at, verdict)
    }

    /// Why nothing may be written, of what was read to find that out.
    fn guarded(&self, found: &mut impl Iterator<Item = Option<KeyValue>>) -> Option<Verdict> {
        let (mark, fence) = (found.next().flatten(), found.next().flatten());
        let fenced = match &self.fence {
            Fence::Holder(home) => fence.is_some_and(|kv| kv.create_revision as u64 == home.held()),
            Fence::Turn(turn) => fence.is_some_and(|kv| kv.value[..] == turn.to_be_bytes()),
        };
        match mark.is_some_and(|kv| kv.value == self.mark) {
            false => Some(Verdict::Replaced),
            true => (!fenced).then_some(Verdict::Deposed),
        }
    }

    /// What became of a transaction without a lane that was not carried out.
    fn unguarded(&self, change: &Change, answer: TxnResponse) -> Verdict {
        let mut found = change::found(answer);
        let guarded = self.guarded(&mut found);
        guarded.unwrap_or_else(|| change.unmet(found).map_or(Verdict::Raced, Verdict::Conflict))
    }

    fn lanes(&self) -> std::sync::MutexGuard<'_, Vec<Lane>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self) {
        if self.away.swap(false, Relaxed) {
            tracing::info!(place = %self.client.place, "a part of the store answers again");
        }
    }

    fn unheard(&self, problem: &str) {
        if !self.away.swap(true, Relaxed) {
            tracing::warn!(place = %self.client.place, problem, "a part of the store does not answer; its writes wait");
        }
    }
}

impl Turn {
    /// As [`Cluster::commit`].
    pub(super) async fn commit(
        &mut self,
        number: u64,
        change: &Change,
        patience: &mut dyn Patience,
    ) -> Result<Verdict, Failure> {
        self.cluster.commit(&mut self.lane, number, change, patience).await
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.cluster.lanes().push(self.lane.clone());
    }
}

impl Lane {
    /// A number that nothing was sent under, for changes that are no revisions.
    fn next(&mut self) -> u64 {
        self.tried = self.tried.max(self.at) + 1;
        self.tried
    }
}

fn lane_at(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_be_bytes)
}
