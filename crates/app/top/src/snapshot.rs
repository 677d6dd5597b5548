//! What the control plane responded.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::CallCounts;
use fairmesh_wire::{
    convert::counts::read_counts,
    v1::{self, CallsRow, CountedCalls},
};

/// Stands for an unknown name.
pub(crate) const UNKNOWN: &str = "-";
/// The name of the smallest paths, which the control plane does not tell apart.
pub(crate) const OTHER: &str = "(other)";

/// Calls over a window, as one response has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) rows: Vec<Row>,
    pub(crate) denied: Vec<v1::DeniedCalls>,
    /// Cores wasted by uneven load, by service; empty where the user may not read them.
    pub(crate) wasted: BTreeMap<String, f64>,
    /// Endpoints of the service that is looked at: instance, region, state.
    pub(crate) endpoints: Vec<[String; 3]>,
    /// Since history began.
    pub(crate) history_ms: u64,
    pub(crate) not_shown: u32,
    pub(crate) left_out: u64,
}

/// Calls of one path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) caller: String,
    pub(crate) service: String,
    pub(crate) class: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) counts: CallCounts,
    pub(crate) covered_ms: u64,
    pub(crate) age_ms: u64,
}

impl Snapshot {
    pub(crate) fn of(response: v1::ReadCallsResponse) -> Self {
        let other = response.other.map(|row| Row { service: OTHER.to_owned(), ..Row::of(&row) });
        Self {
            rows: counted_once(&response.rows).map(Row::of).chain(other).collect(),
            denied: response.denied,
            history_ms: response.history_ms,
            not_shown: response.not_shown,
            left_out: response.left_out,
            ..Self::default()
        }
    }
}

impl Row {
    fn of(row: &CallsRow) -> Self {
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
}

/// Rows without those of servers whose calls their callers count too: a caller knows retries, faults and regions. The servers of
/// a service that prove no caller count the calls of all callers as one, which is left out then. Where they know callers, it has only
/// those from outside the mesh, and those that no one else counts.
fn counted_once(rows: &[CallsRow]) -> impl Iterator<Item = &CallsRow> {
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
pub(crate) mod tests {
    use super::*;

    pub(crate) fn row(caller: &str, service: &str, by_server: bool, calls: u64) -> CallsRow {
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
    fn calls_that_both_sides_count_are_shown_once() {
        let rows = vec![
            row("shop/web", "shop/cart", false, 10),
            row("shop/web", "shop/cart", true, 10),
            row("shop/ads", "shop/cart", true, 3),
            row("", "shop/cart", true, 5),
            row("", "shop/web", true, 7),
            row("shop/web", "shop/plain", false, 9),
            row("", "shop/plain", true, 9),
        ];
        let snapshot = Snapshot::of(v1::ReadCallsResponse { rows, ..Default::default() });
        let shown: Vec<_> =
            snapshot.rows.iter().map(|row| (row.caller.as_str(), row.counts.calls())).collect();
        assert_eq!(shown, [("shop/web", 10), ("shop/ads", 3), (UNKNOWN, 5), (UNKNOWN, 7), ("shop/web", 9)]);
    }
}
