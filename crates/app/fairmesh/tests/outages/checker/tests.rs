//! The checker accepts thousands of histories of a correct store and finds every planted bug.

mod store;

use std::collections::BTreeSet;

use store::{Bug, Dice, Run};

use super::{Kind, check};

/// Number of histories per test.
const HISTORIES: u64 = 2000;

#[test]
fn correct_history_passes_consistency_checker() {
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
fn checker_finds_lost_acknowledged_write() {
    caught(Bug::LosesWrite, &[Kind::Lost, Kind::WrongState]);
}

#[test]
fn checker_finds_half_stored_acknowledged_batch() {
    caught(Bug::StoresHalf, &[Kind::Lost, Kind::WrongState]);
}

#[test]
fn checker_finds_duplicated_write() {
    caught(Bug::WritesTwice, &[Kind::Doubled]);
}

#[test]
fn checker_finds_two_writes_with_same_revision() {
    caught(Bug::RepeatsRevision, &[Kind::Doubled]);
}

#[test]
fn checker_finds_write_with_revision_below_earlier_one() {
    caught(Bug::RevisionGoesBack, &[Kind::Order]);
}

#[test]
fn checker_finds_write_applied_despite_unmet_precondition() {
    caught(Bug::IgnoresExpectation, &[Kind::Expectation]);
}

#[test]
fn checker_finds_write_refused_although_its_precondition_held() {
    caught(Bug::RefusesFalsely, &[Kind::FalseConflict]);
}

#[test]
fn checker_finds_refused_write_that_was_applied() {
    caught(Bug::WritesWhatItRefused, &[Kind::Phantom]);
}

#[test]
fn checker_finds_value_that_nobody_wrote() {
    caught(Bug::MakesUp, &[Kind::Phantom]);
}

#[test]
fn checker_finds_stale_linearizable_read() {
    caught(Bug::ReadsStale, &[Kind::Order]);
}

#[test]
fn checker_finds_older_state_under_newer_revision() {
    caught(Bug::ReadsMislabelled, &[Kind::WrongState]);
}

#[test]
fn checker_finds_read_below_its_requested_revision() {
    caught(Bug::ReadsTooOld, &[Kind::TooOld]);
}

#[test]
fn checker_finds_batch_torn_apart_by_watch() {
    caught(Bug::TearsBatch, &[Kind::WrongState]);
}

#[test]
fn checker_finds_watch_with_changes_out_of_order() {
    caught(Bug::Reorders, &[Kind::Backwards, Kind::WrongState]);
}

#[test]
fn checker_finds_change_missing_from_watch() {
    caught(Bug::LeavesOut, &[Kind::WrongState]);
}

#[test]
fn checker_finds_watch_that_stopped_delivering() {
    caught(Bug::FallsSilent, &[Kind::Behind]);
}

#[test]
fn checker_finds_watcher_reset_to_older_snapshot() {
    caught(Bug::GoesBack, &[Kind::Backwards]);
}
