use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fairmesh_model::{CpuPath, CpuUser, DeniedPath, ServiceName};
use fairmesh_signals::beyond_shares;

use crate::step_history::MINUTES;

/// Name of the caller that stands for all callers beyond the maximum.
const OTHER: &str = "(other)";

/// A path whose counts are summed by minute. Paths beyond the maximum are merged.
pub(crate) trait SummedPath: Ord + Clone {
    /// Maximum number of separate paths. Further paths are merged.
    const MOST: usize;

    /// Returns the service that reports the path.
    fn service(&self) -> &ServiceName;

    /// Returns the path into which this path is merged.
    fn of_others(&self) -> Self;
}

impl SummedPath for DeniedPath {
    const MOST: usize = 4_096;

    fn service(&self) -> &ServiceName {
        &self.service
    }

    fn of_others(&self) -> Self {
        let (service, is_audit) = (self.service.clone(), self.is_audit);
        let (method, path) = Default::default();
        Self { service, caller: Some(OTHER.to_owned()), rule: None, is_audit, method, path }
    }
}

impl SummedPath for CpuPath {
    const MOST: usize = 8_192;

    fn service(&self) -> &ServiceName {
        &self.service
    }

    fn of_others(&self) -> Self {
        Self { service: self.service.clone(), by: self.by, user: CpuUser::Other }
    }
}

/// Sums of paths by minute.
#[derive(Debug)]
pub(crate) struct MinuteSums<P> {
    paths: BTreeMap<P, Minutes>,
    /// The last minute in which merging freed little room.
    crowded_in: Option<u64>,
}

/// Sums of successive minutes. Absent minutes are zero.
#[derive(Debug, Default)]
struct Minutes {
    first: u64,
    sums: VecDeque<u64>,
}

impl<P> Default for MinuteSums<P> {
    fn default() -> Self {
        Self { paths: BTreeMap::new(), crowded_in: None }
    }
}

impl<P: SummedPath> MinuteSums<P> {
    /// Number of paths that is shared among services when the maximum is reached. Services beyond their share are
    /// folded.
    const SHARED: usize = P::MOST * 3 / 4;

    /// Adds a count to a path's minute. At the maximum, the smallest paths of services beyond their share are merged.
    /// If there are still too many paths, adds nothing and returns false.
    pub(crate) fn add(&mut self, path: P, minute: u64, count: u64) -> bool {
        let mut path = path;
        if !self.paths.contains_key(&path) && self.paths.len() >= P::MOST {
            if self.crowded_in != Some(minute) {
                self.fold_beyond_shares();
                self.crowded_in = Some(minute).filter(|_| self.paths.len() > P::MOST * 7 / 8);
            }
            if self.paths.len() >= P::MOST {
                path = path.of_others();
            }
        }
        if !self.paths.contains_key(&path) && self.paths.len() >= 2 * P::MOST {
            return false;
        }
        self.paths.entry(path).or_default().add(minute, count);
        true
    }

    /// Merges the smallest paths of services with more than their share, one merged path per service.
    fn fold_beyond_shares(&mut self) {
        let shares = beyond_shares(self.paths.keys().map(|path| (Some(path.service()), 1)), Self::SHARED);
        let mut smallest = BTreeMap::<&ServiceName, BTreeSet<(u64, &P)>>::new();
        for (path, minutes) in &self.paths {
            if shares.contains_key(&Some(path.service())) {
                smallest.entry(path.service()).or_default().insert((minutes.since(0), path));
            }
        }
        let folded = smallest.into_iter().flat_map(|(service, paths)| {
            let excess = paths.len() - shares[&Some(service)];
            paths.into_iter().take(excess).map(|(_, path)| path.clone())
        });
        for path in folded.collect::<Vec<_>>() {
            let Some(minutes) = self.paths.remove(&path) else { continue };
            let others = self.paths.entry(path.of_others()).or_default();
            for (minute, count) in (minutes.first..).zip(minutes.sums) {
                others.add(minute, count);
            }
        }
    }

    pub(crate) fn forget_before(&mut self, minute: u64) {
        self.paths.retain(|_, minutes| {
            minutes.forget_before(minute);
            !minutes.sums.is_empty()
        });
    }

    /// Returns the sum of each path since a minute, and the last minute with a count.
    pub(crate) fn since(&self, minute: u64) -> impl Iterator<Item = (&P, u64, u64)> {
        let sums =
            self.paths.iter().map(move |(path, minutes)| (path, minutes.since(minute), minutes.last()));
        sums.filter(|(_, count, _)| *count > 0)
    }

