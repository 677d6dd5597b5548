//! Rows of a snapshot, grouped, filtered and sorted.

use std::{cmp::Ordering, collections::BTreeMap};

use fairmesh_model::CallCounts;
use fairmesh_views::{CallRow, CallSum};

use crate::{
    arguments::{GroupBy, SortBy},
    snapshot::Snapshot,
};

/// Calls shown as one row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    /// Names of the group, one for each heading in [`GroupBy::headings`].
    pub(crate) names: Vec<String>,
    pub(crate) sum: CallSum,
    /// Number of cores wasted; `None` if unknown.
    pub(crate) wasted: Option<f64>,
}

fn names(row: &CallRow, by: GroupBy) -> Vec<String> {
    let names = match by {
        GroupBy::Services | GroupBy::Denied => vec![&row.service],
        GroupBy::Pairs => vec![&row.caller, &row.service],
        GroupBy::Regions => vec![&row.from, &row.to],
        GroupBy::Routes => vec![&row.service, &row.class],
    };
    names.into_iter().cloned().collect()
}

/// Groups the calls of a snapshot: all calls, or those to one service.
pub(crate) fn groups(snapshot: &Snapshot, by: GroupBy, service: Option<&str>) -> Vec<Group> {
    if by == GroupBy::Denied {
        return denied(snapshot, service);
    }
    let mut groups = BTreeMap::<Vec<String>, Group>::new();
    for row in snapshot.rows.iter().filter(|row| service.is_none_or(|service| row.service == service)) {
        let names = names(row, by);
        let new = || Group { names: names.clone(), ..Group::default() };
        groups.entry(names.clone()).or_insert_with(new).sum.add(row);
    }
    groups.values_mut().for_each(|group| group.sum.per_second());
    for group in groups.values_mut().filter(|_| by == GroupBy::Services) {
        group.wasted = snapshot.wasted.get(&group.names[0]).copied();
    }
    groups.into_values().collect()
}

fn denied(snapshot: &Snapshot, service: Option<&str>) -> Vec<Group> {
    let rows = snapshot.denied.iter().filter(|row| service.is_none_or(|service| row.service == service));
    let or = |text: &str, none: &str| if text.is_empty() { none.to_owned() } else { text.to_owned() };
    let group = |row: &fairmesh_wire::v1::DeniedCalls| Group {
        names: vec![
            row.service.clone(),
            or(&row.caller, "(no identity)"),
            or(&row.rule, "(no rule allows it)"),
            if row.audit { "audit".to_owned() } else { "refused".to_owned() },
            or(&row.method, "-"),
            or(&row.path, "-"),
        ],
        sum: CallSum {
            counts: CallCounts::ZERO.with_totals([row.count, 0, 0, 0, 0]),
            age_ms: 0,
            ..CallSum::default()
        },
        ..Group::default()
    };
    rows.map(group).collect()
}

/// Sorts groups in descending order; ties are sorted by name.
pub(crate) fn sort(groups: &mut [Group], by: SortBy, is_reversed: bool) {
    let p99 = |group: &Group| group.sum.counts.latency_quantile_us(0.99).unwrap_or_default() as f64;
    let value = |group: &Group| match by {
        SortBy::Rate if group.sum.rate == 0.0 => group.sum.counts.calls() as f64,
        SortBy::Rate => group.sum.rate,
        SortBy::Failures => group.sum.failures,
        SortBy::P99 => p99(group),
        SortBy::Wasted => group.wasted.unwrap_or(-1.0),
        SortBy::Egress => group.sum.egress,
        SortBy::Name => 0.0,
    };
    groups.sort_by(|one, other| {
        let order = value(other).partial_cmp(&value(one)).unwrap_or(Ordering::Equal);
        order.then_with(|| one.names.cmp(&other.names))
    });
    if is_reversed {
        groups.reverse();
    }
}

/// Keeps groups with a name that contains the text, ignoring case.
pub(crate) fn filter(groups: &mut Vec<Group>, text: &str) {
    let text = text.to_lowercase();
    groups.retain(|group| group.names.iter().any(|name| name.to_lowercase().contains(&text)));
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn snapshot() -> Snapshot {
        let row = |caller: &str, service: &str, (from, to): (&str, &str), calls: u64| CallRow {
            caller: caller.into(),
            service: service.into(),
            class: "-".into(),
            from: from.into(),
            to: to.into(),
            counts: CallCounts::ZERO.with_totals([calls, calls / 10, 0, 0, calls * 100]).with_outcomes(
                &[0, calls - calls / 20, 0, 0, calls / 20],
                &[],
                &[0, 0, calls],
            ),
            covered_ms: 10_000,
            age_ms: 1_500,
        };
        Snapshot {
            rows: vec![
                row("shop/web", "shop/cart", ("eu", "eu"), 1_000),
                row("shop/web", "shop/cart", ("eu", "us"), 100),
                row("shop/ads", "shop/cart", ("eu", "eu"), 20),
                row("shop/web", "shop/catalog", ("eu", "us"), 400),
            ],
            wasted: [("shop/catalog".to_owned(), 1.25)].into(),
            history_ms: 60_000,
            ..Snapshot::default()
        }
    }

    fn names(groups: &[Group]) -> Vec<String> {
        groups.iter().map(|group| group.names.join(" ")).collect()
    }

    #[test]
    fn groups_of_top_add_up_to_all_calls() {
        let snapshot = snapshot();
        let total: u64 = snapshot.rows.iter().map(|row| row.counts.calls()).sum();
        for by in [GroupBy::Services, GroupBy::Pairs, GroupBy::Regions, GroupBy::Routes] {
            let groups = groups(&snapshot, by, None);
            assert_eq!(groups.iter().map(|group| group.sum.counts.calls()).sum::<u64>(), total);
            assert!(groups.iter().all(|group| group.names.len() == by.headings().len()));
        }
        let regions = groups(&snapshot, GroupBy::Regions, Some("shop/cart"));
        assert_eq!(names(&regions), ["eu eu", "eu us"]);
        assert_eq!((regions[0].sum.egress, regions[1].sum.egress), (0.0, 1_000.0));
        assert_eq!((regions[1].sum.rate, regions[1].sum.failed_part()), (10.0, Some(0.05)));
    }

    #[test]
    fn rate_of_call_path_seen_in_part_of_window_covers_only_that_part() {
        let mut snapshot = snapshot();
        snapshot.rows.truncate(1);
        let mut new = CallRow { to: "us".into(), covered_ms: 1_000, ..snapshot.rows[0].clone() };
        new.counts =
            CallCounts::ZERO.with_totals([100, 0, 0, 0, 0]).with_outcomes(&[0, 0, 0, 0, 100], &[], &[]);
        snapshot.rows.push(new);
        let groups = groups(&snapshot, GroupBy::Services, None);
        assert_eq!((groups[0].sum.rate, groups[0].sum.failures), (110.0, 15.0));
    }

    #[test]
    fn rows_of_top_are_sorted_and_filtered() {
        let mut services = groups(&snapshot(), GroupBy::Services, None);
        sort(&mut services, SortBy::Rate, false);
        assert_eq!(names(&services), ["shop/cart", "shop/catalog"]);
        sort(&mut services, SortBy::Wasted, false);
        assert_eq!(names(&services), ["shop/catalog", "shop/cart"]);
        sort(&mut services, SortBy::Name, true);
        assert_eq!(names(&services), ["shop/catalog", "shop/cart"]);
        filter(&mut services, "CATA");
        assert_eq!(names(&services), ["shop/catalog"]);
    }
}
