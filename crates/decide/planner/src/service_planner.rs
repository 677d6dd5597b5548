//! The rounds of one service: from facts to the tables that are to be written. No clock, no I/O.

mod drain;
mod facts_update;
mod optimizer_shares;
mod publish;
mod region_zones;
mod round_outcome;
mod wider_subsets;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fairmesh_model::{Label, LoadMetric, MAX_TABLE_REGIONS, Region, ServiceName, TrafficMode, TrafficShares};
use fairmesh_te::{
    CallerReport, Destination, Doubt, LoadRing, Observation, Plan, PlanInput, PlannerState, Refusal,
    RegionObservation, RingMatrix, RingsPolicy, ServerReport, Shift, Tables, plan,
};

pub use drain::DrainStep;
pub use region_zones::RegionZones;
pub use round_outcome::{Refused, ShiftNote, TableWrite};
use wider_subsets::WiderSubset;

use crate::{
    facts::{CallerRates, ServiceFacts, TopologyFacts},
    optimizer::Verdict,
    planning_time::{MAX_START_MS, MIN_START_MS, Now},
    table_conversion::to_shares,
};

/// A service is planned anew after this time though none of its facts has changed: reports that stop are a change as well.
const QUIET_INTERVAL_MS: u64 = 5_000;
/// A service is planned at most once in this time, twice the shortest time between rounds less what these swing by: reports come once a
/// second, and two of their sums within one have most of their calls in common.
const USUAL_INTERVAL_MS: u64 = 900;
/// Calls of a region that have grown by so much, and by so many per second, do not wait for that.
const GROWTH: f64 = 1.1;
const MIN_GROWTH: f64 = 10.0;
/// The reason of a refusal within [`MAX_START_MS`].
const STARTING: &str = "starting";
/// The most changes that are remembered, and how many of them of callers in each region at least.
const MAX_SHIFTS: usize = 50;
const MIN_SHIFTS: usize = 10;

/// The last that is known of a region.
#[derive(Clone, Debug, Default)]
pub struct KnownRegion {
    /// What its servers reported.
    pub servers: Option<ServerReport>,
    /// What its callers reported, and when.
    pub callers: Option<(u64, CallerRates)>,
    /// When it last had endpoints or calls.
    used_ms: u64,
}

/// What a round started from, and whether there is more to do.
#[derive(Clone, Copy, Debug)]
struct Seen {
    facts: u64,
    topology: u64,
    at_ms: u64,
    is_moving: bool,
    /// When the sum of reports was formed, and the power of the endpoints.
    reports_at_ms: u64,
    power: f64,
}

/// A round that has its plan by rings, and not yet the verdict of the optimizer.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The refusal and the tables of the round before.
    before: (Option<Refused>, Tables),
    /// `None` if the round was refused.
    planned: Option<Plan>,
    /// The version of the topology.
    topology: u64,
}

/// The planner of one service.
#[derive(Clone, Debug)]
pub struct ServicePlanner {
    /// The classes with shares of their own.
    pub classes: Vec<Label>,
    /// In the order of names.
    pub regions: Vec<Region>,
    /// The last reports of each region.
    pub known: BTreeMap<Region, KnownRegion>,
    /// The planner's memory, by the positions of `regions`.
    pub state: PlannerState,
    /// The number of the last plan; each control plane continues that of the one before.
    pub round: u64,
    /// When the last plan was made, by the clock of [`Now::ms`].
    pub planned_at_ms: Option<u64>,
    /// When all tables were last written, by the same clock.
    pub confirmed_at_ms: Option<u64>,
    /// When all tables that drop calls were last written.
    drops_confirmed_at_ms: Option<u64>,
    /// Shifts the confirmations of this service against those of others.
    phase_ms: u64,
    /// Why the last round made no plan.
    pub refused: Option<Refused>,
    /// Rounds with a plan.
    pub planned_rounds: u64,
    /// Rounds without one.
    pub refused_rounds: u64,
    /// Utilisation that the last plan leads to, by region; empty before the first plan.
    pub predicted: Vec<f64>,
    /// The last changes of tables, the newest first.
    pub shifts: VecDeque<ShiftNote>,
    /// The regions to which the last plan brought calls home.
    coming_home: BTreeSet<Region>,
    /// What the servers of `known` were taken to report.
    load: Option<LoadMetric>,
    /// What the last round started from.
    seen: Option<Seen>,
    /// Who plans, if the policy asks for the optimizer.
    pub verdict: Option<Verdict>,
    /// Zones by region; empty unless calls prefer the zone of their caller.
    pub zones: BTreeMap<Region, RegionZones>,
    /// Subsets that are wider than the policy's, by region.
    subsets: BTreeMap<Region, WiderSubset>,
}

