//! Totals of the calls of local programs by caller and callee, for the metrics page: one scrape shows the whole
//! machine.
//!
//! The totals sum up the counts that programs report (and repeat until delivered), so that they agree with views of the
//! mesh. Rejected: the rates that planners get, since a sum of rates over time misses intervals without a report.

use std::collections::HashMap;

use fairmesh_metrics::{OTHER, Register as _, UNKNOWN};
use fairmesh_model::{CallCounts, CountReport, CountedBy, CountedPath};
use prometheus_client::registry::Registry;

/// Maximum number of pairs with their own series, in order of their first call. Further pairs share one series; so does
/// the oldest one of the caller that has the most: programs choose the names of the services that they call.
const MAX_PAIRS: usize = 500;
/// Time without calls after which a pair loses its series.
const PAIR_IDLE_MS: u64 = 10 * 60 * 1_000;

/// A counter that every pair has: name, help text and value.
type Column = (&'static str, &'static str, fn(&CallCounts) -> f64);

const COLUMNS: [Column; 7] = [
    ("calls", "Calls of programs of this machine by calling and called service", |sum| sum.calls() as f64),
    ("call_retries", "Further attempts of these calls, hedges included", |sum| sum.retries() as f64),
    ("call_failures", "Calls with a response 5xx, an error of gRPC, or no response", |sum| {
        sum.failures() as f64
    }),
    ("call_answers", "Attempts with a response", |sum| sum.latency().iter().sum::<u64>() as f64),
    ("call_response_seconds", "Time until the responses began", |sum| sum.time_us() as f64 / 1e6),
    ("call_request_bytes", "Bytes of the bodies of requests", |sum| sum.request_bytes() as f64),
    ("call_response_bytes", "Bytes of the bodies of responses", |sum| sum.response_bytes() as f64),
];

/// Totals of calls by caller and callee since the agent started.
#[derive(Debug, Default)]
pub(crate) struct CallSums {
    pairs: HashMap<Pair, PairTotals>,
    other: CallCounts,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pair {
    caller: Box<str>,
    callee: Box<str>,
}

#[derive(Debug, Default)]
struct PairTotals {
    totals: CallCounts,
    called_at_ms: u64,
}

impl CallSums {
    /// Adds the calls counted by callers. Each report must be passed once. `now_ms` comes from a monotonic clock.
    pub(crate) fn add(&mut self, report: &CountReport, now_ms: u64) {
        let rows = report.intervals.iter().flat_map(|interval| &interval.calls);
        // Rows of servers are skipped: they count calls from other machines, and calls from this machine a second time.
        for (path, counts) in rows.filter(|(path, _)| path.by == CountedBy::Caller) {
            if *counts == CallCounts::ZERO {
                continue;
            }
            let pair = Pair::of(path);
            if self.pairs.len() >= MAX_PAIRS && !self.pairs.contains_key(&pair) {
                self.expire(now_ms);
            }
            if self.pairs.contains_key(&pair) || self.make_room(&pair.caller) {
                let known = self.pairs.entry(pair).or_default();
                known.called_at_ms = now_ms;
                known.totals += counts;
            } else {
                self.other += counts;
            }
        }
    }

    /// Makes room for a pair of a caller. Returns whether there is room.
    fn make_room(&mut self, caller: &str) -> bool {
        if self.pairs.len() < MAX_PAIRS {
            return true;
        }
        let mut by_caller = HashMap::<&str, usize>::new();
        self.pairs.keys().for_each(|pair| *by_caller.entry(&pair.caller).or_default() += 1);
        let own = by_caller.get(caller).copied().unwrap_or_default();
        let Some((largest, _)) =
            by_caller.into_iter().max_by_key(|(_, pairs)| *pairs).filter(|(_, pairs)| *pairs > own + 1)
        else {
            return false;
        };
        let of_largest = self.pairs.iter().filter(|(pair, _)| &*pair.caller == largest);
        let Some(oldest) = of_largest.min_by_key(|(_, sum)| sum.called_at_ms).map(|(pair, _)| pair.clone())
        else {
            return false;
        };
        if let Some(removed) = self.pairs.remove(&oldest) {
            self.other += &removed.totals;
        }
        true
    }

    fn expire(&mut self, now_ms: u64) {
        self.pairs.retain(|_, pair| now_ms.saturating_sub(pair.called_at_ms) < PAIR_IDLE_MS);
    }

