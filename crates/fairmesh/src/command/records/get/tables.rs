//! List of region tables.

use std::collections::BTreeMap;

use fairmesh_model::{
    Label, Region, RegionShares, RegionTable, ServiceName, Share, TableForce, TableOrigin, TrafficMode,
};
use serde_json::{Value, json};

use super::regions::rough;
use crate::{
    output::Listing,
    view::{ServiceView, View, age_of, table_age},
};

/// One row per class of each table: published ones, and those written by hand in shadow mode.
pub(super) fn tables(view: &View) -> Listing {
    let mut listing = Listing::new(&["SERVICE", "FROM", "CLASS", "SHARES", "DROPPED", "ORIGIN", "STATE"]);
    for (name, one) in &view.services {
        for (from, table) in &one.tables {
            let state = state(&table.value);
            add(&mut listing, (name, from), &table.value, state);
        }
        for (from, shadow) in shadows(one) {
            add(&mut listing, (name, &from), &shadow, "shadow");
        }
    }
    listing
}

/// Why a service has no tables, if known.
pub(super) fn why_empty(name: &ServiceName, one: &ServiceView) -> Option<String> {
    let policy = one.effective_policy();
    let Some(traffic) = &policy.traffic else {
        return Some(format!("{name} has no tables: rings decide; write shares in 'traffic' of its policy"));
    };
    traffic.planner.map(|_| {
        format!(
            "{name} has no tables: its planner has published none yet; see 'fairmesh traffic status {name}'"
        )
    })
}

/// The tables that the policy would publish without shadow mode.
fn shadows(one: &ServiceView) -> Vec<(Region, RegionTable)> {
    let policy = one.effective_policy();
    let traffic = policy.traffic.filter(|traffic| traffic.mode == TrafficMode::Shadow);
    let shares = traffic.map(|traffic| traffic.shares).unwrap_or_default();
    shares
        .into_iter()
        .map(|(from, shares)| {
            (from, RegionTable { shares, zones: BTreeMap::new(), origin: TableOrigin::ByHand })
        })
        .collect()
}

fn add(
    listing: &mut Listing,
    (name, from): (&ServiceName, &Region),
    table: &RegionTable,
    state: &'static str,
) {
    for (class, shares) in table.shares.iter() {
        listing.add(
            vec![
                name.to_string(),
                from.to_string(),
                class.map_or_else(|| "-".into(), ToString::to_string),
                words(shares),
                shares.dropped.to_string(),
                origin(table),
                state.into(),
            ],
            item((name, from), (class, shares), table, state),
        );
    }
}

fn item(
    (name, from): (&ServiceName, &Region),
    (class, shares): (Option<&Label>, &RegionShares),
    table: &RegionTable,
    state: &'static str,
) -> Value {
    let percent = |share: &Share| f64::from(share.millionths()) / 10_000.0;
    let to = shares.to.iter().map(|(region, share)| (region.to_string(), json!(percent(share))));
    let planned = match table.origin {
        TableOrigin::ByHand => None,
        TableOrigin::Planned(confirmed) => Some(confirmed),
    };
    json!({
        "service": name.to_string(),
        "from": from.to_string(),
        "class": class.map(ToString::to_string),
        "toPercent": to.collect::<serde_json::Map<_, _>>(),
        "droppedPercent": percent(&shares.dropped),
        "byHand": planned.is_none(),
        "confirmedRound": planned.map(|confirmed| confirmed.round),
        "confirmedSecondsAgo": planned.map(|confirmed| age_of(confirmed.at_ms).as_secs()),
        "state": state,
    })
}

/// `eu 70%, us 30%`.
fn words(shares: &RegionShares) -> String {
    let to = shares.to.iter().map(|(region, share)| format!("{region} {share}"));
    to.collect::<Vec<_>>().join(", ")
}

fn origin(table: &RegionTable) -> String {
    match table.origin {
        TableOrigin::ByHand => "by hand".into(),
        TableOrigin::Planned(confirmed) => {
            format!("round {}, confirmed {} ago", confirmed.round, rough(age_of(confirmed.at_ms)))
        }
    }
}

/// The force of a table.
fn state(table: &RegionTable) -> &'static str {
    match table.force(table_age(table)) {
        TableForce::Full => "in force",
        TableForce::WithoutDrops => "in force, drops nothing",
        TableForce::Lapsed => "lapsed",
    }
}
