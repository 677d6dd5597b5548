use std::collections::BTreeMap;

use fairmesh_model::{CountedBy, ServiceName};
use proptest::prelude::*;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

fn path(number: usize) -> CountedPath {
    CountedPath {
        service: ServiceName::new(format!("shop/s{number}")).unwrap(),
        caller: Some(ServiceName::new("shop/web").unwrap()),
        by: CountedBy::Caller,
        class: None,
        from: Some("eu-central".parse().unwrap()),
        to: Some("eu-west".parse().unwrap()),
        from_zone: None,
        to_zone: None,
    }
}

fn calls(calls: u64) -> CallCounts {
    CallCounts::ZERO.with_totals([calls, 0, calls * 900, 0, calls * 3])
}

fn interval(rows: impl IntoIterator<Item = (usize, u64)>, age_ms: u64, span_ms: u64) -> CountedInterval {
    let mut sums = BTreeMap::<CountedPath, CallCounts>::new();
    for (number, count) in rows {
        *sums.entry(path(number)).or_default() += &calls(count);
    }
    let (age, span) = (Duration::from_millis(age_ms), Duration::from_millis(span_ms));
    CountedInterval { age, span, calls: sums, ..CountedInterval::default() }
}

fn history(rows: usize, bytes: usize) -> CallHistory {
    CallHistory::new(HistoryLimits { rows, bytes })
}

fn total(history: &CallHistory, window: Duration, now_ms: u64) -> u64 {
    let (rows, other) = history.read(window, now_ms, |_| true);
    rows.iter().chain(&other).map(|row| row.counts.calls()).sum()
}

#[test]
fn call_counts_over_several_history_steps_are_divided_by_time() {
    let mut history = history(10, 1 << 20);
    history.record(interval([(1, 30)], 0, 15_000), 105_000);
    let (rows, other) = history.read(MINUTE, 105_000, |_| true);
    assert_eq!(rows[0].series, [None, None, None, None, Some(20), Some(10)]);
    assert_eq!((rows[0].counts.clone(), rows[0].covered), (calls(30), Duration::from_secs(15)));
    assert_eq!((rows[0].age, other), (Duration::ZERO, None));
    assert_eq!(total(&history, HOUR, 105_000), 30);
}

#[test]
fn history_step_without_report_is_gap_not_zero() {
    let mut history = history(10, 1 << 20);
    history.record(interval([(1, 10)], 0, 10_000), 100_000);
    history.record(interval([(1, 0)], 0, 10_000), 110_000);
    history.record(interval([(1, 5)], 0, 10_000), 140_000);
    let (rows, _) = history.read(MINUTE, 159_999, |_| true);
    let expected = [Some(0), None, None, Some(5), None, None];
    assert_eq!(rows[0].series, expected);
    assert_eq!(rows[0].covered, Duration::from_secs(20), "gaps lower no rate");
    assert_eq!(rows[0].age, Duration::from_millis(19_999));
    assert!(history.read(MINUTE, 260_000, |_| true).0.is_empty(), "all of the window is a gap");
}

#[test]
fn history_steps_of_regions_sum_rows_of_callers_by_both_regions() {
    let mut history = history(10, 1 << 20);
    history.record(interval([(1, 10), (2, 5), (3, 99)], 0, 10_000), 110_000);
    let [stays, served, nowhere] = [4, 5, 6].map(|number| {
        let mut path = path(number);
        match number {
            4 => path.to = path.from.clone(),
            5 => path.by = CountedBy::Server,
            _ => path.to = None,
        }
        path
    });
    let span = Duration::from_secs(5);
    let rows = [stays, served, nowhere].map(|path| (path, calls(7)));
    history.record(CountedInterval { span, calls: rows.into(), ..CountedInterval::default() }, 135_000);
    let steps = history.region_steps(MINUTE, 135_000, |service| *service != path(3).service);
    let [from, to] = [path(1).from.unwrap(), path(1).to.unwrap()];
    let crossing = vec![None, None, Some((15, Duration::from_secs(10))), None, None, None];
    let staying = vec![None, None, None, None, None, Some((7, span))];
    assert_eq!(steps, BTreeMap::from([((from.clone(), to), crossing), ((from.clone(), from), staying)]));
}

