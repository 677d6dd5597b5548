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
