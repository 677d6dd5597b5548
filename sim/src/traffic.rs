//! Calls across regions: reports of regions, the planner's tables, and the region to which a call goes.
//!
//! Reports, their sums and the planner are those of production; only the store, the network and the clock are
//! simulated. Report faults are injected here.

mod names;
mod reports;
mod summary;

use std::{collections::BTreeSet, time::Duration};

use fairmesh_model::{
    Invalid, Label, LoadRing, Policy, Region, RegionDrain, RegionShares, RegionTable, Ring, RoundTrips,
    Share, Traffic as TrafficPolicy, TrafficPlanner, TrafficShares,
    arith::{Generator, hash_text, mix_pair},
};
use fairmesh_planner::{
    Now, RegionEndpoints, ServiceFacts, ServicePlanner, ServiceReports, StoredDrain, StoredTable, Subset,
    TableWrite, TopologyFacts, next_keep,
};
use fairmesh_signals::{ReportSource, ReportSums, SumLimits};

use crate::{
    sampling::unit,
    scenario::{PlannerKind, SimTime, Traffic as TrafficSpec},
};

pub(crate) use names::Names;
pub(crate) use reports::{Counters, RegionReport};
pub use summary::{Round, TrafficReport};

/// Minimum interval between plans in nanoseconds, as in production.
const MIN_INTERVAL: u64 = 500_000_000;

/// A region's report in transit.
#[derive(Debug)]
struct Arrival {
    at: u64,
    region: usize,
    report: RegionReport,
}

/// The planner of the simulated service, the facts that it knows, and the reports of regions.
#[derive(Debug)]
pub(crate) struct Traffic {
    spec: TrafficSpec,
    names: Names,
    planner: ServicePlanner,
    facts: ServiceFacts,
    topology: TopologyFacts,
    sums: ReportSums,
    /// By region: the end of the last interval for which a report has arrived.
    reported_at: Vec<Option<u64>>,
    /// Reports in transit to the planner.
    pending: Vec<Arrival>,
    /// Time of the last plan, in nanoseconds.
    planned_at: Option<u64>,
    /// Whether the next plan is already scheduled.
    is_plan_due: bool,
    /// Number of batches written.
    revision: u64,
    pub(crate) counters: Counters,
    pub(crate) rounds: Vec<Round>,
}

impl Traffic {
    pub(crate) fn new(
        spec: &TrafficSpec,
        (regions, trips): (&[Region], &RoundTrips),
        policy: &Policy,
    ) -> Result<Self, Invalid> {
        let are_zones = spec.planner == PlannerKind::Zones;
        let names = Names::new(spec, regions, are_zones)?;
        let facts = ServiceFacts {
            traffic: traffic_policy(spec, &names.classes)?,
            zone_first: are_zones,
            subset: Subset(policy.balancing.subset),
            ..ServiceFacts::default()
        };
        Ok(Self {
            names,
            planner: ServicePlanner::new(),
            facts,
            topology: TopologyFacts { round_trips: trips.clone(), ..TopologyFacts::default() },
            sums: ReportSums::new(SumLimits::TREE),
            reported_at: vec![None; regions.len()],
            pending: Vec::new(),
            planned_at: None,
            is_plan_due: false,
            revision: 0,
            counters: Counters::new(regions.len(), spec.classes.len()),
            rounds: Vec::new(),
            spec: spec.clone(),
        })
    }

    /// Length of an interval, in nanoseconds.
    pub(crate) fn interval(&self) -> u64 {
        self.spec.every.nanos()
    }

    /// Returns the time of the next plan after a change; `None` if a plan is already scheduled.
    pub(crate) fn request_plan(&mut self, now: u64) -> Option<u64> {
        if self.spec.planner == PlannerKind::None || std::mem::replace(&mut self.is_plan_due, true) {
            return None;
        }
        Some(self.planned_at.map_or(0, |at| at + MIN_INTERVAL).max(now))
    }