impl Default for ServicePlanner {
    fn default() -> Self {
        Self::new()
    }
}

impl ServicePlanner {
    /// A planner that has seen nothing yet.
    pub fn new() -> Self {
        Self {
            classes: Vec::new(),
            regions: Vec::new(),
            known: BTreeMap::new(),
            state: PlannerState::new(0, 1),
            round: 0,
            planned_at_ms: None,
            confirmed_at_ms: None,
            drops_confirmed_at_ms: None,
            phase_ms: 0,
            refused: None,
            planned_rounds: 0,
            refused_rounds: 0,
            predicted: Vec::new(),
            shifts: VecDeque::new(),
            coming_home: BTreeSet::new(),
            load: None,
            seen: None,
            verdict: None,
            zones: BTreeMap::new(),
            subsets: BTreeMap::new(),
        }
    }

    /// A planner of this service: its confirmations are spread among those of others.
    pub fn of(service: &ServiceName) -> Self {
        Self { phase_ms: publish::phase_ms(service), ..Self::new() }
    }

    /// Whether there is anything to plan: facts have changed since the last round, it has moved calls and may move more, tables
    /// are to be confirmed, or it was made long ago. Within the usual interval, only what cannot wait is planned.
    pub fn is_due(&self, facts: &ServiceFacts, topology: &TopologyFacts, now: Now) -> bool {
        let Some(seen) = self.seen else { return true };
        let has_changed = (seen.facts, seen.topology) != (facts.version, topology.version);
        let elapsed_ms = now.ms.saturating_sub(seen.at_ms);
        if elapsed_ms < USUAL_INTERVAL_MS {
            // While reports arrive, a later round plans what other records ask for.
            let is_of_records =
                seen.topology != topology.version || seen.reports_at_ms == facts.reports.at_ms;
            let is_other_power = (seen.power - facts.power()).abs() > f64::EPSILON;
            return has_changed && (is_of_records || is_other_power || self.has_grown(facts));
        }
        let confirms = facts.traffic.mode == TrafficMode::Active && self.refused.is_none();
        has_changed
            || seen.is_moving
            || elapsed_ms >= QUIET_INTERVAL_MS
            || (confirms && self.is_any_confirmation_due(now))
    }

    /// Whether callers of a region make more calls than the last round knew of, by more than noise and reports of a part of them make.
    fn has_grown(&self, facts: &ServiceFacts) -> bool {
        self.known.iter().any(|(region, known)| {
            let Some((_, before)) = &known.callers else { return false };
            let sum = |rates: &CallerRates| rates.offered.iter().sum::<f64>();
            let (now, before) = (facts.callers_in(region).map_or(0.0, |rates| sum(&rates)), sum(before));
            now > (before * GROWTH).max(before + MIN_GROWTH)
        })
    }

    /// Plans, and returns the tables to be written, all in one batch.
    pub fn round(&mut self, facts: &ServiceFacts, topology: &TopologyFacts, now: Now) -> Vec<TableWrite> {
        let prepared = self.prepare(facts, topology, now);
        self.finish(facts, prepared, now)
    }

    /// The first half of a round: takes over the facts and plans by rings, so that it is known whether reports are refused before the
    /// optimizer counts them.
    pub(crate) fn prepare(&mut self, facts: &ServiceFacts, topology: &TopologyFacts, now: Now) -> Prepared {
        let before = (self.refused.take(), self.state.tables().clone());
        self.learn(facts, now.ms);
        self.adopt_regions(facts, now.ms);
        let planned = self.plan(facts, topology, now);
        self.refused = planned.as_ref().err().cloned();
        Prepared { before, planned: planned.ok(), topology: topology.version }
    }