#[test]
fn selected_history_rows_are_summed_by_step_and_gaps_stay() {
    let mut history = history(10, 1 << 20);
    history.record(interval([(1, 10), (2, 5), (3, 99)], 0, 10_000), 110_000);
    history.record(interval([(1, 4)], 0, 5_000), 135_000);
    let steps = history.steps(MINUTE, 135_000, |path| path.service != self::path(3).service);
    let expected = |count, seconds| Some((calls(count), Duration::from_secs(seconds)));
    assert_eq!(steps, [None, None, expected(15, 10), None, None, expected(4, 5)]);
}

#[test]
fn late_call_counts_are_added_at_their_own_time() {
    let mut history = history(10, 1 << 20);
    history.record(interval([(1, 1)], 0, 10_000), 600_000);
    history.record(interval([(1, 7)], 60_000, 10_000), 610_000);
    let (rows, _) = history.read(Duration::from_secs(120), 600_000, |_| true);
    assert_eq!(rows[0].series[5..], [Some(7), None, None, None, None, Some(1), None]);
    history.record(interval([(1, 9)], 20 * 60_000, 10_000), 3_000_000);
    assert_eq!(total(&history, HOUR, 3_000_000), 17, "too late for steps, in time for minutes");
    history.record(interval([(1, 9)], 2 * 3_600_000, 10_000), 8_000_000);
    assert_eq!(history.left_out(), 1);
}

#[test]
fn old_history_rows_are_dropped_and_free_their_memory() {
    let mut history = history(100, 1 << 20);
    history.record(interval((0..50).map(|number| (number, 3)), 0, 10_000), 1_000_000);
    assert_eq!(total(&history, HOUR, 1_000_000), 150);
    history.record(interval([(99, 1)], 0, 10_000), 1_000_000 + 3_700_000);
    assert_eq!(history.rows(), 1);
    history.record(CountedInterval::default(), 20_000_000);
    assert_eq!((history.rows(), history.bytes()), (0, 0));
}

#[test]
fn smallest_history_rows_are_merged_beyond_row_limit() {
    let mut history = history(16, 1 << 20);
    history.record(interval((0..40).map(|number| (number, number as u64 + 1)), 0, 10_000), 100_000);
    let (rows, other) = history.read(MINUTE, 100_000, |_| true);
    assert_eq!(rows.len(), 15);
    assert!(rows.iter().all(|row| row.counts.calls() > 25), "the largest are told apart");
    let other = other.unwrap();
    assert_eq!((other.path, other.counts.calls()), (None, (1..=25).sum()));
}

/// Returns an interval with rows reported by one service.
fn interval_of(own: &str, rows: impl IntoIterator<Item = (usize, u64)>) -> CountedInterval {
    let mut interval = interval(rows, 0, 10_000);
    let own = Some(ServiceName::new(own).unwrap());
    let renamed = |(path, counts)| (CountedPath { caller: own.clone(), ..path }, counts);
    interval.calls = std::mem::take(&mut interval.calls).into_iter().map(renamed).collect();
    interval
}

