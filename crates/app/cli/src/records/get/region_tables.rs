//! List of region tables.

use fairmesh_console::{
    cell_text::rough_age,
    output::Listing,
    view_reader::{ServiceView, View, age_of, table_age},
};
use fairmesh_model::{
    Label, Region, RegionShares, RegionTable, ServiceName, Share, TableForce, TableOrigin, TrafficMode, Zone,
};
use serde_json::{Value, json};

use crate::records::apply::warnings::unknown_traffic_names::may_reach;

/// One row per class of each table: published tables, and manual ones in shadow mode. Below them, how calls that stay
/// in their region are divided among zones, and the subsets that the planner has widened.
pub(super) fn tables(view: &View) -> Listing {
    let mut listing = Listing::new(&["SERVICE", "FROM", "CLASS", "SHARES", "DROPPED", "ORIGIN", "STATE"]);
    for (name, one) in &view.services {
        for (from, table) in &one.tables {
            let state = state(&table.value);
            let policy = one.effective_policy();
            let is_served = |to: &Region| may_reach(&policy, from, to, &view.regions.value);
            let listed = ListedTable { service: name, from, table: &table.value, state };
            listed.add(&mut listing, &is_served);
        }
        for (from, shadow) in shadows(one) {
            let listed = ListedTable { service: name, from: &from, table: &shadow, state: "shadow" };
            listed.add(&mut listing, &|_| true);
        }
    }
    let zones = view.services.iter().flat_map(|(name, one)| zone_rows(name, one)).collect();
    listing.further.push((&["SERVICE", "CALLERS IN", "TO ZONE", "SHARE"], zones));
    let subsets = view.services.iter().flat_map(|(name, one)| subset_rows(name, one)).collect();
    listing.further.push((&["SERVICE", "CALLERS IN", "TO", "SUBSET"], subsets));
    listing
}

/// The zones of each table.
fn zone_rows(name: &ServiceName, one: &ServiceView) -> Vec<Vec<String>> {
    let zones = one.tables.iter().flat_map(|(region, table)| {
        zone_shares(&table.value).map(move |(from, to, share)| (region, from, to, share))
    });
    let row = |(region, from, to, share): (&Region, &Zone, &Zone, Share)| {
        vec![name.to_string(), format!("{region}/{from}"), to.to_string(), share.to_string()]
    };
    zones.map(row).collect()
}

/// The subsets of each table.
fn subset_rows(name: &ServiceName, one: &ServiceView) -> Vec<Vec<String>> {
    let subsets = one.tables.iter().flat_map(|(from, table)| {
        table.value.subsets.iter().map(move |(to, endpoints)| (from, to, endpoints))
    });
    let row = |(from, to, endpoints): (&Region, &Region, &u32)| {
        vec![name.to_string(), from.to_string(), to.to_string(), endpoints.to_string()]
    };
    subsets.map(row).collect()
}

/// The shares of zones, with the zone of the caller.
fn zone_shares(table: &RegionTable) -> impl Iterator<Item = (&Zone, &Zone, Share)> {
    table.zones.iter().flat_map(|(from, to)| to.iter().map(move |(to, share)| (from, to, *share)))
}

/// Reason why a service has no tables, if known.
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
    shares.into_iter().map(|(from, shares)| (from, RegionTable::new(shares, TableOrigin::ByHand))).collect()
}

/// A table of a service, for the callers of one region.
struct ListedTable<'a> {
    service: &'a ServiceName,
    from: &'a Region,
    table: &'a RegionTable,
    state: &'static str,
}

/// The shares of one class in a table.
struct ListedShares<'a> {
    table: &'a ListedTable<'a>,
    class: Option<&'a Label>,
    shares: &'a RegionShares,
    /// The regions among them that get no calls.
    unserved: Vec<&'a Region>,
}

impl ListedTable<'_> {
    fn add(&self, listing: &mut Listing, is_served: &dyn Fn(&Region) -> bool) {
        for (class, shares) in self.table.shares.iter() {
            let unserved = shares.to.keys().filter(|to| !is_served(to)).collect();
            let listed = ListedShares { table: self, class, shares, unserved };
            listing.add(listed.row(), listed.item());
        }
    }
}

impl ListedShares<'_> {
    fn row(&self) -> Vec<String> {
        let ListedTable { service, from, table, state } = self.table;
        vec![
            service.to_string(),
            from.to_string(),
            self.class.map_or_else(|| "-".into(), ToString::to_string),
            words(self.shares),
            self.shares.dropped.to_string(),
            origin(table),
            words_of_state(state, &self.unserved),
        ]
    }

    fn item(&self) -> Value {
        let Self { table: listed, class, shares, unserved } = self;
        let ListedTable { service: name, from, table, state } = listed;
        let percent = |share: &Share| f64::from(share.millionths()) / 10_000.0;
        let to = shares.to.iter().map(|(region, share)| (region.to_string(), json!(percent(share))));
        let zone = |(from, to, share): (&Zone, &Zone, Share)| json!({ "from": from.to_string(), "to": to.to_string(), "sharePercent": percent(&share) });
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
            "zones": zone_shares(table).map(zone).collect::<Vec<_>>(),
            "subsets": table.subsets.iter().map(|(to, n)| (to.to_string(), json!(n))).collect::<serde_json::Map<_, _>>(),
            "byHand": planned.is_none(),
            "confirmedRound": planned.map(|confirmed| confirmed.round),
            "confirmedSecondsAgo": planned.map(|confirmed| age_of(confirmed.at_ms).as_secs()),
            "state": state,
            "notAllowed": unserved.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    }
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
            format!("round {}, confirmed {} ago", confirmed.round, rough_age(age_of(confirmed.at_ms)))
        }
    }
}

/// Text for a table's state, and for shares that no router follows.
fn words_of_state(state: &str, unserved: &[&Region]) -> String {
    match unserved {
        [] => state.to_owned(),
        regions => {
            let names: Vec<&str> = regions.iter().map(|region| region.as_str()).collect();
            format!("{state}, but no call goes to {}: its locality does not allow that", names.join(", "))
        }
    }
}

/// State of a table.
fn state(table: &RegionTable) -> &'static str {
    match table.force(table_age(table)) {
        TableForce::Full => "in force",
        TableForce::WithoutDrops => "in force, drops nothing",
        TableForce::Lapsed => "lapsed",
    }
}
