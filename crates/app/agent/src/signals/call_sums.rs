//! Totals of the calls of local programs by caller and callee, for the page of metrics: one scrape shows a whole machine.
//!
//! Programs report rates, which become counts by the time since the reporter's last report. A lost report is thus made up for by the
//! next one, and a repeated one adds nothing. Counters in the reports were rejected there: each restart would look like a burst.

use std::{collections::HashMap, ops::AddAssign};

use fairmesh_metrics::{OTHER, Register as _, UNKNOWN};
use fairmesh_wire::v1;
use prometheus_client::registry::Registry;

/// Maximum number of pairs with series of their own, in order of their first call; further ones are counted together.
const MAX_PAIRS: usize = 500;
/// A pair without calls for this long loses its series.
const PAIR_IDLE_MS: u64 = 10 * 60 * 1_000;
/// Maximum number of reporters whose last report is remembered. Reports of further ones count by their own interval.
const MAX_REPORTERS: usize = 2_000;
/// Missed intervals that a report makes up for.
const MAX_INTERVALS: u64 = 3;
/// Bounds of what a reporter may claim as its interval.
const INTERVAL_MS: std::ops::RangeInclusive<u64> = 100..=20_000;

/// A counter of each pair: name, help text and value.
type Column = (&'static str, &'static str, fn(&CallTotals) -> f64);

const COLUMNS: [Column; 7] = [
    ("calls", "Calls of programs of this machine by calling and called service", |sum| sum.calls),
    ("call_attempts", "Attempts of these calls, retries and hedges included", |sum| sum.attempts),
    ("call_answers", "Attempts with a response", |sum| sum.answers),
    ("call_sheds", "Attempts refused because of overload, and calls that a region table dropped", |sum| {
        sum.sheds
    }),
    ("call_response_seconds", "Time until the responses began", |sum| sum.seconds),
    ("call_request_bytes", "Bytes of the bodies of requests", |sum| sum.request_bytes),
    ("call_response_bytes", "Bytes of the bodies of responses", |sum| sum.response_bytes),
];

/// Sums of rows of one pair. Rates make fractions of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct CallTotals {
    calls: f64,
    attempts: f64,
    answers: f64,
    sheds: f64,
    seconds: f64,
    request_bytes: f64,
    response_bytes: f64,
}

/// Totals since the agent began.
#[derive(Debug, Default)]
pub(crate) struct CallSums {
    pairs: HashMap<Pair, PairTotals>,
    other: CallTotals,
    /// When each reporter reported last, in milliseconds.
    reporters: HashMap<u64, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pair {
    caller: Box<str>,
    callee: Box<str>,
}

#[derive(Debug, Default)]
struct PairTotals {
    totals: CallTotals,
    called_at_ms: u64,
}

/// The calls of one report.
#[derive(Debug)]
pub(crate) struct ReportedCalls {
    reporter: u64,
    interval_ms: u64,
    /// By second.
    rows: Vec<(Pair, CallTotals)>,
}

impl ReportedCalls {
    /// Reads the calls of a report; `None` if it has no rates.
    pub(crate) fn of(report: &v1::ReportSignalsRequest) -> Option<Self> {
        let sender = report.sender.as_ref()?;
        let row = |row: &v1::CallRates| {
            let caller = if row.caller.is_empty() { UNKNOWN } else { &row.caller };
            (Pair { caller: caller.into(), callee: (&*row.service).into() }, row.into())
        };
        let interval_ms = u64::from(sender.interval_ms).clamp(*INTERVAL_MS.start(), *INTERVAL_MS.end());
        Some(Self { reporter: sender.reporter, interval_ms, rows: report.calls.iter().map(row).collect() })
    }
}

impl CallSums {
    /// Adds the calls of a valid report. `now_ms` comes from a monotonic clock.
    pub(crate) fn add(&mut self, report: ReportedCalls, now_ms: u64) {
        let ReportedCalls { reporter, interval_ms, rows } = report;
        let elapsed_ms = self.elapsed_ms(reporter, interval_ms, now_ms);
        for (pair, rates) in rows {
            if rates == CallTotals::default() {
                continue;
            }
            if self.pairs.len() >= MAX_PAIRS && !self.pairs.contains_key(&pair) {
                self.expire(now_ms);
            }
            let has_room = self.pairs.len() < MAX_PAIRS || self.pairs.contains_key(&pair);
            let added = rates.during(elapsed_ms as f64 / 1e3);
            if has_room {
                let known = self.pairs.entry(pair).or_default();
                known.called_at_ms = now_ms;
                known.totals += added;
            } else {
                self.other += added;
            }
        }
    }

    /// How long the rates of a report apply.
    fn elapsed_ms(&mut self, reporter: u64, interval_ms: u64, now_ms: u64) -> u64 {
        if self.reporters.len() >= MAX_REPORTERS && !self.reporters.contains_key(&reporter) {
            let oldest = now_ms.saturating_sub(INTERVAL_MS.end() * MAX_INTERVALS);
            self.reporters.retain(|_, at_ms| *at_ms >= oldest);
        }
        let has_room = self.reporters.len() < MAX_REPORTERS || self.reporters.contains_key(&reporter);
        let before = if has_room { self.reporters.insert(reporter, now_ms) } else { None };
        before.map_or(interval_ms, |at_ms| now_ms.saturating_sub(at_ms).min(interval_ms * MAX_INTERVALS))
    }

    fn expire(&mut self, now_ms: u64) {
        self.pairs.retain(|_, pair| now_ms.saturating_sub(pair.called_at_ms) < PAIR_IDLE_MS);
    }

