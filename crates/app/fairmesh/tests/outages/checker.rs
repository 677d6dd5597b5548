//! Whether a history is one that a correct store, and correct replicas and watches below it, could have made.
//!
//! Deciding linearizability is hard in general, since the order of the operations has to be guessed (Wing and Gong
//! 1993; Lowe 2017 makes the search bearable). Here nothing has to be guessed: the store numbers its revisions, every
//! answer carries one, and every value is written once. With the order of writes given, and with it which write each
//! read saw, the question takes n log n (Gibbons and Korach, "Testing shared memories", 1997): does the order agree
//! with time, and does each operation agree with the state at its place? The search was rejected: it gives up on
//! histories of a few thousand operations with many unknown outcomes, which are what outages make. What is asked is a
//! little more than linearizability, namely that the revisions themselves are the order; the store promises that.
//!
//! Pure: it is told everything, times included.

mod history;
mod oracle;
pub(crate) mod planted;
#[cfg(test)]
mod tests;

pub(crate) use history::*;
use oracle::{Oracle, sum, sum_of};

/// What kind of promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// An observed value was never written, or its write was refused.
    Phantom,
    /// One write has two revisions, or two writes have one.
    Doubled,
    /// A write or a linearizable read stands before something that had ended before it began.
    Order,
    /// A write was carried out though what it expected was not there.
    Expectation,
    /// A write was refused though what it expected was there all the while.
    FalseConflict,
    /// An acknowledged write is gone.
    Lost,
    /// An observed state never existed: an older one under a newer number, or half of a batch.
    WrongState,
    /// A watcher was taken back.
    Backwards,
    /// A read is older than what was asked for at least.
    TooOld,
    /// A watcher never learnt of what was written.
    Behind,
}

/// A broken promise, for people.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) kind: Kind,
    #[allow(dead_code, reason = "shown by assertions that fail")]
    pub(crate) what: String,
}

/// What was found so far; the first of each kind say enough.
#[derive(Debug, Default)]
struct Findings(Vec<Violation>);

impl Findings {
    fn add(&mut self, kind: Kind, what: String) {
        if self.0.iter().filter(|violation| violation.kind == kind).count() < 5 {
            self.0.push(Violation { kind, what });
        }
    }
}

/// Every promise that the history breaks.
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

/// Something that has a place in the order of revisions.
struct Placed {
    invoked: Time,
    /// `None` for what may be carried out at any later time.
    returned: Option<Time>,
    /// Twice the revision for a write, and one more for what saw the state that it left.
    place: u64,
    /// Whether it may not stand before what ended before it began. Replicas and watchers may lag, and so set only
    /// bounds.
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

/// Whether the order of revisions agrees with time.
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

/// Whether every write was carried out, or refused, by what stood there.
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

/// Whether there was a moment during a write at which an expectation was not met.
fn refusable(history: &History, oracle: &Oracle, write: &Write) -> bool {
    // Everything acknowledged before it began was there; nothing that began after its end was.
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

/// Whether a watcher only ever saw what there was, went forward, and got to the end.
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
            // One mistake would be found in every later step.
            return;
        }
    }
    if state.cells != history.end.cells {
        let what = format!("{} stays at {} of {}", watch.name, state.at, history.end.at);
        found.add(Kind::Behind, what);
    }
}

/// Whether everything acknowledged is there at the end, or superseded.
fn end(history: &History, oracle: &Oracle, found: &mut Findings) {
    let end = &history.end;
    if sum(end) != oracle.sum_at(end.at) {
        found.add(Kind::Lost, format!("at the end, {}", oracle.difference(end, end.at)));
    }
    if let Some((revision, number)) = oracle.order.range(end.at + 1..).next() {
        found.add(Kind::Lost, format!("write {number} is revision {revision}, and the end is {}", end.at));
    }
}