    /// Registers the totals of each pair with recent calls.
    pub(crate) fn register(&mut self, registry: &mut Registry, now_ms: u64) {
        self.expire(now_ms);
        let mut rows: Vec<_> = self.pairs.iter().map(|(pair, sum)| (pair.clone(), &sum.totals)).collect();
        rows.sort_by(|(a, _), (b, _)| a.cmp(b));
        let other = Pair { caller: OTHER.into(), callee: OTHER.into() };
        rows.extend((self.other != CallCounts::ZERO).then_some((other, &self.other)));
        for (name, help, value) in COLUMNS {
            let row = |(Pair { caller, callee }, sum): &(Pair, &CallCounts)| {
                let label = |name: &str| name.to_owned().into();
                ([("fairmesh_caller", label(caller)), ("fairmesh_callee", label(callee))], value(sum))
            };
            registry.counters(name, help, rows.iter().map(row));
        }
    }
}

impl Pair {
    fn of(path: &CountedPath) -> Self {
        let caller = path.caller.as_ref().map_or_else(|| UNKNOWN.into(), |caller| caller.to_string().into());
        Self { caller, callee: path.service.to_string().into() }
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{CountedInterval, ServiceName};

    use super::*;

    fn report(rows: &[(&str, u64)], by: CountedBy) -> CountReport {
        let row = |(caller, calls): &(&str, u64)| {
            let path = CountedPath {
                service: ServiceName::new("shop/cart").unwrap(),
                caller: ServiceName::new(caller).ok(),
                by,
                class: None,
                from: None,
                to: None,
                from_zone: None,
                to_zone: None,
            };
            (path, CallCounts::ZERO.with_totals([*calls, 1, 2_000, 0, 0]))
        };
        let interval =
            CountedInterval { calls: rows.iter().map(row).collect(), ..CountedInterval::default() };
        CountReport { intervals: vec![interval.clone(), interval], ..CountReport::default() }
    }

    fn calls(sums: &CallSums, caller: &str) -> Option<u64> {
        let pair = Pair { caller: caller.into(), callee: "shop/cart".into() };
        sums.pairs.get(&pair).map(|pair| pair.totals.calls())
    }

    #[test]
    fn caller_counts_are_summed_over_report_intervals() {
        let mut sums = CallSums::default();
        sums.add(&report(&[("shop/web", 5), ("", 1)], CountedBy::Caller), 10_000);
        sums.add(&report(&[("shop/web", 7)], CountedBy::Server), 10_000);
        assert_eq!((calls(&sums, "shop/web"), calls(&sums, UNKNOWN)), (Some(10), Some(2)));
    }

    #[test]
    fn program_that_calls_many_invented_services_leaves_series_to_others() {
        let mut sums = CallSums::default();
        let mut flood = report(&[("red/x", 1)], CountedBy::Caller);
        let (path, counts) = flood.intervals[0]
            .calls
            .first_key_value()
            .map(|(path, counts)| (path.clone(), counts.clone()))
            .unwrap();
        let invented = (0..2 * MAX_PAIRS).map(|number| ServiceName::new(format!("red/s{number}")).unwrap());
        flood.intervals[0]
            .calls
            .extend(invented.map(|service| (CountedPath { service, ..path.clone() }, counts.clone())));
        sums.add(&flood, 0);
        sums.add(&report(&[("shop/web", 5)], CountedBy::Caller), 1);
        assert_eq!((sums.pairs.len(), calls(&sums, "shop/web")), (MAX_PAIRS, Some(10)));
        let total: u64 = sums.pairs.values().map(|pair| pair.totals.calls()).sum();
        assert_eq!(total + sums.other.calls(), 2 + 2 * MAX_PAIRS as u64 + 10, "nothing is lost");
    }

    #[test]
    fn excess_caller_callee_pairs_share_one_series_and_idle_pairs_expire() {
        let mut sums = CallSums::default();
        let names: Vec<_> = (0..MAX_PAIRS + 3).map(|number| format!("shop/web-{number:03}")).collect();
        let rows: Vec<_> = names.iter().map(|caller| (&**caller, 1)).collect();
        sums.add(&report(&rows, CountedBy::Caller), 0);
        assert_eq!((sums.pairs.len(), sums.other.calls()), (MAX_PAIRS, 6));
        sums.add(&report(&[("shop/web-000", 1), ("shop/new", 4)], CountedBy::Caller), PAIR_IDLE_MS + 1_000);
        assert_eq!(
            (sums.pairs.len(), calls(&sums, "shop/web-000"), calls(&sums, "shop/new")),
            (2, Some(2), Some(8))
        );
        let mut registry = Registry::default();
        sums.register(&mut registry, 2 * PAIR_IDLE_MS + 2_000);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let other = "calls_total{fairmesh_caller=\"(other)\",fairmesh_callee=\"(other)\"} 6";
        assert!(text.contains(other) && !text.contains("shop/new"), "{text}");
    }
}