    /// The class of a call, drawn according to the shares of classes.
    pub(crate) fn class_of(&self, seed: u64) -> usize {
        let classes = &self.spec.classes;
        let total: f64 = classes.iter().map(|class| class.share).sum();
        let mut left = unit(&mut Generator::new(mix_pair(seed, hash_text("class")))) * total;
        let found = classes.iter().position(|class| {
            left -= class.share;
            left < 0.0
        });
        found.unwrap_or(classes.len() - 1)
    }

    /// The label of a class that has its own shares.
    pub(crate) fn label(&self, class: usize) -> Option<&Label> {
        self.names.label(class)
    }

    /// The table of a source region, in the form in which routers get it; `None` if there is none yet.
    pub(crate) fn table(&self, source: u16) -> Option<RegionTable> {
        let place = &self.names.places[usize::from(source)];
        let table = &self.facts.tables.get(&place.region)?.table;
        let Some(zone) = &place.zone else { return Some(table.clone()) };
        // If regions stand for zones, so do shares.
        let to = table.zones.get(zone)?.iter();
        let to = to.filter_map(|(zone, share)| Some((Region::new(zone.as_str()).ok()?, *share)));
        let default = Some(RegionShares { to: to.collect(), dropped: Share::NONE });
        let shares = TrafficShares { default, ..TrafficShares::default() };
        Some(RegionTable::new(shares, table.origin))
    }

    /// Sends the reports of the interval that ends now. Returns their distinct arrival times.
    pub(crate) fn send_reports(&mut self, reports: Vec<RegionReport>, now: u64) -> BTreeSet<u64> {
        let mut arrivals = BTreeSet::new();
        for (region, mut report) in reports.into_iter().enumerate() {
            let mut at = now + self.spec.report_delay.nanos();
            let name = self.region_name(region);
            let faults = self.spec.faults.iter().filter(|fault| fault.is_of(&name, now));
            let is_sent = faults.fold(true, |is_sent, fault| {
                at += fault.by.map_or(0, SimTime::nanos);
                report.damage(fault.are) && is_sent
            });
            if is_sent {
                arrivals.insert(at);
                self.pending.push(Arrival { at, region, report });
            }
        }
        arrivals
    }

    /// Receives the reports whose arrival time has come.
    pub(crate) fn receive_reports(&mut self, now: u64) {
        for Arrival { at, region, report } in self.pending.extract_if(.., |arrival| arrival.at <= now) {
            let last = &mut self.reported_at[region];
            // A report overtaken by a newer one is ignored.
            if last.is_none_or(|last| last < report.at) {
                *last = Some(report.at);
                let times =
                    (Duration::from_nanos(self.spec.every.nanos()), Duration::from_nanos(at - report.at));
                self.sums.record(
                    &ReportSource::of_mesh(),
                    report.message(region, &self.names, times),
                    now / 1_000_000,
                );
            }
        }
    }

    /// Plans one round with the servers listed in the registry, by region. Returns whether tables were written.
    pub(crate) fn plan(&mut self, servers: &[Vec<u32>], now: u64) -> bool {
        self.planned_at = Some(now);
        self.is_plan_due = false;
        let now_ms = now / 1_000_000;
        let now = Now { ms: now_ms, started_ms: 0, wall_ms: now_ms };
        self.collect_facts(servers, now_ms);
        self.begin_drain(now_ms);
        let writes = self.planner.round(&self.facts, &self.topology, now);
        let shifts = self.describe_shifts(now_ms);
        if let Some(round) = self.rounds.last_mut() {
            round.refusal = self.planner.refused.as_ref().map(|refused| refused.text.clone());
            round.shifts.extend(shifts);
        }
        // The drain is judged by the previous tables, as in a control plane.
        let before = (!self.topology.drains.is_empty()).then(|| self.facts.clone());
        self.write(&writes, now);
        if let Some(before) = before {
            self.step_drains(&before, now);
        }
        !writes.is_empty()
    }

