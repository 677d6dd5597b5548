//! A store with clients, replicas and watchers in virtual time, correct or with one bug.

use std::collections::BTreeMap;

use fairmesh_model::arith::mix64;

use crate::checker::{Cell, Expect, History, Key, Op, Outcome, Read, State, Step, Watch, Write};

/// Pseudo-random numbers from a seed.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0) % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// A fault that a store, a replica or a watch makes once per run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    LosesWrite,
    StoresHalf,
    WritesTwice,
    RepeatsRevision,
    RevisionGoesBack,
    IgnoresExpectation,
    RefusesFalsely,
    WritesWhatItRefused,
    MakesUp,
    ReadsStale,
    ReadsMislabelled,
    ReadsTooOld,
    TearsBatch,
    Reorders,
    LeavesOut,
    FallsSilent,
    GoesBack,
}

/// Simulated run: its history, and whether the bug took effect.
pub(super) struct Run {
    pub(super) history: History,
    pub(super) planted: bool,
    dice: Dice,
    bug: Option<Bug>,
    /// All states of the store, in order.
    states: Vec<State>,
    next_value: u64,
}

/// Number of registers that clients contend for.
const KEYS: u64 = 5;
const CLIENTS: u64 = 4;
/// First of the keys that only one batch each writes.
const MARKS: Key = 1000;
/// The bug takes effect at about this event of its kind, so that events precede and follow it.
const ABOUT: u64 = 8;

/// A client call with its invocation, effect and response times.
struct Call {
    effect: u64,
    client: u64,
    invoked: u64,
    returned: u64,
}

impl Run {
    pub(super) fn new(mut dice: Dice, bug: Option<Bug>) -> Self {
        let start = State { at: 10 + dice.below(5), cells: BTreeMap::new() };
        let history = History { start: start.clone(), ..History::default() };
        let mut run = Self { history, planted: false, dice, bug, states: vec![start], next_value: 1 };
        for call in run.calls() {
            match run.dice.below(4) {
                0 => run.read(&call),
                _ => run.write(&call),
            }
        }
        for watcher in 0..3 {
            run.watch(watcher);
        }
        run.history.end = run.now().clone();
        run
    }

    /// Sequential calls of each client, sorted by the time at which they take effect.
    fn calls(&mut self) -> Vec<Call> {
        let mut calls = Vec::new();
        for client in 0..CLIENTS {
            let mut time = self.dice.below(50);
            for _ in 0..12 + self.dice.below(8) {
                let invoked = time + 1 + self.dice.below(20);
                let effect = invoked + 1 + self.dice.below(40);
                let returned = effect + 1 + self.dice.below(40);
                calls.push(Call { effect, client, invoked, returned });
                time = returned;
            }
        }
        // Each client uses its own residue of the tick, so that no two calls take effect at the same time.
        calls.iter_mut().for_each(|call| {
            for time in [&mut call.invoked, &mut call.effect, &mut call.returned] {
                *time = *time * CLIENTS + call.client;
            }
        });
        calls.sort_by_key(|call| call.effect);
        calls
    }

    /// Whether the bug takes effect now; at most once per run.
    fn strikes(&mut self, bug: Bug) -> bool {
        let strikes =
            self.bug == Some(bug) && !self.planted && self.states.len() > 6 && self.dice.one_in(ABOUT);
        self.planted |= strikes;
        strikes
    }

    fn now(&self) -> &State {
        &self.states[self.states.len() - 1]
    }

    fn value(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value
    }

    /// A batch of one to three registers with expectations from a recent state, and a mark unique to the batch.
    fn batch(&mut self) -> Vec<Op> {
        let past = self.states.len() - 1 - self.dice.below(3).min(self.states.len() as u64 - 1) as usize;
        let mut ops: BTreeMap<Key, Op> = BTreeMap::new();
        for _ in 0..1 + self.dice.below(3) {
            let key = self.dice.below(KEYS);
            let there = self.states[past].cells.get(&key);
            let expected = there.map_or(Expect::Absent, |cell| Expect::Revision(cell.revision));
            let expect = if self.dice.one_in(2) { Expect::Any } else { expected };
            let value = (!self.dice.one_in(5)).then(|| self.value());
            ops.insert(key, Op { key, value, expect });
        }
        let mark = self.value();
        ops.insert(MARKS + mark, Op { key: MARKS + mark, value: Some(mark), expect: Expect::Absent });
        ops.into_values().collect()
    }

    fn unmet(&self, ops: &[Op]) -> bool {
        ops.iter().any(|op| {
            let there = self.now().cells.get(&op.key).map(|cell| cell.revision);
            match op.expect {
                Expect::Any => false,
                Expect::Absent => there.is_some(),
                Expect::Revision(revision) => there != Some(revision),
            }
        })
    }

    fn write(&mut self, call: &Call) {
        let ops = self.batch();
        let mut refused = self.unmet(&ops);
        let ignored = refused && self.strikes(Bug::IgnoresExpectation);
        if refused && self.strikes(Bug::WritesWhatItRefused) {
            self.store(&ops);
        }
        // No other write can conflict with this one, since its mark is unique.
        let alone = ops.iter().all(|op| op.expect == Expect::Any || op.key >= MARKS);
        if !refused && alone && self.strikes(Bug::RefusesFalsely) {
            refused = true;
        }
        let outcome = match refused {
            true if ignored => Outcome::Done(self.store(&ops)),
            true => Outcome::Conflict,
            false => self.carry_out(&ops),
        };
        let Call { invoked, returned, .. } = *call;
        self.history.writes.push(Write { invoked, returned, ops, outcome });
    }

