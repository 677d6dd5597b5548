//! Rows of calls, and sums of rows.

use std::collections::BTreeSet;

use fairmesh_model::CallCounts;
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

/// Selects rows so that each call is counted once. If both caller and servers count the same calls, the servers' row
/// is left out: a caller knows retries, faults and regions. If the servers of a service never authenticate callers,
/// they count the calls of all callers in one row, which is left out if any caller counts calls to the service. If
/// they do authenticate callers, the row without a caller stays: it has only calls from outside the mesh, and other
/// calls that no caller counts.
pub fn counted_once(rows: &[CallsRow]) -> impl Iterator<Item = &CallsRow> {
    let of_callers = rows.iter().filter_map(|row| row.calls.as_ref()).filter(|calls| !calls.by_server);
    let of_servers = rows.iter().filter_map(|row| row.calls.as_ref()).filter(|calls| calls.by_server);
    let with_caller = of_servers.filter(|calls| !calls.caller.is_empty());
    let proved: BTreeSet<_> = with_caller.map(|calls| calls.service.as_str()).collect();
    let (mut pairs, mut services) = (BTreeSet::new(), BTreeSet::new());
    for calls in of_callers {
        pairs.insert((calls.caller.as_str(), calls.service.as_str()));
        services.insert(calls.service.as_str());
    }
    rows.iter().filter(move |row| {
        let Some(calls) = &row.calls else { return false };
        let is_counted_by_caller = match calls.caller.as_str() {
            "" => services.contains(calls.service.as_str()) && !proved.contains(calls.service.as_str()),
            caller => pairs.contains(&(caller, calls.service.as_str())),
        };
        !calls.by_server || !is_counted_by_caller
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(caller: &str, service: &str, by_server: bool, calls: u64) -> CallsRow {
        let calls = CountedCalls {
            caller: caller.into(),
            service: service.into(),
            by_server,
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
        let shown: Vec<_> = counted_once(&rows).map(CallRow::of).collect();
        let shown: Vec<_> = shown.iter().map(|row| (row.caller.as_str(), row.counts.calls())).collect();
        assert_eq!(shown, [("shop/web", 10), ("shop/ads", 3), (UNKNOWN, 5), (UNKNOWN, 7), ("shop/web", 9)]);
    }
}
