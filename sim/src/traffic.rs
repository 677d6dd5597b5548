//! Calls across regions: what regions report, what the planner makes of it, and where a call goes by its table.
//!
//! The planner is that of production. Reports are sums over regions that arrive late; their faults are injected here.

mod reports;
mod summary;

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{
    Confirmation, Invalid, Label, Region, RegionTable, RoundTrips, TableOrigin,
    arith::{Generator, hash_text, mix_pair},
};
use fairmesh_te::{
    Destination, Observation, PlanInput, PlannerState, RegionObservation, RingMatrix, RingsPolicy, Shift,
    Tables, ZoneState, drain, plan,
};

use crate::{
    sampling::unit,
    scenario::{PlannerKind, RegionDrain, SimTime, Traffic as TrafficSpec},
};

pub(crate) use reports::{Counters, RegionReport, damage};
pub use summary::{Round, TrafficReport};

/// The planner plans at most this often, in nanoseconds, as in production.
const MIN_INTERVAL: u64 = 1_000_000_000;

/// The report of a region on its way.
#[derive(Debug)]
struct Arrival {
    at: u64,
    region: usize,
    report: RegionReport,
}

/// The planner of the simulated service, and the reports of regions.
#[derive(Debug)]
pub(crate) struct Traffic {
    spec: TrafficSpec,
    policy: RingsPolicy,
    rings: RingMatrix,
    names: Vec<Region>,
    /// The classes with shares of their own: all but the first.
    classes: Vec<Label>,
    state: PlannerState,
    zones: ZoneState,
    observation: Observation,
    drain: Option<drain::Drain>,
    /// Reports on their way to the planner.
    pending: Vec<Arrival>,
    /// When the planner last planned, in nanoseconds.
    planned_at: Option<u64>,
    /// Whether routers have tables.
    is_published: bool,
    /// Whether it is about to plan again.
    is_plan_due: bool,
    /// The tables that were published last.
    pub(crate) tables: Tables,
    pub(crate) counters: Counters,
    pub(crate) rounds: Vec<Round>,
}

impl Traffic {
    pub(crate) fn new(spec: &TrafficSpec, names: &[Region], trips: &RoundTrips) -> Result<Self, Invalid> {
        let policy = spec.policy()?;
        let (regions, classes) = (names.len(), policy.classes);
        let unknown = RegionObservation { keep: 1.0, ..RegionObservation::default() };
        Ok(Self {
            rings: RingMatrix::new(&policy, names, &fairmesh_model::Regions::default(), trips),
            policy,
            names: names.to_vec(),
            classes: own_classes(spec)?,
            state: PlannerState::new(regions, classes),
            zones: ZoneState::default(),
            observation: Observation { now_ms: 0, regions: vec![unknown; regions] },
            drain: spec.drain.as_ref().map(|drain| begin_drain(drain, names)),
            pending: Vec::new(),
            planned_at: None,
            is_published: false,
            is_plan_due: false,
            tables: Tables::local(regions, classes),
            counters: Counters::new(regions, classes),
            rounds: Vec::new(),
            spec: spec.clone(),
        })
    }

    /// Length of an interval, in nanoseconds.
    pub(crate) fn interval(&self) -> u64 {
        self.spec.every.nanos()
    }

    /// When to plan next after something has changed, unless that is known already.
    pub(crate) fn request_plan(&mut self, now: u64) -> Option<u64> {
        if self.spec.planner == PlannerKind::None || std::mem::replace(&mut self.is_plan_due, true) {
            return None;
        }
        Some(self.planned_at.map_or(0, |at| at + MIN_INTERVAL).max(now))
    }

    /// The class of a call, drawn by the shares of classes.
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

    /// The label of a class that has shares of its own.
    pub(crate) fn label(&self, class: usize) -> Option<&Label> {
        self.classes.get(class.checked_sub(1)?)
    }

    /// The table of a source region as its routers get it.
    pub(crate) fn record(&self, source: u16) -> RegionTable {
        let round = self.rounds.len() as u64;
        RegionTable {
            shares: self.tables.sources[usize::from(source)].to_shares(&self.names, &self.classes),
            zones: BTreeMap::new(),
            origin: TableOrigin::Planned(Confirmation { round, at_ms: self.observation.now_ms }),
        }
    }

    /// Sends the reports of the interval that ends now; returns when they arrive, each time once.
    pub(crate) fn send_reports(&mut self, reports: Vec<RegionReport>, now: u64) -> BTreeSet<u64> {
        let mut arrivals = BTreeSet::new();
        for (region, mut report) in reports.into_iter().enumerate() {
            let mut at = now + self.spec.report_delay.nanos();
            for fault in self.spec.faults.iter().filter(|fault| fault.is_of(&self.names[region], now)) {
                damage(&mut report, fault.are);
                at += fault.by.map_or(0, SimTime::nanos);
            }
            arrivals.insert(at);
            self.pending.push(Arrival { at, region, report });
        }
        arrivals
    }