    fn collect_facts(&mut self, servers: &[Vec<u32>], now_ms: u64) {
        self.facts.endpoints.clear();
        for (place, powers) in self.names.places.iter().zip(servers).filter(|(_, powers)| !powers.is_empty())
        {
            let endpoints: &mut RegionEndpoints =
                self.facts.endpoints.entry(place.region.clone()).or_default();
            powers.iter().for_each(|power| endpoints.add(place.zone.as_ref(), Some(*power)));
        }
        let service = &self.names.service;
        let services = [service.clone()].into();
        let mut sums = self.sums.sums_by_service(&services, now_ms);
        let heard = sums.heard().clone();
        let sum = sums.next().map(|(_, sum)| sum).unwrap_or_default();
        self.facts.reports = ServiceReports::new(sum, heard, now_ms);
    }

    /// Applies writes at once. No write fails.
    fn write(&mut self, writes: &[TableWrite], now: Now) {
        self.revision += u64::from(!writes.is_empty());
        for TableWrite { from, table, .. } in writes {
            match table.clone() {
                Some(table) => {
                    let stored = StoredTable { table, revision: self.revision };
                    self.facts.tables.insert(from.clone(), stored);
                }
                None => drop(self.facts.tables.remove(from)),
            }
        }
        self.planner.written(&self.facts, writes, now);
    }

    fn begin_drain(&mut self, now_ms: u64) {
        let Some(spec) = self.spec.drain.as_ref().filter(|spec| spec.at.nanos() / 1_000_000 <= now_ms) else {
            return;
        };
        let Some(region) = self.names.places.iter().find(|place| place.region.as_str() == spec.region) else {
            return;
        };
        let begun = || {
            let over = Duration::from_nanos(spec.over.nanos());
            StoredDrain {
                drain: RegionDrain::begin(None, false, over, spec.at.nanos() / 1_000_000),
                revision: 1,
            }
        };
        self.topology.drains.entry(region.region.clone()).or_insert_with(begun);
    }

    fn step_drains(&mut self, facts: &ServiceFacts, now: Now) {
        let topology = self.topology.clone();
        for (region, stored) in &mut self.topology.drains {
            let step = self.planner.drain_step(facts, &topology, (region, &stored.drain), now);
            let steps: Vec<_> = step.map(|step| (self.names.service.clone(), step)).into_iter().collect();
            if let Ok(keep) = next_keep(&stored.drain, &steps) {
                stored.drain.keep = keep;
            }
            if let Some(round) = self.rounds.last_mut() {
                round.keep = Some(f64::from(stored.drain.keep.millionths()) / 1e6);
            }
        }
    }

    fn describe_shifts(&self, now_ms: u64) -> Vec<String> {
        let new = self.planner.shifts.iter().filter(|shift| shift.at_ms == now_ms);
        let describe = |shift: &fairmesh_planner::ShiftNote| {
            let class = shift.class.as_ref().map_or(self.spec.classes[0].name.as_str(), Label::as_str);
            format!("{} {class}: {}", shift.from, shift.text)
        };
        new.map(describe).collect()
    }

    fn region_name(&self, position: usize) -> String {
        let place = &self.names.places[position];
        place.zone.as_ref().map_or_else(|| place.region.to_string(), ToString::to_string)
    }

    /// The figures of the whole simulation.
    pub(crate) fn report(self, measured_from: u64) -> TrafficReport {
        let names = (0..self.names.places.len()).map(|position| self.region_name(position)).collect();
        let classes = self.spec.classes.iter().map(|class| class.name.clone()).collect();
        let threshold = self.spec.rings[0].load;
        TrafficReport::new(names, classes, threshold, self.rounds, measured_from as f64 / 1e9)
    }
}

/// The policy of the simulated service.
fn traffic_policy(spec: &TrafficSpec, classes: &[Label]) -> Result<TrafficPolicy, Invalid> {
    let ring = |(ring, load): (Ring, f64)| {
        let load = Share::of_millionths((load * 1e6).round() as u32)?;
        Ok(LoadRing { ring, load })
    };
    let rings = spec.router_rings()?.into_iter().zip(spec.rings.iter().map(|ring| ring.load));
    Ok(TrafficPolicy {
        planner: Some(TrafficPlanner::Rings),
        rings: rings.map(ring).collect::<Result<_, Invalid>>()?,
        classes: classes.to_vec(),
        load: spec.has_load_metric().then(reports::load_metric),
        ..TrafficPolicy::default()
    })
}