    /// Registers the totals of each pair that was called lately.
    pub(crate) fn register(&mut self, registry: &mut Registry, now_ms: u64) {
        self.expire(now_ms);
        let mut rows: Vec<_> = self.pairs.iter().map(|(pair, sum)| (pair.clone(), sum.totals)).collect();
        rows.sort_by(|(a, _), (b, _)| a.cmp(b));
        let other = Pair { caller: OTHER.into(), callee: OTHER.into() };
        rows.extend((self.other != CallTotals::default()).then_some((other, self.other)));
        for (name, help, value) in COLUMNS {
            let row = |(Pair { caller, callee }, sum): &(Pair, CallTotals)| {
                let label = |name: &str| name.to_owned().into();
                ([("fairmesh_caller", label(caller)), ("fairmesh_callee", label(callee))], value(sum))
            };
            registry.counters(name, help, rows.iter().map(row));
        }
    }
}

impl CallTotals {
    /// The totals of rates by second.
    fn during(self, seconds: f64) -> Self {
        Self {
            calls: self.calls * seconds,
            attempts: self.attempts * seconds,
            answers: self.answers * seconds,
            sheds: self.sheds * seconds,
            seconds: self.seconds * seconds,
            request_bytes: self.request_bytes * seconds,
            response_bytes: self.response_bytes * seconds,
        }
    }
}

impl AddAssign for CallTotals {
    fn add_assign(&mut self, more: Self) {
        self.calls += more.calls;
        self.attempts += more.attempts;
        self.answers += more.answers;
        self.sheds += more.sheds;
        self.seconds += more.seconds;
        self.request_bytes += more.request_bytes;
        self.response_bytes += more.response_bytes;
    }
}

/// Rates by second.
impl From<&v1::CallRates> for CallTotals {
    fn from(row: &v1::CallRates) -> Self {
        let thousandths = |rate: u64| rate as f64 / 1e3;
        Self {
            calls: thousandths(row.offered),
            attempts: thousandths(row.attempts),
            answers: thousandths(row.answered),
            sheds: thousandths(row.shed),
            seconds: row.time_us as f64 / 1e6,
            request_bytes: row.request_bytes as f64,
            response_bytes: row.bytes as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(reporter: u64, rows: &[(&str, &str, u64)]) -> ReportedCalls {
        let row = |(caller, service, offered): &(&str, &str, u64)| v1::CallRates {
            caller: (*caller).into(),
            service: (*service).into(),
            offered: *offered,
            time_us: 1_000,
            ..v1::CallRates::default()
        };
        let sender = Some(v1::SignalSender { reporter, interval_ms: 2_000, regions: vec!["eu".into()] });
        let calls = rows.iter().map(row).collect();
        ReportedCalls::of(&v1::ReportSignalsRequest { sender, calls, ..Default::default() }).unwrap()
    }

    fn calls(sums: &CallSums, caller: &str) -> Option<f64> {
        let pair = Pair { caller: caller.into(), callee: "shop/cart".into() };
        sums.pairs.get(&pair).map(|pair| pair.totals.calls)
    }

    #[test]
    fn rates_count_for_the_time_since_the_last_report() {
        let mut sums = CallSums::default();
        let of = |reporter| report(reporter, &[("shop/web", "shop/cart", 5_000), ("", "shop/cart", 1_000)]);
        sums.add(of(1), 10_000);
        assert_eq!(calls(&sums, "shop/web"), Some(10.0), "the interval of the first report");
        sums.add(of(1), 10_000);
        assert_eq!(calls(&sums, "shop/web"), Some(10.0), "a repeated report adds nothing");
        sums.add(of(1), 14_000);
        assert_eq!(calls(&sums, "shop/web"), Some(30.0), "a lost report is made up for");
        sums.add(of(2), 14_000);
        sums.add(of(1), 60_000);
        assert_eq!(calls(&sums, "shop/web"), Some(70.0), "three intervals at most");
        assert_eq!(calls(&sums, UNKNOWN), Some(14.0));
    }

    #[test]
    fn pairs_beyond_the_maximum_are_counted_together_and_idle_pairs_expire() {
        let mut sums = CallSums::default();
        let names: Vec<_> = (0..MAX_PAIRS + 3).map(|number| format!("shop/web-{number}")).collect();
        let rows: Vec<_> = names.iter().map(|caller| (&**caller, "shop/cart", 500)).collect();
        sums.add(report(1, &rows), 0);
        assert_eq!((sums.pairs.len(), sums.other.calls), (MAX_PAIRS, 3.0));
        sums.add(report(1, &[("shop/web-0", "shop/cart", 500), ("shop/idle", "shop/cart", 0)]), 2_000);
        assert_eq!(sums.pairs.len(), MAX_PAIRS);
        sums.add(report(1, &[("shop/new", "shop/cart", 500)]), PAIR_IDLE_MS + 1_000);
        assert_eq!(
            (sums.pairs.len(), calls(&sums, "shop/web-0"), calls(&sums, "shop/new")),
            (2, Some(2.0), Some(3.0))
        );
        let mut registry = Registry::default();
        sums.register(&mut registry, 2 * PAIR_IDLE_MS + 2_000);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let other = "calls_total{fairmesh_caller=\"(other)\",fairmesh_callee=\"(other)\"} 3";
        assert!(text.contains(other) && !text.contains("shop/new"), "{text}");
    }

    #[test]
    fn reporters_are_bounded() {
        let mut sums = CallSums::default();
        (0..MAX_REPORTERS as u64 + 5).for_each(|reporter| sums.add(report(reporter, &[]), 1));
        assert_eq!(sums.reporters.len(), MAX_REPORTERS);
        sums.add(report(u64::MAX, &[]), 100_000);
        assert_eq!(sums.reporters.len(), 1);
    }
}
