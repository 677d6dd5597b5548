//! Rows of calls, and sums of rows.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{CallCounts, CallFault};
use fairmesh_wire::{
    convert::call_counts::read_counts,
    v1::{CallsRow, CountedCalls},
};

/// Shown instead of an unknown name.
pub const UNKNOWN: &str = "-";
/// Name of the row into which the control plane merges the smallest paths.
pub const OTHER: &str = "(other)";

/// Calls of one path.
#[derive(Clone, Debug, Default)]
pub struct CallRow {
    /// Calling service, as `tenant/service`.
    pub caller: String,
    /// Called service, as `tenant/service`.
    pub service: String,
    /// Class of the route.
    pub class: String,
    /// Region of the callers.
    pub from: String,
    /// Region of the servers.
    pub to: String,
    /// Counts of the calls.
    pub counts: CallCounts,
    /// Part of the window that reports cover, in milliseconds.
    pub covered_ms: u64,
    /// Time since the end of the last reported interval, in milliseconds.
    pub age_ms: u64,
}

impl CallRow {
    /// Converts a row of a response. Missing names become [`UNKNOWN`].
    pub fn of(row: &CallsRow) -> Self {
        let none = CountedCalls::default();
        let calls = row.calls.as_ref().unwrap_or(&none);
        let name = |name: &str| if name.is_empty() { UNKNOWN.to_owned() } else { name.to_owned() };
        Self {
            caller: name(&calls.caller),
            service: name(&calls.service),
            class: name(&calls.class),
            from: name(&calls.from),
            to: name(&calls.to),
            counts: read_counts(calls),
            covered_ms: row.covered_ms,
            age_ms: row.age_ms,
        }
    }

    fn has_regions(&self) -> bool {
        [&self.from, &self.to].iter().all(|region| *region != UNKNOWN)
    }
}

/// A sum of rows, which [`per_second`](Self::per_second) turns into rates.
#[derive(Clone, Debug)]
pub struct CallSum {
    /// Sum of the counts.
    pub counts: CallCounts,
    /// Number of calls. After [`per_second`](Self::per_second), this field and the next three are per second.
    pub rate: f64,
    /// Number of failed calls.
    pub failures: f64,
    /// Number of retries: attempts after the first attempt of a call.
    pub retries: f64,
    /// Bytes sent between regions.
    pub egress: f64,
    /// Longest part of the window that any row covers, in milliseconds. Rows that cover less had no earlier calls.
    pub covered_ms: u64,
    /// Age of the newest data, in milliseconds.
    pub age_ms: u64,
}

impl Default for CallSum {
    fn default() -> Self {
        let (rate, failures, retries, egress) = (0.0, 0.0, 0.0, 0.0);
        Self { counts: CallCounts::ZERO, rate, failures, retries, egress, covered_ms: 0, age_ms: u64::MAX }
    }
}

impl CallSum {
    /// Adds a row to the sum.
    pub fn add(&mut self, row: &CallRow) {
        self.rate += row.counts.calls() as f64;
        self.failures += row.counts.failures() as f64;
        self.retries += row.counts.retries() as f64;
        if row.from != row.to && row.has_regions() {
            self.egress += row.counts.request_bytes().saturating_add(row.counts.response_bytes()) as f64;
        }
        self.counts += &row.counts;
        self.covered_ms = self.covered_ms.max(row.covered_ms);
        self.age_ms = self.age_ms.min(row.age_ms);
    }

    /// Turns the sum into rates over the time that reports cover. Call this after the last row was added.
    pub fn per_second(&mut self) {
        let seconds = self.covered_ms as f64 / 1_000.0;
        for sum in [&mut self.rate, &mut self.failures, &mut self.retries, &mut self.egress] {
            *sum = if seconds > 0.0 { *sum / seconds } else { 0.0 };
        }
    }

    /// Returns the share of calls that failed; `None` without calls.
    pub fn failed_part(&self) -> Option<f64> {
        (self.rate > 0.0).then(|| (self.failures / self.rate).min(1.0))
    }
}

/// Callers and servers report at different times. A rest of unnamed requests below this part of the servers' requests,
/// in thousandths, is the difference of their windows.
const SAME_REQUESTS_PERMILLE: u64 = 100;

/// Converts rows so that each call is counted once. If both caller and servers count the same calls, the servers' row
/// is left out: a caller knows retries, faults and regions. The servers' rows without a caller have the calls of callers
/// without a service identity, whether these report or not:
///
/// - If the servers of a service never authenticate callers, the row has the calls of all callers. It is left out if
///   any caller counts calls to the service.
/// - Otherwise, the requests that callers without an identity sent are subtracted: servers count each attempt of a
///   call, and no call that reached no server. The rest comes from outside the mesh.
pub fn counted_once(rows: &[CallsRow]) -> Vec<CallRow> {
    let sides = CountedSides::of(rows);
    rows.iter().filter_map(|row| sides.counted(row)).collect()
}

/// What callers and servers count, by service.
#[derive(Debug, Default)]
struct CountedSides<'a> {
    /// Pairs of caller and service that callers count.
    by_callers: BTreeSet<(&'a str, &'a str)>,
    /// Services with calls that callers count.
    called: BTreeSet<&'a str>,
    /// Services whose servers authenticate callers.
    proved: BTreeSet<&'a str>,
    /// Requests without a caller's name, as sent by callers and as counted by servers.
    unnamed: BTreeMap<&'a str, [u64; 2]>,
}