    /// The second half: puts the plan of rings into the tables, or that of the optimizer if the verdict says so.
    pub(crate) fn finish(&mut self, facts: &ServiceFacts, prepared: Prepared, now: Now) -> Vec<TableWrite> {
        let Prepared { before, planned, topology } = prepared;
        match planned {
            Some(planned) => {
                self.planned_rounds += 1;
                self.adopt_plan(facts, planned, now);
            }
            None => self.refused_rounds += 1,
        }
        let writes = match (facts.traffic.mode, &self.refused) {
            (TrafficMode::Active, None) => self.publish(facts, now),
            (TrafficMode::Hold, _) => self.confirm_held(facts, now),
            // Unconfirmed tables lose their force by and by: their input is no longer known to hold.
            _ => Vec::new(),
        };
        let has_changed = before.0 != self.refused || before.1 != *self.state.tables();
        // A start waits for time to pass, and not for a change.
        let is_starting = self.refused.as_ref().is_some_and(|refused| refused.reason == STARTING);
        self.seen = Some(Seen {
            facts: facts.version,
            topology,
            at_ms: now.ms,
            is_moving: has_changed || is_starting || !writes.is_empty(),
            reports_at_ms: facts.reports.at_ms,
            power: facts.power(),
        });
        writes
    }

    fn plan(&self, facts: &ServiceFacts, topology: &TopologyFacts, now: Now) -> Result<Plan, Refused> {
        self.check_settings(facts)?;
        let planned = self.with_input(facts, topology, now.ms, |input| {
            self.check_start(input.observation, now)?;
            Ok(plan(input, &self.state))
        })?;
        match &planned.refusal {
            None => Ok(planned),
            Some(refusal) => {
                let text = self.without_metric(facts, refusal).unwrap_or_else(|| self.refusal_text(refusal));
                Err(Refused { reason: refusal.reason(), text })
            }
        }
    }

    /// Takes over the plan of rings, and the shares of the optimizer instead of its own where there are any.
    fn adopt_plan(&mut self, facts: &ServiceFacts, planned: Plan, now: Now) {
        let before = self.state.tables().clone();
        self.note_doubts(&planned.state, now.ms);
        self.state = planned.state;
        self.predicted = planned.predicted;
        self.planned_at_ms = Some(now.ms);
        self.round += 1;
        if self.take_optimized(&before, now.ms) {
            self.coming_home.clear();
        } else {
            let home = planned.shifts.iter().filter(|shift| shift.to == Destination::Region(shift.source));
            self.coming_home = home.map(|shift| self.regions[shift.source].clone()).collect();
            for shift in &planned.shifts {
                self.shifts.push_front(self.note(shift, now.ms));
            }
        }
        self.plan_subsets(facts, now.ms);
        self.forget_shifts();
        self.plan_zones(facts);
    }

    /// Tells operators of regions whose capacity is doubted from now on, or no longer.
    fn note_doubts(&mut self, next: &PlannerState, at_ms: u64) {
        for (at, region) in self.regions.iter().enumerate() {
            let text = match (self.state.doubt(at), next.doubt(at)) {
                (before, after) if before == after => continue,
                (_, Some(doubt)) => format!("the capacity of {region} is doubted: {doubt}"),
                (_, None) => format!("the capacity of {region} is no longer doubted"),
            };
            self.shifts.push_front(ShiftNote { at_ms, from: region.clone(), class: None, text });
        }
    }

    /// The regions whose capacity is doubted.
    pub fn doubted_regions(&self) -> impl Iterator<Item = (&Region, Doubt)> {
        let doubts = self.regions.iter().enumerate();
        doubts.filter_map(|(at, region)| Some((region, self.state.doubt(at)?)))
    }

    /// Forgets the oldest changes, but not the last ones of a region in the tables because others have many.
    fn forget_shifts(&mut self) {
        let (mut all, mut by_region) = (0, BTreeMap::<Region, usize>::new());
        let regions = &self.regions;
        self.shifts.retain(|shift| {
            all += 1;
            let of_region = by_region.entry(shift.from.clone()).or_default();
            *of_region += 1;
            all <= MAX_SHIFTS || (*of_region <= MIN_SHIFTS && regions.contains(&shift.from))
        });
    }

    /// A refusal because servers report, and not the metric that the policy names.
    fn without_metric(&self, facts: &ServiceFacts, refusal: &Refusal) -> Option<String> {
        let (Refusal::ServersMissing(at) | Refusal::ServersStale(at)) = refusal else { return None };
        let metric = facts.traffic.load.as_ref()?;
        let region = self.regions.get(*at)?;
        let rates = facts.reports.servers.get(region)?;
        let reporting = rates.metrics.get(&metric.name).map_or(0, |sum| sum.servers);
        let serving = facts.serving_in(region);
        (reporting.saturating_mul(2) < serving).then(|| {
            format!(
                "{reporting} of {serving} servers of region {region} report the metric '{}' (traffic.load)",
                metric.name
            )
        })
    }

