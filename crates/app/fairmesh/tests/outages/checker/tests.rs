//! No false alarm over thousands of histories of a correct store, and every planted bug found.

mod store;

use std::collections::BTreeSet;

use store::{Bug, Dice, Run};

use super::{Kind, check};

/// How many histories a test makes.
const HISTORIES: u64 = 2000;

#[test]
fn correct_history_passes_the_checker() {
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

/// Every history in which the bug came to bear is refused, for one of these reasons.
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
fn an_acknowledged_write_that_is_lost_is_found() {
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
fn two_writes_with_one_revision_are_found() {
    caught(Bug::RepeatsRevision, &[Kind::Doubled]);
}

#[test]
fn a_revision_below_an_earlier_one_is_found() {
    caught(Bug::RevisionGoesBack, &[Kind::Order]);
}

#[test]
fn a_write_whose_expectation_was_not_met_is_found() {
    caught(Bug::IgnoresExpectation, &[Kind::Expectation]);
}

#[test]
fn a_write_that_is_refused_without_reason_is_found() {
    caught(Bug::RefusesFalsely, &[Kind::FalseConflict]);
}

#[test]
fn a_refused_write_that_is_carried_out_is_found() {
    caught(Bug::WritesWhatItRefused, &[Kind::Phantom]);
}

#[test]
fn unwritten_value_is_found() {
    caught(Bug::MakesUp, &[Kind::Phantom]);
}

#[test]
fn a_linearizable_read_of_an_older_state_is_found() {
    caught(Bug::ReadsStale, &[Kind::Order]);
}

#[test]
fn an_older_state_under_a_newer_number_is_found() {
    caught(Bug::ReadsMislabelled, &[Kind::WrongState]);
}

#[test]
fn read_below_its_requested_revision_is_found() {
    caught(Bug::ReadsTooOld, &[Kind::TooOld]);
}

#[test]
fn a_watch_that_tears_a_batch_is_found() {
    caught(Bug::TearsBatch, &[Kind::WrongState]);
}

#[test]
fn a_watch_that_is_out_of_order_is_found() {
    caught(Bug::Reorders, &[Kind::Backwards, Kind::WrongState]);
}

#[test]
fn a_watch_that_leaves_a_change_out_is_found() {
    caught(Bug::LeavesOut, &[Kind::WrongState]);
}

#[test]
fn a_watch_that_falls_silent_is_found() {
    caught(Bug::FallsSilent, &[Kind::Behind]);
}

#[test]
fn watcher_reset_to_an_older_snapshot_is_found() {
    caught(Bug::GoesBack, &[Kind::Backwards]);
}