    /// Returns the sums of the selected paths for each of these minutes. Skips paths without counts.
    pub(crate) fn series(
        &self,
        minutes: std::ops::RangeInclusive<u64>,
        is_selected: impl Fn(&P) -> bool,
    ) -> impl Iterator<Item = (&P, Vec<u64>)> {
        let selected = self.paths.iter().filter(move |(path, _)| is_selected(path));
        let series = selected.map(move |(path, sums)| {
            (path, minutes.clone().map(|minute| sums.get(minute)).collect::<Vec<_>>())
        });
        series.filter(|(_, sums)| sums.iter().any(|sum| *sum > 0))
    }
}

impl Minutes {
    /// Adds a count. All minutes must be within an hour of each other.
    fn add(&mut self, minute: u64, count: u64) {
        if self.sums.is_empty() {
            self.first = minute;
        }
        while minute < self.first {
            self.sums.push_front(0);
            self.first -= 1;
        }
        let at = (minute - self.first) as usize;
        if self.sums.len() <= at {
            self.sums.resize(at + 1, 0);
        }
        self.sums[at] = self.sums[at].saturating_add(count);
    }

    fn get(&self, minute: u64) -> u64 {
        let at = minute.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.sums.get(at)).copied().unwrap_or_default()
    }

    fn since(&self, minute: u64) -> u64 {
        let from = usize::try_from(minute.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.sums.iter().skip(from).fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the last minute with a count.
    fn last(&self) -> u64 {
        self.first + (self.sums.len() as u64).saturating_sub(1)
    }

    fn forget_before(&mut self, minute: u64) {
        while self.first < minute && self.sums.pop_front().is_some() {
            self.first += 1;
        }
    }
}

/// Returns the first minute of the hour that ends with this minute.
pub(crate) fn first_minute(minute: u64) -> u64 {
    (minute + 1).saturating_sub(MINUTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(service: &str, caller: &str) -> DeniedPath {
        let service = ServiceName::new(service).unwrap();
        let (method, path) = ("GET".to_owned(), "/items".to_owned());
        DeniedPath { service, caller: Some(caller.to_owned()), rule: None, is_audit: false, method, path }
    }

    #[test]
    fn callers_beyond_share_of_service_are_merged_in_minute_sums() {
        let mut denied = MinuteSums::<DeniedPath>::default();
        (0..100).for_each(|n| assert!(denied.add(path("bank/rates", &format!("few-{n}")), 1, 1)));
        (0..3 * DeniedPath::MOST)
            .for_each(|n| assert!(denied.add(path("shop/cart", &format!("many-{n}")), 1, 1)));
        assert!(denied.paths.len() <= DeniedPath::MOST);
        let sum = |service: &str, is_other: bool| {
            let is_meant = |path: &DeniedPath| {
                path.service.to_string() == service && (path.caller.as_deref() == Some(OTHER)) == is_other
            };
            denied.since(0).filter(|(path, ..)| is_meant(path)).map(|(_, count, _)| count).sum::<u64>()
        };
        assert_eq!(
            (sum("bank/rates", false), sum("bank/rates", true)),
            (100, 0),
            "the other service has its share"
        );
        assert_eq!(sum("shop/cart", false) + sum("shop/cart", true), 3 * DeniedPath::MOST as u64);
        assert_eq!(denied.since(2).count(), 0);
        denied.forget_before(2);
        assert!(denied.paths.is_empty());
    }

    #[test]
    fn services_beyond_maximum_are_not_added_to_minute_sums() {
        let mut denied = MinuteSums::<DeniedPath>::default();
        let added =
            (0..3 * DeniedPath::MOST).filter(|n| denied.add(path(&format!("shop/s{n}"), "one"), 1, 1));
        assert_eq!((added.count(), denied.paths.len()), (2 * DeniedPath::MOST, 2 * DeniedPath::MOST));
    }

    #[test]
    fn minute_sums_added_out_of_order_are_sorted() {
        let mut sums = MinuteSums::<DeniedPath>::default();
        let path = path("shop/cart", "one");
        for (minute, count) in [(7, 2), (5, 1), (7, 4)] {
            assert!(sums.add(path.clone(), minute, count));
        }
        let series = |minutes| sums.series(minutes, |_| true).map(|(_, sums)| sums).collect::<Vec<_>>();
        assert_eq!(series(4..=8), [vec![0, 1, 0, 6, 0]]);
        assert!(series(8..=9).is_empty());
        assert_eq!(sums.since(6).map(|(_, sum, last)| (sum, last)).collect::<Vec<_>>(), [(6, 7)]);
    }
}
