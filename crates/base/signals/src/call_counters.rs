use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use fairmesh_model::{CallCounts, CallFault, CallPath, CallRates, ResponseClass};

use crate::outcome_counters::OutcomeCounters;

/// Counters of the calls on one path since the process began. Exact, and safe to update from any number of threads.
///
/// Each counter update is an atomic operation. A call with one attempt and a response updates four counters: the
/// first attempt, the time until the response, the latency bucket, and the response class. Attempts and answers are
/// derived as sums of other counters.
#[derive(Debug, Default)]
pub struct CallCounters {
    first_attempts: AtomicU64,
    time_us: AtomicU64,
    outcomes: OutcomeCounters,
    bytes: AtomicU64,
    request_bytes: AtomicU64,
    further_attempts: AtomicU64,
    /// Calls that ended without an attempt.
    unsent: AtomicU64,
    /// Answers with unknown latency.
    untimed: AtomicU64,
    shed: AtomicU64,
}

/// A snapshot of the counters, in the units of [`CallCounters`]: calls, microseconds and bytes.
type Counts = CallRates;

impl CallCounters {
    /// Counts an attempt; the first attempt also counts the call.
    #[inline]
    pub fn record_attempt(&self, is_first: bool) {
        let counter = if is_first { &self.first_attempts } else { &self.further_attempts };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts bytes of a request body.
    #[inline]
    pub fn record_request_bytes(&self, bytes: u64) {
        if bytes > 0 {
            self.request_bytes.fetch_add(bytes, Relaxed);
        }
    }

    /// Counts a call for which no server was picked. `is_dropped` means that a region table dropped it.
    pub fn record_unsent(&self, is_dropped: bool) {
        self.unsent.fetch_add(1, Relaxed);
        self.shed.fetch_add(u64::from(is_dropped), Relaxed);
    }

    /// Counts the response to an attempt. `time_us` is the time until the response began, in microseconds.
    #[inline]
    pub fn record_answer(&self, time_us: u64) {
        self.time_us.fetch_add(time_us, Relaxed);
        self.outcomes.record_latency(time_us);
    }

    /// Counts the final response of a call.
    #[inline]
    pub fn record_response(&self, class: ResponseClass) {
        self.outcomes.record_response(class, 1);
    }

    /// Counts a call without a response of its service.
    pub fn record_fault(&self, fault: CallFault) {
        self.outcomes.record_fault(fault, 1);
    }

    /// Counts an attempt that the server refused because it is overloaded.
    pub fn record_shed(&self) {
        self.shed.fetch_add(1, Relaxed);
    }

    /// Counts `calls` that another program made with this program's picks; `answered` of them had a response.
    pub fn record_calls(&self, calls: u64, answered: u64) {
        self.first_attempts.fetch_add(calls, Relaxed);
        self.untimed.fetch_add(answered, Relaxed);
        self.outcomes.record_response(ResponseClass::Unknown, answered);
        self.outcomes.record_fault(CallFault::Unknown, calls.saturating_sub(answered));
    }

    /// Counts bytes of a response body.
    #[inline]
    pub fn record_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Whether all counters are zero.
    pub(crate) fn is_zero(&self) -> bool {
        self.read() == Counts::default()
    }

    /// All counts since the process began, for views of the mesh.
    pub fn counts(&self) -> CallCounts {
        let Counts { offered, attempts, time_us, bytes, request_bytes, .. } = self.read();
        // Paths without a destination have no attempts, and calls on them have no retries.
        let retries = attempts.saturating_sub(offered);
        self.outcomes.add_to(CallCounts::ZERO.with_totals([offered, retries, time_us, request_bytes, bytes]))
    }

    fn read(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        let first_attempts = of(&self.first_attempts);
        Counts {
            offered: first_attempts + of(&self.unsent),
            attempts: first_attempts + of(&self.further_attempts),
            answered: self.outcomes.timed() + of(&self.untimed),
            shed: of(&self.shed),
            time_us: of(&self.time_us),
            bytes: of(&self.bytes),
            request_bytes: of(&self.request_bytes),
            ..Counts::default()
        }
    }
}

/// Converts counters into rates between two readings.
#[derive(Debug, Default)]
pub struct CallMeter {
    read_at_ms: Option<u64>,
    last: BTreeMap<CallPath, Counts>,
}

impl CallMeter {
    /// Returns the rates of all `paths` since the last reading; `None` for the first reading. `now_ms` comes from a
    /// monotonic clock. Paths that are not listed are forgotten.
    pub fn read<'a>(
        &mut self,
        paths: impl IntoIterator<Item = (CallPath, &'a CallCounters)>,
        now_ms: u64,
    ) -> Option<BTreeMap<CallPath, CallRates>> {
        let before = std::mem::take(&mut self.last);
        let elapsed = self.read_at_ms.replace(now_ms).map(|at| now_ms.saturating_sub(at));
        let mut rates = BTreeMap::new();
        let mut counts = BTreeMap::<CallPath, Counts>::new();
        for (path, counters) in paths {
            *counts.entry(path).or_default() += counters.read();
        }
        for (path, now) in counts {
            let since = before.get(&path).copied().unwrap_or_default();
            if let Some(elapsed_ms) = elapsed.filter(|elapsed| *elapsed > 0) {
                let rate = per_second(now, since, elapsed_ms);
                if rate != CallRates::default() {
                    rates.insert(path.clone(), rate);
                }
            }
            // A path without calls needs no entry.
            if now != Counts::default() {
                self.last.insert(path, now);
            }
        }
        elapsed.filter(|elapsed| *elapsed > 0).map(|_| rates)
    }
}

/// Rates of calls in thousandths per second, other rates per second. A counter that decreased was recreated.
fn per_second(now: Counts, since: Counts, elapsed_ms: u64) -> CallRates {
    let change = |now: u64, since: u64| now.checked_sub(since).unwrap_or(now);
    let calls = |now, since| rate(change(now, since), 1_000_000, elapsed_ms);
    let amount = |now, since| rate(change(now, since), 1_000, elapsed_ms);
    CallRates {
        offered: calls(now.offered, since.offered),
        attempts: calls(now.attempts, since.attempts),
        answered: calls(now.answered, since.answered),
        shed: calls(now.shed, since.shed),
        time_us: amount(now.time_us, since.time_us),
        bytes: amount(now.bytes, since.bytes),
        request_bytes: amount(now.request_bytes, since.request_bytes),
        ..CallRates::default()
    }
}

/// `count` × `scale` ÷ `elapsed_ms`, rounded.
pub(crate) fn rate(count: u64, scale: u64, elapsed_ms: u64) -> u64 {
    let elapsed = u128::from(elapsed_ms.max(1));
    let rate = (u128::from(count) * u128::from(scale) + elapsed / 2) / elapsed;
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{Region, ServiceName};

    use super::*;

    fn path(to: Option<&str>) -> CallPath {
        CallPath {
            service: ServiceName::new("shop/cart").unwrap(),
            from: Region::new("eu").unwrap(),
            to: to.map(|to| Region::new(to).unwrap()),
            class: None,
            caller: None,
            from_zone: None,
            to_zone: None,
            parent: None,
        }
    }

    #[test]
    fn call_counters_become_rates_between_readings() {
        let counters = CallCounters::default();
        let mut meter = CallMeter::default();
        assert_eq!(meter.read([(path(None), &counters)], 5_000), None);
        for call in 0..300 {
            counters.record_attempt(call < 200);
            counters.record_answer(4_000);
            counters.record_bytes(10);
            counters.record_request_bytes(4);
        }
        counters.record_shed();
        let rates = meter.read([(path(None), &counters)], 7_000).unwrap()[&path(None)];
        let expected = CallRates {
            offered: 100_000,
            attempts: 150_000,
            answered: 150_000,
            shed: 500,
            time_us: 600_000,
            bytes: 1_500,
            request_bytes: 600,
            ..CallRates::default()
        };
        assert_eq!(rates, expected);
        assert!(meter.read([(path(None), &counters)], 8_000).unwrap().is_empty(), "nothing happened");
    }

    #[test]
    fn recreated_call_counters_count_from_zero() {
        let (old, new) = (CallCounters::default(), CallCounters::default());
        let mut meter = CallMeter::default();
        (0..9).for_each(|_| old.record_attempt(true));
        meter.read([(path(Some("us")), &old)], 0);
        new.record_unsent(true);
        let rates = meter.read([(path(Some("us")), &new), (path(None), &old)], 1_000).unwrap();
        assert_eq!((rates[&path(Some("us"))].offered, rates[&path(Some("us"))].shed), (1_000, 1_000));
        assert_eq!(rates[&path(None)].attempts, 9_000, "a new path has all of its counts");
    }
}
