//! What the planner of a service knows and decides, for operators.

use std::collections::BTreeMap;

use fairmesh_model::{Region, ServiceName, TrafficMode, Zone};
use fairmesh_planner::{ServiceFacts, ServicePlanner, ShiftNote};
use fairmesh_wire::{
    convert::write_shares,
    v1::{self, traffic::Mode},
};

use super::{TrafficPlanning, optimizer_status};

impl TrafficPlanning {
    /// What the planner of a service knows and has decided; `None` if its policy asks for no planner.
    pub(super) fn status(&self, service: &ServiceName) -> Option<v1::ServiceTraffic> {
        let (now_ms, facts) = (self.clock.now_ms(), self.facts.service(service));
        if !facts.traffic.is_planned() {
            return None;
        }
        let plans = self.plans.read();
        let fresh = ServicePlanner::new();
        let planner = plans.by_service.get(service).map_or(&fresh, |planner| &**planner);
        let mode = match facts.traffic.mode {
            TrafficMode::Active => Mode::Active,
            TrafficMode::Shadow => Mode::Shadow,
            TrafficMode::Hold => Mode::Hold,
        };
        let ago = |at_ms: u64| now_ms.saturating_sub(at_ms);
        let classes = std::iter::once(String::new()).chain(planner.classes.iter().map(ToString::to_string));
        let refusal = match &planner.refused {
            Some(refused) => refused.text.clone(),
            None if planner.planned_at_ms.is_none() => "no round was made yet".to_owned(),
            None => String::new(),
        };
        Some(v1::ServiceTraffic {
            service: service.to_string(),
            mode: mode.into(),
            round: planner.round,
            planned_ago_ms: planner.planned_at_ms.map(ago),
            confirmed_ago_ms: planner.confirmed_at_ms.map(ago),
            refusal,
            planned_rounds: planner.planned_rounds,
            refused_rounds: planner.refused_rounds,
            classes: classes.collect(),
            regions: regions(planner, &facts, now_ms),
            tables: tables(planner),
            shifts: shifts(planner, now_ms),
            planner: optimizer_status::planner(&facts).into(),
            optimized: optimizer_status::optimized(planner, now_ms),
            why_rings: optimizer_status::why_rings(planner),
        })
    }
}

fn regions(planner: &ServicePlanner, facts: &ServiceFacts, now_ms: u64) -> Vec<v1::RegionTraffic> {
    let region = |(position, region): (usize, &Region)| {
        let known = planner.known.get(region).cloned().unwrap_or_default();
        // Of a policy that has just changed, the last plan may have zones that it does not ask for any more.
        let zone_refusal = planner.zones.get(region).filter(|_| facts.zone_first);
        let zone_refusal = zone_refusal.and_then(|zones| zones.refusal.clone());
        v1::RegionTraffic {
            region: region.to_string(),
            endpoints: facts.serving_in(region),
            power: facts.power_in(region),
            load: known.servers.map(|servers| servers.load),
            predicted: planner.predicted.get(position).copied(),
            offered: known.callers.as_ref().map(|(_, rates)| rates.offered.clone()).unwrap_or_default(),
            received: known.servers.map(|servers| servers.received).unwrap_or_default(),
            servers_ago_ms: known.servers.map(|servers| now_ms.saturating_sub(servers.at_ms)),
            callers_ago_ms: known.callers.map(|(at_ms, _)| now_ms.saturating_sub(at_ms)),
            zones: if facts.zone_first { zones(planner, region) } else { Vec::new() },
            zone_refusal: zone_refusal.unwrap_or_default(),
            unreported: planner.state.unreported(position),
            doubt: planner.state.doubt(position).map(|doubt| doubt.to_string()).unwrap_or_default(),
        }
    };
    planner.regions.iter().enumerate().map(region).collect()
}

/// For each pair of zones of a region: attempts and response bytes per second as reported, and the planned share of
/// calls.
fn zones(planner: &ServicePlanner, region: &Region) -> Vec<v1::ZoneTraffic> {
    let Some(planned) = planner.zones.get(region) else { return Vec::new() };
    let mut rows = BTreeMap::<(Zone, Zone), v1::ZoneTraffic>::new();
    for (pair, rates) in &planned.rates {
        let row = rows.entry(pair.clone()).or_default();
        (row.attempts, row.bytes) = (rates.attempts, rates.bytes);
    }
    for (from, to) in &planned.shares {
        for (zone, share) in to {
            rows.entry((from.clone(), zone.clone())).or_default().share = share.millionths();
        }
    }
    let name = |((from, to), row): ((Zone, Zone), v1::ZoneTraffic)| v1::ZoneTraffic {
        from: from.into(),
        to: to.into(),
        ..row
    };
    rows.into_iter().map(name).collect()
}

/// The tables of the last plan; none before the first one.
fn tables(planner: &ServicePlanner) -> Vec<v1::SourceShares> {
    let shares = planner.shares().filter(|_| planner.planned_at_ms.is_some());
    let table = |(from, shares): (&fairmesh_model::Region, _)| v1::SourceShares {
        from: from.to_string(),
        shares: write_shares(shares),
    };
    shares.map(table).collect()
}

fn shifts(planner: &ServicePlanner, now_ms: u64) -> Vec<v1::TrafficShift> {
    let shift = |note: &ShiftNote| v1::TrafficShift {
        ago_ms: now_ms.saturating_sub(note.at_ms),
        from: note.from.to_string(),
        class: note.class.as_ref().map(ToString::to_string).unwrap_or_default(),
        text: note.text.clone(),
    };
    planner.shifts.iter().map(shift).collect()
}
