//! A batch, from the part or parts that it touches to what it became.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use fairmesh_rib::{Batch, Conflict, Expect, Op};
use tokio::{
    sync::{OwnedRwLockReadGuard, SemaphorePermit, oneshot},
    time::{Instant, sleep, timeout},
};

use super::{
    super::{client, failure::Failure},
    change::Change,
    cluster::{Cluster, Patience, Turn, Verdict},
    core::{Core, Routes},
    intent,
    keys::Held,
    map::HOME,
};
use crate::WriteError;

/// How long a caller waits for what may be long in coming.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the batches of other parts wait for one to be settled. Doubled each time it was not enough, so that a part
/// which is only slow is waited for in the end.
const WAIT: Duration = Duration::from_millis(100);
/// Beyond this it is not doubled.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Who wants to know what became of a batch.
#[derive(Debug)]
pub(super) struct Caller<'a> {
    core: &'a Core,
    answer: Option<oneshot::Sender<Result<u64, WriteError>>>,
    since: Instant,
}

/// What a batch needs to be sent.
struct Taken<'a> {
    routes: Arc<Routes>,
    parts: BTreeMap<usize, Vec<Op>>,
    turns: BTreeMap<usize, Turn>,
    _spanning: Option<SemaphorePermit<'a>>,
    _gates: Vec<OwnedRwLockReadGuard<()>>,
    _keys: Held<'a>,
}

impl<'a> Caller<'a> {
    pub(super) fn new(core: &'a Core, answer: oneshot::Sender<Result<u64, WriteError>>) -> Self {
        Self { core, answer: Some(answer), since: Instant::now() }
    }

    /// Says what became of it, the first time that it is asked to.
    pub(super) fn tell(&mut self, result: Result<u64, WriteError>) {
        if let Some(answer) = self.answer.take() {
            // A caller that is gone does not take the batch back.
            let _ = answer.send(result);
        }
    }
}

impl Patience for Caller<'_> {
    fn unsure(&mut self, problem: &str) -> bool {
        let place = self.core.place();
        let over = self.core.home.broken().is_some();
        if over || self.since.elapsed() > PATIENCE {
            self.tell(Err(WriteError::Unknown { place, problem: problem.into() }));
        }
        over
    }
}

impl Core {
    /// Writes a batch, and tells the caller; goes on after that until it is certain what became of it.
    pub(super) async fn write(&self, batch: Batch, mut caller: Caller<'_>) {
        let result = self.try_write(&batch, &mut caller).await;
        caller.tell(result);
    }

    async fn try_write(&self, batch: &Batch, caller: &mut Caller<'_>) -> Result<u64, WriteError> {
        let late = |_| WriteError::Away {
            place: self.place(),
            problem: "too much waits for a part of the store that does not answer".into(),
        };
        let taken = timeout(PATIENCE, self.take(batch)).await.map_err(late)?;
        if let Some(reason) = self.home.broken() {
            return Err(WriteError::Refused { place: self.place(), problem: reason.into() });
        }
        let mut wait = WAIT;
        let mut taken = taken;
        // Whether it is certain that the batch is to be written, if not yet under which number.
        let mut certain = false;
        loop {
            let first = taken.turns.keys().next().copied().unwrap_or(HOME);
            let number = self.sequence.draw(first, Instant::now() + wait).await;
            let attempt = self.attempt(&mut taken, batch, (number, certain), caller).await;
            match attempt {
                Ok(()) => {
                    self.watch(batch);
                    let published = self.sequence.settle(number, Some(batch.clone().into_commit(number)));
                    if published {
                        caller.tell(Ok(number));
                    }
                    if taken.parts.len() > 1 {
                        self.finish(&taken.routes.clusters[HOME], number).await;
                    }
                    if published {
                        return Ok(number);
                    }
                    certain = true;
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
                Err(error) => {
                    self.unless_unknown(number, &error);
                    // What is certain is written under a former number: the caller must not be told that nothing is.
                    if !certain {
                        return Err(error);
                    }
                    if caller.unsure("it was written too late to be told of, and not anew yet") {
                        return Err(error);
                    }
                    sleep(client::pause(1)).await;
                }
            }
        }
    }

    /// Settles a number that nothing is written under. Where that is not certain it stays open, and this process ends:
    /// readers who were told of a later one would never hear of it, and the next process does not know that they lack it.
    fn unless_unknown(&self, number: u64, error: &WriteError) {
        if let (WriteError::Unknown { problem, .. }, None) = (error, self.home.broken()) {
            self.home
                .broke(format!("what became of a batch is not known ({problem}); start the process again"));
        }
        if self.home.broken().is_none() {
            self.sequence.settle(number, None);
        }
    }

    /// Waits until the batch can be sent: nobody else writes its keys, there are lanes, and nothing moves what it touches.
    async fn take(&self, batch: &Batch) -> Taken<'_> {
        // Before lanes: who waits for a key that a batch over several parts has may wait for a part that does not answer,
        // and must not use up the lanes of one that does.
        let keys = self.keys.hold(batch.ops.iter().map(|op| op.key.clone()).collect()).await;
        loop {
            let routes = self.routes();
            let parts = routes.divide(batch);
            let spanning = match parts.len() {
                0 | 1 => None,
                _ => self.spanning.acquire().await.ok(),
            };
            let home = spanning.as_ref().map(|_| HOME);
            let touched: BTreeSet<_> = home.into_iter().chain(parts.keys().copied()).collect();
            // Parts in order, so that no two wait for each other; and lanes before gates, so that few hold a gate and who
            // wants it alone waits for these only.
            let mut turns = BTreeMap::new();
            for part in touched {
                turns.insert(part, routes.clusters[part].turn().await);
            }
            let mut gates = Vec::with_capacity(parts.len());
            for part in parts.keys() {
                gates.push(routes.clusters[*part].gate.clone().read_owned().await);
            }
            // What moved while this waited may be what it is about.
            if Arc::ptr_eq(&routes, &self.routes()) {
                return Taken { routes, parts, turns, _spanning: spanning, _gates: gates, _keys: keys };
            }
        }
    }

