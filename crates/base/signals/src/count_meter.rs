use std::collections::BTreeMap;

use fairmesh_model::{CallCounts, CallPath, CountedBy, CountedPath};

use crate::CallCounters;

/// Converts total counts into the counts since the last reading.
#[derive(Debug, Default)]
pub struct CountMeter {
    last: BTreeMap<CountedPath, CallCounts>,
}

impl CountMeter {
    /// Returns the counts since the last reading; the first reading returns the totals. Every path that ever had a
    /// call has a row, with zeros if there were no new calls. Paths that are not listed are forgotten.
    pub fn read(
        &mut self,
        counts: impl IntoIterator<Item = (CountedPath, CallCounts)>,
    ) -> BTreeMap<CountedPath, CallCounts> {
        let before = std::mem::replace(&mut self.last, sums(counts));
        let since = |(path, now): (&CountedPath, &CallCounts)| {
            (path.clone(), before.get(path).map_or_else(|| now.clone(), |before| now.since(before)))
        };
        self.last.iter().map(since).collect()
    }

    /// Takes the final counts of counters that are being removed and returns their increase since the last reading.
    /// Later counters of the same paths start at zero.
    pub fn end(
        &mut self,
        counts: impl IntoIterator<Item = (CountedPath, CallCounts)>,
    ) -> BTreeMap<CountedPath, CallCounts> {
        let mut ended = sums(counts);
        for (path, counts) in &mut ended {
            if let Some(before) = self.last.remove(path) {
                *counts = counts.since(&before);
            }
        }
        ended
    }
}

/// Adds up the counts by path. Paths that never had a call are left out.
fn sums(counts: impl IntoIterator<Item = (CountedPath, CallCounts)>) -> BTreeMap<CountedPath, CallCounts> {
    let mut sums = BTreeMap::<CountedPath, CallCounts>::new();
    for (path, counts) in counts {
        if counts != CallCounts::ZERO {
            *sums.entry(path).or_default() += &counts;
        }
    }
    sums
}

/// The path and counts as views of the mesh show them: without the parent call.
pub fn counted_by_caller((path, counters): (CallPath, &CallCounters)) -> (CountedPath, CallCounts) {
    let CallPath { service, from, to, class, caller, from_zone, to_zone, parent: _ } = path;
    let by = CountedBy::Caller;
    let path = CountedPath { service, caller, by, class, from: Some(from), to, from_zone, to_zone };
    (path, counters.counts())
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{Region, ServiceName};

    use super::*;

    #[test]
    fn count_meter_reading_has_increase_of_each_path_and_zero_for_idle_ones() {
        let path = CallPath {
            service: ServiceName::new("shop/cart").unwrap(),
            from: Region::new("eu").unwrap(),
            to: None,
            class: None,
            caller: None,
            from_zone: None,
            to_zone: None,
            parent: None,
        };
        let (counters, mut meter) = (CallCounters::default(), CountMeter::default());
        let mut read = |counters: &CallCounters| {
            let rows = meter.read([counted_by_caller((path.clone(), counters))]);
            rows.values().map(CallCounts::calls).collect::<Vec<_>>()
        };
        assert!(read(&counters).is_empty(), "a path that never had a call is none");
        (0..5).for_each(|_| counters.record_attempt(true));
        assert_eq!(read(&counters), [5]);
        assert_eq!(read(&counters), [0], "known to be none");
        counters.record_unsent(false);
        assert_eq!(read(&counters), [1]);
        let new = CallCounters::default();
        new.record_attempt(true);
        assert_eq!(read(&new), [1], "counters that were made anew");
    }

    #[test]
    fn counters_of_ended_and_new_path_snapshots_are_counted_once() {
        let path = CountedPath {
            service: ServiceName::new("shop/cart").unwrap(),
            caller: None,
            by: CountedBy::Caller,
            class: None,
            from: None,
            to: None,
            from_zone: None,
            to_zone: None,
        };
        let row = |calls| [(path.clone(), CallCounts::ZERO.with_totals([calls, 0, 0, 0, 0]))];
        let calls = |rows: BTreeMap<_, CallCounts>| rows.values().map(CallCounts::calls).sum::<u64>();
        let mut meter = CountMeter::default();
        assert_eq!(calls(meter.read(row(5))), 5);
        assert_eq!((calls(meter.end(row(7))), calls(meter.read(row(1)))), (2, 1));
        assert_eq!(calls(meter.read(row(3))), 2);
    }
}