#[test]
fn full_call_history_stays_bounded_and_keeps_largest_paths() {
    let limits = HistoryLimits { rows: 2_000, bytes: 24 << 20 };
    let mut history = CallHistory::new(limits);
    let calls = |number: usize| if number.is_multiple_of(20) { 1_000 } else { 1 + number as u64 % 10 };
    for round in 1..=4 {
        for report in 0..5 {
            let rows = (report * 4_000..(report + 1) * 4_000).map(|number| (number, calls(number)));
            history.record(interval(rows, 0, 10_000), round * 10_000);
            assert!(history.rows() <= limits.rows && history.bytes() <= limits.bytes);
        }
    }
    let (rows, _) = history.read(MINUTE, 40_000, |_| true);
    let large = rows.iter().filter(|row| row.counts.calls() == 4 * 1_000).count();
    assert_eq!(large, 1_000, "each of the large ones, since its first report");
    assert_eq!(total(&history, MINUTE, 40_000), (0..20_000).map(calls).sum::<u64>() * 4);
}

#[test]
fn many_paths_of_one_service_do_not_displace_other_services() {
    let mut history = history(160, 1 << 20);
    history.record(interval_of("bank/rates", (0..40).map(|number| (number, 1))), 10_000);
    history.record(interval_of("shop/quiet", (0..20).map(|number| (number, 1))), 10_000);
    for round in 1..=3 {
        let many = (0..1_000).map(|number| (number, 1 << 40));
        history.record(interval_of("shop/loud", many), round * 10_000);
    }
    let (rows, other) = history.read(MINUTE, 30_000, |_| true);
    let of =
        |own: &str| rows.iter().filter(|row| row.path.unwrap().caller == ServiceName::new(own).ok()).count();
    assert_eq!((of("bank/rates"), of("shop/quiet")), (40, 20));
    assert!(of("shop/loud") <= 100 && other.unwrap().counts.calls() >= 900 << 40);
    assert!(history.rows() <= 160);
}

/// Extrapolates the size of 20,000 rows from 1,000 rows with all steps and minutes, and with outcomes as in a busy
/// mesh.
#[test]
fn history_limit_holds_twenty_thousand_full_rows() {
    let mut history = CallHistory::new(HistoryLimits::CONTROL_PLANE);
    let (responses, latency) = ([0, 9_000, 12, 40, 3], [0, 1, 40, 700, 900, 80, 30, 20, 10, 4, 2, 1]);
    let rows = 1_000;
    for minute in 0..60 {
        let steps = if minute < 50 { 1 } else { 6 };
        for step in 0..steps {
            let now_ms = minute * 60_000 + (step + 1) * 10_000;
            let mut interval = interval((0..rows).map(|number| (number, 9_000)), 0, 10_000);
            for counts in interval.calls.values_mut() {
                *counts +=
                    &CallCounts::ZERO.with_outcomes(&responses, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 5], &latency);
            }
            history.record(interval, now_ms);
        }
    }
    let full = history.bytes() * (20_000 / rows);
    assert!(full <= HistoryLimits::CONTROL_PLANE.bytes, "{} MiB", full >> 20);
    assert_eq!(history.rows(), rows);
}

proptest! {
    /// With folding, late and overlapping intervals, the rows and the merged row add up to what was recorded, within
    /// the limits.
    #[test]
    fn history_rows_and_merged_row_add_up_to_total(
        reports in prop::collection::vec(
            (prop::collection::vec((0_usize..40, 0_u64..1_000), 0..20), 0_u64..200_000, 0_u64..100_000, 0_u64..9_000),
            1..30),
    ) {
        let mut history = history(16, 16 << 10);
        let (mut now_ms, mut expected) = (400_000, 0);
        for (rows, age, span, pause) in reports {
            now_ms += pause;
            expected += rows.iter().map(|(_, count)| count).sum::<u64>();
            history.record(interval(rows, age, span), now_ms);
            prop_assert!(history.rows() <= 16);
            // The merged row itself is never folded.
            prop_assert!(history.bytes() <= 16 << 10 || history.rows() == 0, "{}", history.bytes());
        }
        prop_assert_eq!(history.left_out(), 0);
        prop_assert_eq!(total(&history, HOUR, now_ms), expected);
        if now_ms < 600_000 {
            prop_assert_eq!(total(&history, Duration::from_secs(600), now_ms), expected);
        }
    }
}