    /// Writes the batch under a number, or nothing.
    async fn attempt(
        &self,
        taken: &mut Taken<'_>,
        batch: &Batch,
        (number, certain): (u64, bool),
        caller: &mut Caller<'_>,
    ) -> Result<(), WriteError> {
        let Taken { routes, parts, turns, .. } = taken;
        if parts.len() == 1 {
            let Some((part, ops)) = parts.first_key_value() else { return Ok(()) };
            let Some(turn) = turns.get_mut(part) else { return Ok(()) };
            let cluster = &routes.clusters[*part];
            let change = Change::of(&cluster.layout, ops, number);
            let change = if certain { change } else { change.expecting(&cluster.layout, ops) };
            let verdict = turn.commit(number, &change, caller).await;
            return self.judge(cluster, ops, verdict);
        }
        if !certain {
            self.check(routes, parts, batch).await?;
        }
        let home = &routes.clusters[HOME];
        let elsewhere: Vec<_> = parts.iter().filter(|(part, _)| **part != HOME).collect();
        let own = parts.get(&HOME).map_or(&[][..], Vec::as_slice);
        let change = Change::of(&home.layout, own, number)
            .and(intent::key(&home.layout, number), Some(intent::encode(&elsewhere)));
        let Some(turn) = turns.get_mut(&HOME) else { return Ok(()) };
        let verdict = turn.commit(number, &change, caller).await;
        self.judge(home, own, verdict)?;
        // It is committed now, and has to be carried out.
        for (part, ops) in elsewhere {
            let Some(turn) = turns.get_mut(part) else { continue };
            let cluster = &routes.clusters[*part];
            let change = Change::of(&cluster.layout, ops, number);
            self.insist(turn, number, &change, caller).await?;
        }
        Ok(())
    }

    /// Whether what a batch over several parts expects is so. Nobody else writes its keys, and when another process takes
    /// over meanwhile it has the home, so that nothing is committed.
    async fn check(
        &self,
        routes: &Routes,
        parts: &BTreeMap<usize, Vec<Op>>,
        batch: &Batch,
    ) -> Result<(), WriteError> {
        let mut conflicts = Vec::new();
        let expecting = parts.iter().filter(|(_, ops)| ops.iter().any(|op| op.expect != Expect::Any));
        for (part, ops) in expecting {
            let cluster = &routes.clusters[*part];
            let conditions = Change::default().expecting(&cluster.layout, ops).conditions();
            let verdict = cluster.check(&conditions).await.map_err(Failure::unsent);
            match self.judge(cluster, ops, verdict) {
                Ok(()) => {}
                Err(WriteError::Conflict(conflict)) => conflicts.push(conflict),
                Err(error) => return Err(error),
            }
        }
        let first = conflicts
            .into_iter()
            .min_by_key(|conflict| batch.ops.iter().position(|op| op.key == conflict.key));
        first.map_or(Ok(()), |conflict| Err(conflict.into()))
    }

    /// Writes what is certain to be written, however long that takes.
    pub(super) async fn insist(
        &self,
        turn: &mut Turn,
        number: u64,
        change: &Change,
        patience: &mut dyn Patience,
    ) -> Result<(), WriteError> {
        loop {
            let verdict = turn.commit(number, change, patience).await;
            let cluster = turn.cluster.clone();
            let error = match self.judge(&cluster, &[], verdict) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if patience.unsure("it is committed, and not carried out everywhere yet") {
                return Err(error);
            }
            sleep(client::pause(1)).await;
        }
    }

    /// Takes the intent away of what is carried out everywhere. Until that is certain nobody else may write those keys: a
    /// later process would carry it out again.
    pub(super) async fn finish(&self, home: &Cluster, number: u64) {
        while self.home.broken().is_none() {
            match home.note(intent::key(&home.layout, number), None).await {
                Ok(Verdict::Written) => return,
                Ok(_) => {}
                Err(failure) => {
                    let problem = failure.words();
                    tracing::warn!(
                        number,
                        problem,
                        "what is carried out cannot be crossed out; trying again"
                    );
                }
            }
            sleep(client::pause(1)).await;
        }
    }

    /// What became of operations of one part, for who wanted them.
    fn judge(
        &self,
        cluster: &Cluster,
        ops: &[Op],
        verdict: Result<Verdict, Failure>,
    ) -> Result<(), WriteError> {
        match verdict {
            Ok(Verdict::Written) => Ok(()),
            Ok(Verdict::Conflict(unmet)) => {
                let mut expected = ops.iter().filter(|op| op.expect != Expect::Any);
                match expected.nth(unmet.condition) {
                    Some(op) => Err(WriteError::Conflict(Conflict {
                        key: op.key.clone(),
                        expected: op.expect,
                        found: unmet.found,
                        current: self.sequence.committed(),
                    })),
                    None => Err(self.refused(cluster, Verdict::Replaced)),
                }
            }
            Ok(verdict) => Err(self.refused(cluster, verdict)),
            Err(failure) => {
                let bytes =
                    ops.iter().map(|op| op.key.len() + op.value.as_ref().map_or(0, |value| value.len()));
                // What is expected of a record is two comparisons, and the lane is an operation more.
                Err(failure.writing(&cluster.client.place, 2 * ops.len() + 3, bytes.sum()))
            }
        }
    }
}