    fn carry_out(&mut self, ops: &[Op]) -> Outcome {
        match self.dice.below(12) {
            0 => {
                self.store(ops);
                return Outcome::Unknown;
            }
            1 => return Outcome::Unknown,
            _ => {}
        }
        if self.strikes(Bug::LosesWrite) {
            return Outcome::Done(self.store(&[]));
        }
        if self.strikes(Bug::StoresHalf) {
            return Outcome::Done(self.store(&ops[..ops.len() - 1]));
        }
        if self.strikes(Bug::RepeatsRevision) {
            let mut state = self.now().clone();
            apply(&mut state, ops, self.now().at);
            self.states.push(state);
            return Outcome::Done(self.now().at);
        }
        if self.strikes(Bug::RevisionGoesBack) {
            let (mut state, back) = (self.now().clone(), self.states[0].at - 1);
            apply(&mut state, ops, back);
            self.states.push(state);
            return Outcome::Done(back);
        }
        let revision = self.store(ops);
        if self.strikes(Bug::WritesTwice) {
            self.store(ops);
        }
        if self.strikes(Bug::MakesUp) {
            let (key, value) = (self.dice.below(KEYS), u64::MAX);
            self.store(&[Op { key, value: Some(value), expect: Expect::Any }]);
            self.history.reads.push(Read {
                invoked: 0,
                returned: u64::MAX,
                at_least: Some(0),
                state: self.now().clone(),
            });
        }
        Outcome::Done(revision)
    }

    /// Stores a batch as the next revision. Revisions have gaps, since other keys of the store use numbers too.
    fn store(&mut self, ops: &[Op]) -> u64 {
        let mut state = self.now().clone();
        let revision = state.at + 1 + self.dice.below(3);
        apply(&mut state, ops, revision);
        state.at = revision;
        self.states.push(state);
        revision
    }

    fn read(&mut self, call: &Call) {
        let Call { invoked, returned, .. } = *call;
        let newest = self.states.len() - 1;
        let (mut state, mut at_least) = (self.now().clone(), None);
        if self.dice.one_in(2) {
            // A read at a lagging replica, with a minimum revision from a recent state.
            let asked = newest - self.dice.below(4).min(newest as u64) as usize;
            let answered = asked + self.dice.below((newest - asked) as u64 + 1) as usize;
            at_least = Some(self.states[asked].at);
            state = self.states[answered].clone();
            if asked > 2 && self.strikes(Bug::ReadsTooOld) {
                state = self.states[asked - 1].clone();
            }
        } else if self.strikes(Bug::ReadsStale) {
            // A state older than every concurrent write.
            state = self.states[1].clone();
            let settled = self.history.writes.iter().any(|write| {
                write.returned < invoked && matches!(write.outcome, Outcome::Done(at) if at > state.at)
            });
            self.planted = settled;
        }
        if self.strikes(Bug::ReadsMislabelled) {
            state.cells = self.states[1].cells.clone();
        }
        self.history.reads.push(Read { invoked, returned, at_least, state });
    }

    /// A watcher that receives changes or snapshots. Its steps come after all calls, so that no step is too early.
    fn watch(&mut self, number: u64) {
        let from = self.states[0].clone();
        let (mut held, mut steps) = (0, Vec::new());
        while held + 1 < self.states.len() {
            let next = (held + 1 + self.dice.below(3) as usize).min(self.states.len() - 1);
            let whole = self.dice.one_in(6);
            steps.push(step(&self.states[held], &self.states[next], whole));
            held = next;
        }
        self.spoil(&mut steps);
        self.history.watches.push(Watch { name: format!("watcher {number}"), from, steps });
    }

    fn spoil(&mut self, steps: &mut Vec<Step>) {
        // Every batch sets a mark that stays, so a step that loses a mark is wrong until the next snapshot.
        let last = steps.len() - 1;
        let at = (self.dice.below(last as u64) as usize).max(1);
        let delta = !steps[at].whole && steps[at].puts.iter().any(|(key, _)| *key >= MARKS);
        if delta && self.strikes(Bug::TearsBatch) {
            steps[at].puts.retain(|(key, _)| *key < MARKS);
        }
        if delta && self.strikes(Bug::LeavesOut) {
            steps[at].puts.clear();
            steps[at].deletes.clear();
        }
        if at < last && delta && !steps[at + 1].whole && self.strikes(Bug::Reorders) {
            steps.swap(at, at + 1);
        }
        if self.strikes(Bug::FallsSilent) {
            steps.truncate(at);
        }
        if self.strikes(Bug::GoesBack) {
            let back = step(&self.states[0], &self.states[1], true);
            steps.insert(at + 1, back);
        }
    }
}

fn apply(state: &mut State, ops: &[Op], revision: u64) {
    for op in ops {
        match op.value {
            Some(value) => drop(state.cells.insert(op.key, Cell { value, revision })),
            None => drop(state.cells.remove(&op.key)),
        }
    }
}

fn step(before: &State, after: &State, whole: bool) -> Step {
    let changed = after.cells.iter().filter(|(key, cell)| whole || before.cells.get(key) != Some(cell));
    let gone = before.cells.keys().filter(|key| !whole && !after.cells.contains_key(key));
    Step {
        time: u64::MAX,
        revision: after.at,
        whole,
        puts: changed.map(|(key, cell)| (*key, *cell)).collect(),
        deletes: gone.copied().collect(),
    }
}
