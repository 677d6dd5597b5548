//! The checker accepts thousands of histories of a correct store and finds every planted bug.

mod store;

use std::collections::BTreeSet;

use store::{Bug, Dice, Run};

use super::{Kind, check};

/// Number of histories per test.
const HISTORIES: u64 = 2000;

#[test]
fn correct_history_passes_checker() {
    let mut unknown = 0;
    for seed in 0..HISTORIES {
        let Run { history, .. } = Run::new(Dice(seed), None);
        assert!(history.writes.len() > 20 && !history.reads.is_empty(), "it proves little");
        unknown += history.writes.iter().filter(|write| write.outcome == super::Outcome::Unknown).count();
        let found = check(&history);
        assert!(found.is_empty(), "seed {seed}: {found:#?}");
    }
    assert!(unknown > 1000, "unknown outcomes are what makes it hard: {unknown}");
}

/// Asserts that every history in which the bug took effect is rejected, for one of these reasons.
#[track_caller]
fn caught(bug: Bug, reasons: &[Kind]) {
    let (mut planted, mut seen) = (0, BTreeSet::new());
    for seed in 0..HISTORIES / 5 {
        let run = Run::new(Dice(seed), Some(bug));
        if !run.planted {
            continue;
        }
        planted += 1;
        let found: BTreeSet<Kind> = check(&run.history).iter().map(|violation| violation.kind).collect();
        assert!(
            !found.is_disjoint(&reasons.iter().copied().collect()),
            "seed {seed}: {bug:?} gives {found:?}"
        );
        seen.extend(found);
    }
    assert!(planted > 50, "{bug:?} came to bear {planted} times only");
    assert!(reasons.iter().all(|reason| seen.contains(reason)), "{bug:?} gave {seen:?}");
}

#[test]
fn lost_acknowledged_write_is_found() {
    caught(Bug::LosesWrite, &[Kind::Lost, Kind::WrongState]);
}

#[test]
fn half_stored_acknowledged_batch_is_found() {
    caught(Bug::StoresHalf, &[Kind::Lost, Kind::WrongState]);
}

#[test]
fn duplicated_write_is_found() {
    caught(Bug::WritesTwice, &[Kind::Doubled]);
}

#[test]
fn two_writes_with_same_revision_are_found() {
    caught(Bug::RepeatsRevision, &[Kind::Doubled]);
}

#[test]
fn revision_below_earlier_one_is_found() {
    caught(Bug::RevisionGoesBack, &[Kind::Order]);
}

#[test]
fn write_applied_despite_unmet_expectation_is_found() {
    caught(Bug::IgnoresExpectation, &[Kind::Expectation]);
}

#[test]
fn write_refused_without_reason_is_found() {
    caught(Bug::RefusesFalsely, &[Kind::FalseConflict]);
}

#[test]
fn applied_refused_write_is_found() {
    caught(Bug::WritesWhatItRefused, &[Kind::Phantom]);
}

#[test]
fn unwritten_value_is_found() {
    caught(Bug::MakesUp, &[Kind::Phantom]);
}

#[test]
fn stale_linearizable_read_is_found() {
    caught(Bug::ReadsStale, &[Kind::Order]);
}

#[test]
fn older_state_under_newer_revision_is_found() {
    caught(Bug::ReadsMislabelled, &[Kind::WrongState]);
}

#[test]
fn read_below_its_requested_revision_is_found() {
    caught(Bug::ReadsTooOld, &[Kind::TooOld]);
}

#[test]
fn batch_torn_by_watch_is_found() {
    caught(Bug::TearsBatch, &[Kind::WrongState]);
}

#[test]
fn watch_out_of_order_is_found() {
    caught(Bug::Reorders, &[Kind::Backwards, Kind::WrongState]);
}

#[test]
fn change_missing_from_watch_is_found() {
    caught(Bug::LeavesOut, &[Kind::WrongState]);
}

#[test]
fn silent_watch_is_found() {
    caught(Bug::FallsSilent, &[Kind::Behind]);
}

#[test]
fn watcher_reset_to_older_snapshot_is_found() {
    caught(Bug::GoesBack, &[Kind::Backwards]);
}
