//! Plants one bug of each kind into a recorded history. A recorded history of real processes must be dense enough for
//! the checker to find each.

use super::{Expect, History, Kind, Outcome, check};

/// Description of the bug, the expected violation, and the function that changes the history.
type Bug = (&'static str, Kind, fn(&mut History));

const BUGS: &[Bug] = &[
    ("an acknowledged write is lost", Kind::Lost, lose_write),
    ("two writes get one revision", Kind::Doubled, double_revision),
    ("a write is refused and carried out", Kind::Phantom, refuse_what_is_there),
    ("a write is carried out on another value than it expected", Kind::Expectation, ignore_expectation),
    ("a write is refused without reason", Kind::FalseConflict, refuse_without_reason),
    ("a read sees a value that no write wrote", Kind::Phantom, make_up),
    ("a read at the control plane is stale", Kind::Order, read_stale),
    ("a read tells an older state by a newer number", Kind::WrongState, mislabel),
    ("a read at a replica is older than was asked", Kind::TooOld, read_too_old),
    ("a watch tears a batch", Kind::WrongState, tear),
    ("a watch is out of order", Kind::Backwards, reorder),
    ("a watch falls silent", Kind::Behind, silence),
];

/// Asserts that the checker finds each bug when planted into a correct history.
#[track_caller]
pub(crate) fn each_is_found(history: &History) {
    for (what, kind, plant) in BUGS {
        let mut planted = history.clone();
        plant(&mut planted);
        let found = check(&planted);
        assert!(
            found.iter().any(|violation| violation.kind == *kind),
            "{what} is not found, only {found:#?}"
        );
    }
}

/// Index of an acknowledged write with an expectation that fits.
fn written(history: &History, fits: impl Fn(Expect) -> bool) -> usize {
    let acknowledged = history.writes.iter().position(|write| {
        matches!(write.outcome, Outcome::Done(_)) && write.ops.iter().any(|op| fits(op.expect))
    });
    acknowledged.expect("there is such a write")
}

fn lose_write(history: &mut History) {
    let (key, _) = history.end.cells.pop_last().expect("something is written");
    assert!(history.writes.iter().any(|write| write.ops.iter().any(|op| op.key == key)));
}

fn double_revision(history: &mut History) {
    let first = written(history, |_| true);
    let outcome = history.writes[first].outcome;
    let other = history.writes.iter_mut().skip(first + 1);
    other.filter(|write| write.outcome != outcome).for_each(|write| write.outcome = outcome);
}

fn refuse_what_is_there(history: &mut History) {
    let seen = written(history, |expect| expect == Expect::Absent);
    history.writes[seen].outcome = Outcome::Conflict;
}

fn ignore_expectation(history: &mut History) {
    let conditional = written(history, |expect| matches!(expect, Expect::Revision(_)));
    for op in &mut history.writes[conditional].ops {
        if let Expect::Revision(revision) = &mut op.expect {
            *revision -= 1;
        }
    }
}

fn refuse_without_reason(history: &mut History) {
    let mut refused = history.writes.iter_mut().filter(|write| write.outcome == Outcome::Conflict);
    let refused = refused.next().expect("writers contend");
    refused.ops.iter_mut().for_each(|op| op.expect = Expect::Any);
}

fn make_up(history: &mut History) {
    let read = history.reads.last_mut().expect("there are reads");
    let cell = read.state.cells.values_mut().next().expect("something is read");
    cell.value = u64::MAX;
}

fn read_stale(history: &mut History) {
    let mut linearizable = history.reads.iter_mut().filter(|read| read.at_least.is_none());
    let earlier = linearizable.next().expect("there are reads").state.clone();
    linearizable.next_back().expect("there are more").state = earlier;
}

fn mislabel(history: &mut History) {
    let cells = history.reads[0].state.cells.clone();
    history.reads.last_mut().expect("there are reads").state.cells = cells;
}

fn read_too_old(history: &mut History) {
    let read = history.reads.iter_mut().find(|read| read.at_least.is_some()).expect("there are replicas");
    read.at_least = Some(read.state.at + 1);
}

fn tear(history: &mut History) {
    let mut steps = history.watches.iter_mut().flat_map(|watch| &mut watch.steps);
    let step = steps.find(|step| !step.whole && step.puts.len() > 1).expect("there are batches");
    step.puts.pop();
}

fn reorder(history: &mut History) {
    let steps = &mut history.watches[0].steps;
    let at = steps.len() / 2;
    let later = steps.iter().position(|step| step.revision > steps[at].revision).expect("it goes forward");
    steps.swap(at, later);
}

fn silence(history: &mut History) {
    history.watches[0].steps.clear();
}