    /// The reports arrive whose time has come.
    pub(crate) fn receive_reports(&mut self, now: u64) {
        for Arrival { region, report, .. } in self.pending.extract_if(.., |arrival| arrival.at <= now) {
            let region = &mut self.observation.regions[region];
            // What does not arrive leaves the report before in place, which grows old, and so does one that was overtaken.
            let is_newer = |new: u64, old: Option<u64>| old.is_none_or(|old| old < new);
            if let Some(servers) = report.servers
                && is_newer(servers.at_ms, region.servers.map(|old| old.at_ms))
            {
                region.servers = Some(servers);
            }
            if let Some(callers) = report.callers
                && is_newer(callers.at_ms, region.callers.as_ref().map(|old| old.at_ms))
            {
                region.callers = Some(callers);
            }
        }
    }

    /// Plans one round with the power that the registry lists; returns whether the tables changed.
    pub(crate) fn plan(&mut self, powers: &[f64], now: u64) -> bool {
        self.planned_at = Some(now);
        self.is_plan_due = false;
        self.observation.now_ms = now / 1_000_000;
        for (region, power) in self.observation.regions.iter_mut().zip(powers) {
            region.power = *power;
        }
        if self.spec.planner == PlannerKind::Zones {
            return self.plan_zones();
        }
        self.advance_drain();
        let input = PlanInput { policy: &self.policy, rings: &self.rings, observation: &self.observation };
        let plan = plan(input, &self.state);
        // The first plan is published whatever it says: until then routers have no table.
        let is_first = plan.refusal.is_none() && !self.is_published;
        self.is_published |= is_first;
        self.state = plan.state;
        let shifts = plan.shifts.iter().map(|shift| self.describe(shift));
        let shifts: Vec<String> = shifts.collect();
        if let Some(round) = self.rounds.last_mut() {
            round.refusal = plan.refusal.map(|refusal| refusal.to_string());
            round.shifts.extend(shifts);
            round.keep = self.drain.map(|drain| drain.keep);
        }
        let has_changed = self.tables != *self.state.tables();
        if has_changed {
            self.tables = self.state.tables().clone();
        }
        has_changed || is_first
    }

    /// Plans zones as production does, from calls and power alone; a zone without calls keeps its row.
    fn plan_zones(&mut self) -> bool {
        let offered = |region: &RegionObservation| {
            region.callers.as_ref().map_or(0.0, |callers| callers.offered.iter().sum())
        };
        let demand: Vec<f64> = self.observation.regions.iter().map(offered).collect();
        let power: Vec<f64> = self.observation.regions.iter().map(|region| region.power).collect();
        let mut tables = self.tables.clone();
        for (source, row) in tables.sources.iter_mut().zip(self.zones.plan(&demand, &power)) {
            for class in source.classes.iter_mut().filter(|_| !row.is_empty()) {
                class.shares.clone_from(row);
            }
        }
        let has_changed = self.tables != tables;
        if has_changed {
            self.tables = tables;
        }
        has_changed
    }

    fn advance_drain(&mut self) {
        let Some(drain) = &mut self.drain else { return };
        if self.observation.now_ms < drain.from_ms {
            return;
        }
        let input = PlanInput { policy: &self.policy, rings: &self.rings, observation: &self.observation };
        if let drain::Step::Advance(keep) = drain::step(drain, input, &self.state) {
            drain.keep = keep;
        }
        self.observation.regions[drain.region].keep = drain.keep;
    }

    fn describe(&self, shift: &Shift) -> String {
        let name = |to: Destination| match to {
            Destination::Region(region) => self.names[region].to_string(),
            Destination::Dropped => "dropped".to_owned(),
        };
        let class = &self.spec.classes[shift.class].name;
        let ring = shift.ring.map_or_else(String::new, |ring| format!(", ring {}", ring + 1));
        format!(
            "{} {class}: {:.2} % from {} to {}{ring}: {}",
            self.names[shift.source],
            shift.share * 100.0,
            name(shift.from),
            name(shift.to),
            shift.cause
        )
    }

    /// The figures of the whole simulation.
    pub(crate) fn report(self, measured_from: u64) -> TrafficReport {
        let names = self.names.iter().map(ToString::to_string).collect();
        let classes = self.spec.classes.iter().map(|class| class.name.clone()).collect();
        let threshold = self.policy.rings[0].load;
        TrafficReport::new(names, classes, threshold, self.rounds, measured_from as f64 / 1e9)
    }
}

fn own_classes(spec: &TrafficSpec) -> Result<Vec<Label>, Invalid> {
    spec.classes.iter().skip(1).map(|class| Label::new(class.name.clone())).collect()
}

fn begin_drain(spec: &RegionDrain, names: &[Region]) -> drain::Drain {
    // Validation has found the region among those of servers.
    let region = names.iter().position(|name| name.as_str() == spec.region).unwrap_or_default();
    drain::Drain {
        region,
        from_ms: spec.at.nanos() / 1_000_000,
        over_ms: spec.over.nanos() / 1_000_000,
        keep: 1.0,
        goal: 0.0,
    }
}
