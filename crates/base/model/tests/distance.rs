//! How distances between regions are measured, and which changes are recorded.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::{collections::BTreeMap, time::Duration};

use fairmesh_model::{DistanceFilter, DistanceRounds, MeasuredDistance, MeasuredDistances, Region};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn region_distance_is_median_of_minimum_samples() {
    let mut rounds = DistanceRounds::default();
    assert_eq!(rounds.add([ms(90), ms(20), ms(30)]), None);
    assert_eq!(rounds.add([ms(22)]), None, "two rounds say little");
    assert_eq!(rounds.add([ms(400)]), Some(ms(22)), "a slow round is ignored");
    assert_eq!(rounds.add([]), None, "no sample is no round");
    assert_eq!(rounds.add([ms(30)]), Some(ms(22)));
    assert_eq!(rounds.add([ms(30)]), Some(ms(30)));
    assert_eq!(rounds.add([ms(30)]), Some(ms(30)), "20 ms has left the window");
}

#[test]
fn implausible_distance_samples_are_ignored() {
    let mut rounds = DistanceRounds::default();
    for _ in 0..9 {
        assert_eq!(rounds.add([Duration::ZERO, Duration::from_nanos(999), ms(10_001)]), None);
    }
    let mut filter = DistanceFilter::default();
    for wrong in [Duration::ZERO, ms(10_001), Duration::MAX] {
        assert!(!filter.observe(None, wrong), "{wrong:?}");
    }
}

/// The numbers of the recorded reports, counted from 1.
fn recorded(reports: &[u64]) -> Vec<usize> {
    let (mut filter, mut record) = (DistanceFilter::default(), None);
    let mut recorded = Vec::new();
    for (i, report) in reports.iter().enumerate() {
        if filter.observe(record, ms(*report)) {
            record = Some(ms(*report));
            recorded.push(i + 1);
        }
    }
    recorded
}

#[test]
fn distance_filter_records_first_value_and_lasting_changes() {
    assert_eq!(recorded(&[20, 20, 21, 19, 20]), [1], "less than 10 %");
    assert_eq!(recorded(&[20, 22, 22, 22, 22]), [1, 4], "10 %, three times");
    assert_eq!(recorded(&[20, 30, 30, 20, 30, 30]), [1], "not lasting");
    assert_eq!(recorded(&[20, 30, 10, 30, 10, 30]), [1], "in no direction");
    assert_eq!(recorded(&[20, 30, 31, 32, 32]), [1, 4]);
}

#[test]
fn small_distance_needs_change_of_one_millisecond() {
    let mut filter = DistanceFilter::default();
    let us = Duration::from_micros;
    for _ in 0..9 {
        assert!(!filter.observe(Some(us(500)), us(1400)), "0.9 ms more");
    }
    assert_eq!([1500; 3].map(|to| filter.observe(Some(us(500)), us(to))), [false, false, true]);
}

#[test]
fn distance_change_is_offered_again_until_written() {
    let mut filter = DistanceFilter::default();
    let offered = [30; 5].map(|to| filter.observe(Some(ms(20)), ms(to)));
    assert_eq!(offered, [false, false, true, true, true]);
}

#[test]
fn record_with_implausible_distance_is_refused() {
    let with = |round_trip| MeasuredDistances {
        to: BTreeMap::from([(
            Region::new("us").unwrap(),
            MeasuredDistance { round_trip, measured_at_ms: 1 },
        )]),
    };
    assert_eq!(with(ms(20)).validate(), Ok(()));
    assert!(with(Duration::ZERO).validate().is_err());
    assert!(with(ms(10_001)).validate().unwrap_err().to_string().contains("to.us"));
}
