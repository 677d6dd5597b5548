//! Measured distances between regions: filtering of samples, and the recorded results.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::{Invalid, Region};

/// Maximum plausible round trip: fifty times a signal's way around the earth.
pub const MAX_ROUND_TRIP: Duration = Duration::from_secs(10);

/// Maximum number of regions to which one region measures distances.
pub const MAX_MEASURED_REGIONS: usize = 256;

/// Number of rounds of which the median is taken.
const ROUNDS: usize = 5;
/// Minimum number of rounds before a median is reported.
const MIN_ROUNDS: usize = 3;
/// Number of consecutive differing reports after which a recorded distance is replaced.
const LASTING_REPORTS: u32 = 3;
/// Minimum relative change of a recorded distance, as a divisor. The change must also reach [`MIN_CHANGE`].
const CHANGE_DIVISOR: u32 = 10;
/// Minimum absolute change of a recorded distance.
const MIN_CHANGE: Duration = Duration::from_millis(1);

/// Distances measured by the health checker of one region; the value of one record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeasuredDistances {
    /// Distances by the other region; at most [`MAX_MEASURED_REGIONS`].
    pub to: BTreeMap<Region, MeasuredDistance>,
}

/// A measured round trip to another region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredDistance {
    /// The round trip, in whole microseconds: above zero, and at most [`MAX_ROUND_TRIP`].
    pub round_trip: Duration,
    /// Time of the recorded measurement, in milliseconds since 1970.
    pub measured_at_ms: u64,
}

impl MeasuredDistances {
    /// Checks that every distance is plausible, and that there are not too many.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.to.len() > MAX_MEASURED_REGIONS {
            let hint = format!("record at most {MAX_MEASURED_REGIONS} regions");
            return Err(Invalid::new("to", "has too many regions", hint));
        }
        match self.to.iter().find(|(_, distance)| !is_plausible(distance.round_trip)) {
            Some((region, MeasuredDistance { round_trip, .. })) => Err(Invalid::new(
                format!("to.{region}"),
                format!("{round_trip:?} is out of range"),
                "record more than 0 and at most 10s",
            )),
            None => Ok(()),
        }
    }
}

/// Whether a round trip between regions is plausible: at least a microsecond and at most [`MAX_ROUND_TRIP`].
pub fn is_plausible(round_trip: Duration) -> bool {
    round_trip >= Duration::from_micros(1) && round_trip <= MAX_ROUND_TRIP
}

/// The last rounds of measurements to one region. A round is the minimum of several samples, since delays can only
/// increase a sample. The median of rounds is not affected by a round in which all samples were delayed.
#[derive(Clone, Debug, Default)]
pub struct DistanceRounds {
    rounds: VecDeque<Duration>,
}

impl DistanceRounds {
    /// Adds a round. Returns the median of the last rounds once there are enough rounds. A round without a plausible
    /// sample is ignored.
    pub fn add(&mut self, samples: impl IntoIterator<Item = Duration>) -> Option<Duration> {
        let least = samples.into_iter().filter(|sample| is_plausible(*sample)).min()?;
        if self.rounds.len() == ROUNDS {
            self.rounds.pop_front();
        }
        self.rounds.push_back(least);
        let mut sorted: Vec<Duration> = self.rounds.iter().copied().collect();
        sorted.sort_unstable();
        (sorted.len() >= MIN_ROUNDS).then(|| sorted[(sorted.len() - 1) / 2])
    }
}

/// Decides when a reported distance replaces the recorded one. Only a lasting change does, since every change makes
/// routers compile their tables again.
#[derive(Clone, Copy, Debug, Default)]
pub struct DistanceFilter {
    /// Number of consecutive reports that differ from the record in the same direction.
    differing: u32,
    /// Whether the differing reports are above the record.
    above: bool,
}

impl DistanceFilter {
    /// Observes a report and returns whether to record it. The first distance of a pair is recorded immediately.
    /// Later distances need three consecutive reports that are all above, or all below, the record by at least 10 %
    /// and 1 ms.
    pub fn observe(&mut self, recorded: Option<Duration>, reported: Duration) -> bool {
        if !is_plausible(reported) {
            return false;
        }
        let Some(recorded) = recorded else { return true };
        let above = reported > recorded;
        if reported.abs_diff(recorded) < (recorded / CHANGE_DIVISOR).max(MIN_CHANGE) {
            self.differing = 0;
            return false;
        }
        self.differing = if above == self.above { self.differing.saturating_add(1) } else { 1 };
        self.above = above;
        self.differing >= LASTING_REPORTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