    fn check_settings(&self, facts: &ServiceFacts) -> Result<(), Refused> {
        let refused = |reason, text: String| Err(Refused { reason, text });
        if facts.traffic.mode == TrafficMode::Hold {
            return refused("held", "the policy holds the tables".to_owned());
        }
        if facts.local_only {
            return refused("local_only", "the policy keeps calls in their region (localOnly)".to_owned());
        }
        if facts.reports.is_incomplete {
            let text = "reports have no room for all of its calls and servers";
            return refused("left_out", text.to_owned());
        }
        match self.regions.len() {
            0 => refused("no_capacity", "no region has serving endpoints".to_owned()),
            count if count > MAX_TABLE_REGIONS => {
                refused("mismatch", format!("{count} regions are more than a table has"))
            }
            _ => Ok(()),
        }
    }

    /// Waits after a start: the first reports of a region may be few of many.
    fn check_start(&self, observation: &Observation, now: Now) -> Result<(), Refused> {
        let elapsed = now.ms.saturating_sub(now.started_ms);
        let is_missing = |(_, region): &(&Region, &RegionObservation)| {
            region.callers.is_none() || (region.power > 0.0 && region.servers.is_none())
        };
        let missing = self.regions.iter().zip(&observation.regions).find(is_missing);
        let refused = |text| Err(Refused { reason: STARTING, text });
        match missing {
            Some((region, _)) if elapsed < MAX_START_MS => {
                refused(format!("the control plane has started, and waits for reports of region {region}"))
            }
            None if elapsed < MIN_START_MS => {
                refused("the control plane has started, and waits for further reports".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Calls a function of the planner with the present input.
    fn with_input<T>(
        &self,
        facts: &ServiceFacts,
        topology: &TopologyFacts,
        now_ms: u64,
        decide: impl FnOnce(PlanInput<'_>) -> T,
    ) -> T {
        let observation = self.observe(facts, topology, now_ms);
        let policy = rings_policy(facts);
        let rings = RingMatrix::new(&policy, &self.regions, &topology.regions, &topology.round_trips);
        decide(PlanInput { policy: &policy, rings: &rings, observation: &observation })
    }

    /// A refusal with the name of its region.
    fn refusal_text(&self, refusal: &Refusal) -> String {
        let text = refusal.to_string();
        match refusal.region() {
            Some(region) => {
                text.replace(&format!("region {region}"), &format!("region {}", self.regions[region]))
            }
            None => text,
        }
    }

    fn observe(&self, facts: &ServiceFacts, topology: &TopologyFacts, now_ms: u64) -> Observation {
        let region = |region: &Region| {
            let known = &self.known[region];
            let callers = known.callers.as_ref().map(|(at_ms, rates)| CallerReport {
                at_ms: *at_ms,
                offered: rates.offered.clone(),
                sent: self.regions.iter().map(|to| rates.sent_to(to)).collect(),
                pinned: 0.0,
            });
            RegionObservation {
                power: facts.power_in(region),
                keep: topology.keep(region),
                servers: known.servers,
                callers,
            }
        };
        Observation { now_ms, regions: self.regions.iter().map(region).collect() }
    }

    fn note(&self, shift: &Shift, at_ms: u64) -> ShiftNote {
        let name = |destination: Destination| match destination {
            Destination::Region(region) => self.regions[region].to_string(),
            Destination::Dropped => "dropped".to_owned(),
        };
        let (from, to, cause) = (name(shift.from), name(shift.to), shift.cause);
        ShiftNote {
            at_ms,
            from: self.regions[shift.source].clone(),
            class: shift.class.checked_sub(1).and_then(|class| self.classes.get(class)).cloned(),
            text: format!("{from} to {to}, {:.1} % of calls: {cause}", shift.share * 100.0),
        }
    }

    /// The shares of the last plan, by the region of the callers.
    pub fn shares(&self) -> impl Iterator<Item = (&Region, TrafficShares)> {
        let tables = self.regions.iter().zip(&self.state.tables().sources);
        tables.map(|(region, table)| (region, to_shares(table, &self.regions, &self.classes)))
    }
}

fn rings_policy(facts: &ServiceFacts) -> RingsPolicy {
    let ring = |ring: fairmesh_model::LoadRing| LoadRing {
        ring: ring.ring,
        load: f64::from(ring.load.millionths()) / 1e6,
    };
    let rings = facts.traffic.load_rings().into_iter().map(ring).collect();
    RingsPolicy::new(rings, facts.traffic.classes.len() + 1)
}

#[cfg(test)]
mod told_tests;

#[cfg(test)]
mod tests;