impl<'a> CountedSides<'a> {
    fn of(rows: &'a [CallsRow]) -> Self {
        let mut sides = Self::default();
        for calls in rows.iter().filter_map(|row| row.calls.as_ref()) {
            let (caller, service) = (calls.caller.as_str(), calls.service.as_str());
            if caller.is_empty() {
                let [by_callers, by_servers] = sides.unnamed.entry(service).or_default();
                let sum = if calls.by_server { by_servers } else { by_callers };
                *sum = sum.saturating_add(requests(calls));
            } else if calls.by_server {
                sides.proved.insert(service);
            }
            if !calls.by_server {
                sides.by_callers.insert((caller, service));
                sides.called.insert(service);
            }
        }
        sides
    }

    /// `None` if the calls of this row are in other rows.
    fn counted(&self, row: &CallsRow) -> Option<CallRow> {
        let calls = row.calls.as_ref()?;
        let (caller, service) = (calls.caller.as_str(), calls.service.as_str());
        let mut counted = CallRow::of(row);
        match (calls.by_server, caller) {
            (false, _) => {}
            (true, "") if !self.proved.contains(service) => {
                return (!self.called.contains(service)).then_some(counted);
            }
            (true, "") => {
                let [by_callers, by_servers] = self.unnamed.get(service).copied().unwrap_or_default();
                let rest = by_servers.saturating_sub(by_callers);
                if rest.saturating_mul(1_000) < by_servers.saturating_mul(SAME_REQUESTS_PERMILLE) {
                    return None;
                }
                counted.counts = counted.counts.take_part(rest, by_servers);
            }
            (true, _) if self.by_callers.contains(&(caller, service)) => return None,
            (true, _) => {}
        }
        Some(counted)
    }
}

/// Number of requests that servers get for the calls of a row: one for each attempt, except where no server was picked
/// or reached. Callers do not report that an attempt reached no server if a later one did; it counts as a request.
fn requests(calls: &CountedCalls) -> u64 {
    match (calls.by_server, calls.to.as_str()) {
        (true, _) => calls.calls,
        (false, "") => 0,
        (false, _) => {
            let unsent = calls.faults.get(CallFault::Unreachable as usize).copied().unwrap_or_default();
            calls.calls.saturating_add(calls.retries).saturating_sub(unsent)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(caller: &str, service: &str, by_server: bool, calls: u64) -> CallsRow {
        let calls = CountedCalls {
            caller: caller.into(),
            service: service.into(),
            by_server,
            to: "eu".into(),
            calls,
            ..CountedCalls::default()
        };
        CallsRow { calls: Some(calls), covered_ms: 10_000, ..CallsRow::default() }
    }

    #[test]
    fn calls_counted_by_both_sides_are_shown_once() {
        let rows = vec![
            row("shop/web", "shop/cart", false, 10),
            row("shop/web", "shop/cart", true, 10),
            row("shop/ads", "shop/cart", true, 3),
            row("", "shop/cart", true, 5),
            row("", "shop/web", true, 7),
            row("shop/web", "shop/plain", false, 9),
            row("", "shop/plain", true, 9),
        ];
        assert_eq!(
            shown(&rows),
            [("shop/web", 10), ("shop/ads", 3), (UNKNOWN, 5), (UNKNOWN, 7), ("shop/web", 9)]
        );
    }

    #[test]
    fn calls_of_callers_without_identity_are_shown_once() {
        let rows = |by_callers, by_servers| {
            vec![
                row("shop/web", "shop/cart", true, 3),
                row("", "shop/cart", false, by_callers),
                row("", "shop/cart", true, by_servers),
            ]
        };
        assert_eq!(shown(&rows(100, 104)), [("shop/web", 3), (UNKNOWN, 100)]);
        assert_eq!(shown(&rows(100, 90)), [("shop/web", 3), (UNKNOWN, 100)]);
        // Half of the calls come from outside the mesh.
        assert_eq!(shown(&rows(100, 200)), [("shop/web", 3), (UNKNOWN, 100), (UNKNOWN, 100)]);
    }

    #[test]
    fn retries_and_unsent_calls_of_callers_without_identity_are_subtracted_as_requests() {
        let with = |change: fn(&mut CountedCalls), calls| {
            let mut row = row("", "shop/cart", false, calls);
            row.calls.iter_mut().for_each(change);
            row
        };
        let named = || row("shop/web", "shop/cart", true, 3);
        // Each retry is a request of its own.
        let rows = [named(), with(|calls| calls.retries = 30, 100), row("", "shop/cart", true, 130)];
        assert_eq!(shown(&rows), [("shop/web", 3), (UNKNOWN, 100)]);
        // Half of the servers' requests come from outside the mesh, as many as callers could not send.
        let unreachable = |calls: &mut CountedCalls| {
            calls.faults = vec![0; CallFault::Unreachable as usize];
            calls.faults.push(20);
        };
        let rows = [
            named(),
            row("", "shop/cart", false, 100),
            with(|calls| calls.to.clear(), 80),
            with(unreachable, 20),
            row("", "shop/cart", true, 200),
        ];
        let all = [("shop/web", 3), (UNKNOWN, 100), (UNKNOWN, 80), (UNKNOWN, 20), (UNKNOWN, 100)];
        assert_eq!(shown(&rows), all);
    }

    fn shown(rows: &[CallsRow]) -> Vec<(&str, u64)> {
        let name = |caller: &str| {
            let named = rows.iter().filter_map(|row| row.calls.as_ref()).find(|calls| calls.caller == caller);
            named.map_or(UNKNOWN, |calls| calls.caller.as_str())
        };
        counted_once(rows).iter().map(|row| (name(&row.caller), row.counts.calls())).collect()
    }
}
