//! Checks whether a history could come from a correct store with correct replicas and watches.
//!
//! Deciding linearizability is hard in general, since the order of operations must be guessed (Wing and Gong 1993; Lowe
//! 2017 makes the search bearable). Nothing is guessed here: the store numbers its revisions, every response carries a
//! revision, and every value is written once. With the order of writes known, and the write that each read saw, the
//! question takes O(n log n) (Gibbons and Korach, "Testing shared memories", 1997): does the order agree with real
//! time, and does each operation agree with the state at its place? A search was rejected, since it gives up on
//! histories of a few thousand operations with many unknown outcomes, which outages produce. The check is slightly
//! stricter than linearizability: the revisions themselves must be the order, as the store promises.
//!
//! Pure: all inputs are arguments, including times.

mod history;
mod oracle;
pub(crate) mod planted;
#[cfg(test)]
mod tests;

pub(crate) use history::*;
use oracle::{Oracle, sum, sum_of};

/// The kind of broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// An observed value was never written, or its write was refused.
    Phantom,
    /// One write has two revisions, or two writes share one.
    Doubled,
    /// A write or linearizable read is ordered before an operation that had ended before it began.
    Order,
    /// A write was applied although its expectation was not met.
    Expectation,
    /// A write was refused although its expectation was met all the time.
    FalseConflict,
    /// An acknowledged write is missing from the final state.
    Lost,
    /// An observed state never existed: an older state under a newer revision, or half of a batch.
    WrongState,
    /// A watcher moved to an older revision.
    Backwards,
    /// A read returned a revision below the requested minimum.
    TooOld,
    /// A watcher never received an acknowledged write.
    Behind,
}

/// A broken promise, with a text for people.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) kind: Kind,
    #[allow(dead_code, reason = "shown by assertions that fail")]
    pub(crate) what: String,
}

/// Violations found so far, at most five of each kind.
#[derive(Debug, Default)]
struct Findings(Vec<Violation>);

impl Findings {
    fn add(&mut self, kind: Kind, what: String) {
        if self.0.iter().filter(|violation| violation.kind == kind).count() < 5 {
            self.0.push(Violation { kind, what });
        }
    }
}

/// All promises that the history breaks.
pub(crate) fn check(history: &History) -> Vec<Violation> {
    let mut found = Findings::default();
    let oracle = Oracle::new(history, &mut found);
    order(history, &oracle, &mut found);
    expectations(history, &oracle, &mut found);
    reads(history, &oracle, &mut found);
    for watch in &history.watches {
        follow(history, &oracle, watch, &mut found);
    }
    end(history, &oracle, &mut found);
    found.0
}

/// An operation with a place in the order of revisions.
struct Placed {
    invoked: Time,
    /// `None` if the write may still be applied at any later time.
    returned: Option<Time>,
    /// Twice the revision for a write; one more for a read or watch step that saw the state after it.
    place: u64,
    /// Whether the operation must come after every operation that ended before it began. Replicas and watchers may lag;
    /// their observations only constrain other operations.
    bound: bool,
    what: &'static str,
}

fn placed<'a>(history: &'a History, oracle: &'a Oracle) -> impl Iterator<Item = Placed> + 'a {
    let writes = history.writes.iter().zip(&oracle.revisions).filter_map(|(write, revision)| {
        let returned = (write.outcome != Outcome::Unknown).then_some(write.returned);
        Some(Placed {
            invoked: write.invoked,
            returned,
            place: 2 * (*revision)?,
            bound: true,
            what: "a write",
        })
    });
    let reads = history.reads.iter().map(|read| Placed {
        invoked: read.invoked,
        returned: Some(read.returned),
        place: 2 * read.state.at + 1,
        bound: read.at_least.is_none(),
        what: "a read",
    });
    let steps = history.watches.iter().flat_map(|watch| &watch.steps).map(|step| Placed {
        invoked: step.time,
        returned: Some(step.time),
        place: 2 * step.revision + 1,
        bound: false,
        what: "a step of a watch",
    });
    writes.chain(reads).chain(steps)
}

/// Checks that the order of revisions agrees with real time.
fn order(history: &History, oracle: &Oracle, found: &mut Findings) {
    let mut begun: Vec<Placed> = placed(history, oracle).collect();
    begun.sort_by_key(|placed| placed.invoked);
    let mut ended: Vec<(Time, u64)> =
        begun.iter().filter_map(|placed| Some((placed.returned?, placed.place))).collect();
    ended.sort_unstable();
    let (mut ended, mut floor) = (ended.into_iter().peekable(), 2 * history.start.at + 1);
    for one in begun {
        while let Some((_, place)) = ended.next_if(|(returned, _)| *returned < one.invoked) {
            floor = floor.max(place);
        }
        if one.bound && one.place < floor {
            let what = format!(
                "{} begun at {} stands at revision {}, and {} was seen before",
                one.what,
                one.invoked,
                one.place / 2,
                floor / 2
            );
            found.add(Kind::Order, what);
        }
    }
}

