//! Calls across regions: what regions report, what the planner makes of it, and where a call goes by its table.
//!
//! The planner is that of production. Reports are sums over regions that arrive late; their faults are injected here.

mod draw;
mod reports;
mod summary;

use std::sync::Arc;

use fairmesh_model::{Invalid, Region, RoundTrips};
use fairmesh_te::{
    Destination, Observation, PlanInput, PlannerState, RegionObservation, RingMatrix, RingsPolicy, Shift,
    Tables, ZoneState, drain, plan,
};

use crate::scenario::{PlannerKind, RegionDrain, Traffic as TrafficSpec};

pub(crate) use draw::{Drawn, draw_class, draw_region};
pub(crate) use reports::{Counters, RegionReport, damage};
pub use summary::{Round, TrafficReport};

/// The planner of the simulated service, and the reports of regions.
#[derive(Debug)]
pub(crate) struct Traffic {
    spec: TrafficSpec,
    policy: RingsPolicy,
    rings: RingMatrix,
    names: Vec<Region>,
    state: PlannerState,
    zones: ZoneState,
    observation: Observation,
    drain: Option<drain::Drain>,
    /// Reports on their way to the planner.
    pending: Vec<RegionReport>,
    planned_at: Option<u64>,
    /// The tables that were published last.
    pub(crate) tables: Arc<Tables>,
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
            state: PlannerState::new(regions, classes),
            zones: ZoneState::default(),
            observation: Observation { now_ms: 0, regions: vec![unknown; regions] },
            drain: spec.drain.as_ref().map(|drain| begin_drain(drain, names)),
            pending: Vec::new(),
            planned_at: None,
            tables: Arc::new(Tables::local(regions, classes)),
            counters: Counters::new(regions, classes),
            rounds: Vec::new(),
            spec: spec.clone(),
        })
    }

    /// Length of an interval, in nanoseconds.
    pub(crate) fn interval(&self) -> u64 {
        self.spec.every.nanos()
    }

    /// From the end of an interval to the arrival of its reports, in nanoseconds.
    pub(crate) fn report_delay(&self) -> u64 {
        self.spec.report_delay.nanos()
    }

    /// Whether there is a planner.
    pub(crate) fn is_planned(&self) -> bool {
        self.spec.planner != PlannerKind::None
    }

    /// When the planner last planned, in nanoseconds.
    pub(crate) fn planned_at(&self) -> Option<u64> {
        self.planned_at
    }

    /// The class of a call.
    pub(crate) fn class_of(&self, seed: u64) -> usize {
        draw_class(&self.spec.classes, seed)
    }

    /// Sends the reports of the interval that ends now.
    pub(crate) fn send_reports(&mut self, mut reports: Vec<RegionReport>, now: u64) {
        for (name, report) in self.names.iter().zip(&mut reports) {
            let is_at = |from: u64, duration: u64| now >= from && now < from + duration;
            let faults = self.spec.faults.iter().filter(|fault| fault.region == name.as_str());
            for fault in faults.filter(|fault| is_at(fault.at.nanos(), fault.duration.nanos())) {
                damage(report, fault.are);
            }
        }
        self.pending = reports;
    }

    /// The reports on their way arrive.
    pub(crate) fn receive_reports(&mut self) {
        for (region, report) in self.observation.regions.iter_mut().zip(self.pending.drain(..)) {
            // What does not arrive leaves the report before in place, which grows old.
            region.servers = report.servers.or(region.servers);
            region.callers = report.callers.or(region.callers.take());
        }
    }

    /// Plans one round with the power that the registry lists; returns whether the tables changed.
    pub(crate) fn plan(&mut self, powers: &[f64], now: u64) -> bool {
        self.planned_at = Some(now);
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
        self.state = plan.state;
        let shifts = plan.shifts.iter().map(|shift| self.describe(shift));
        let shifts: Vec<String> = shifts.collect();
        if let Some(round) = self.rounds.last_mut() {
            round.refusal = plan.refusal.map(|refusal| refusal.to_string());
            round.shifts.extend(shifts);
            round.keep = self.drain.map(|drain| drain.keep);
        }
        let has_changed = *self.tables != *self.state.tables();
        if has_changed {
            self.tables = Arc::new(self.state.tables().clone());
        }
        has_changed
    }

    /// Plans zones as production does, from calls and power alone; a zone without calls keeps its row.
    fn plan_zones(&mut self) -> bool {
        let offered = |region: &RegionObservation| {
            region.callers.as_ref().map_or(0.0, |callers| callers.offered.iter().sum())
        };
        let demand: Vec<f64> = self.observation.regions.iter().map(offered).collect();
        let power: Vec<f64> = self.observation.regions.iter().map(|region| region.power).collect();
        let mut tables = (*self.tables).clone();
        for (source, row) in tables.sources.iter_mut().zip(self.zones.plan(&demand, &power)) {
            for class in source.classes.iter_mut().filter(|_| !row.is_empty()) {
                class.shares.clone_from(row);
            }
        }
        let has_changed = *self.tables != tables;
        if has_changed {
            self.tables = Arc::new(tables);
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