/// Checks that each write was applied or refused according to the state at its revision.
fn expectations(history: &History, oracle: &Oracle, found: &mut Findings) {
    for (number, (write, revision)) in history.writes.iter().zip(&oracle.revisions).enumerate() {
        match revision {
            Some(revision) => {
                let unmet = write.ops.iter().find(|op| !oracle.meets(op.key, op.expect, revision - 1));
                if let Some(op) = unmet {
                    let there = oracle.cell_at(op.key, revision - 1);
                    found.add(
                        Kind::Expectation,
                        format!("write {number}, revision {revision}: {op:?} met {there:?}"),
                    );
                }
            }
            None if write.outcome == Outcome::Conflict && !refusable(history, oracle, write) => {
                found.add(
                    Kind::FalseConflict,
                    format!("write {number} was refused, and all was as expected: {write:?}"),
                );
            }
            None => {}
        }
    }
}

/// Whether an expectation of the write was unmet at some moment between invocation and response.
fn refusable(history: &History, oracle: &Oracle, write: &Write) -> bool {
    // Writes acknowledged before the invocation were in place; writes begun after the response were not.
    let before = |other: &&Write| other.outcome != Outcome::Unknown && other.returned < write.invoked;
    let revision = |other: &Write| match other.outcome {
        Outcome::Done(revision) => Some(revision),
        Outcome::Conflict | Outcome::Unknown => None,
    };
    let first = history.writes.iter().filter(before).filter_map(revision).max().unwrap_or(history.start.at);
    let later =
        history.writes.iter().filter(|other| other.invoked > write.returned).filter_map(revision).min();
    let last = later.map_or(Revision::MAX, |later| later - 1);
    write.ops.iter().any(|op| {
        let mut moments = std::iter::once(first).chain(oracle.writers(op.key, first, last));
        moments.any(|revision| !oracle.meets(op.key, op.expect, revision))
    })
}

fn reads(history: &History, oracle: &Oracle, found: &mut Findings) {
    for Read { at_least, state, .. } in &history.reads {
        if sum(state) != oracle.sum_at(state.at) {
            found.add(Kind::WrongState, format!("a read: {}", oracle.difference(state, state.at)));
        }
        if let Some(at_least) = at_least.filter(|at_least| *at_least > state.at) {
            found.add(Kind::TooOld, format!("a read of at least {at_least} answered {}", state.at));
        }
    }
}

/// Checks that a watcher saw only states that existed, never went back, and reached the end.
fn follow(history: &History, oracle: &Oracle, watch: &Watch, found: &mut Findings) {
    let mut last = watch.from.at;
    for Step { revision, .. } in &watch.steps {
        if *revision < last {
            found.add(Kind::Backwards, format!("{} was taken from {last} to {revision}", watch.name));
        }
        last = *revision;
    }
    let (mut state, mut total) = (watch.from.clone(), sum(&watch.from));
    for step in &watch.steps {
        if step.whole {
            state.cells.clear();
            total = 0;
        }
        let puts = step.puts.iter().map(|(key, cell)| (*key, Some(*cell)));
        for (key, cell) in step.deletes.iter().map(|key| (*key, None)).chain(puts) {
            let before = match cell {
                Some(cell) => state.cells.insert(key, cell),
                None => state.cells.remove(&key),
            };
            total = [before, cell].into_iter().flatten().fold(total, |total, cell| total ^ sum_of(key, cell));
        }
        state.at = step.revision;
        if total != oracle.sum_at(step.revision) {
            let what = format!("{}: {}", watch.name, oracle.difference(&state, step.revision));
            found.add(Kind::WrongState, what);
            // One mistake would repeat in every later step.
            return;
        }
    }
    if state.cells != history.end.cells {
        let what = format!("{} stays at {} of {}", watch.name, state.at, history.end.at);
        found.add(Kind::Behind, what);
    }
}

/// Checks that every acknowledged write is present at the end, or overwritten.
fn end(history: &History, oracle: &Oracle, found: &mut Findings) {
    let end = &history.end;
    if sum(end) != oracle.sum_at(end.at) {
        found.add(Kind::Lost, format!("at the end, {}", oracle.difference(end, end.at)));
    }
    if let Some((revision, number)) = oracle.order.range(end.at + 1..).next() {
        found.add(Kind::Lost, format!("write {number} is revision {revision}, and the end is {}", end.at));
    }
}
