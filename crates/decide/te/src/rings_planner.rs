//! The rings planner (ServiceRouter §3.4.1): one round.

use crate::{
    observation::Observation,
    observation_check::{Refusal, check},
    pid_controller::{MIN_CHANGE, Pid},
    planner_state::PlannerState,
    region_flows::Flows,
    ring_fill::by_importance,
    ring_matrix::RingMatrix,
    rings_policy::RingsPolicy,
    round_problem::Problem,
    share_tables::{ClassShares, MIN_SHARE, Tables, WHOLE},
    shift::{Shift, explain},
    targets::Targets,
};

/// Share of a source's calls per second of time that may leave their region, or change it.
const LEAVE_PER_SECOND: f64 = 0.2;
/// Share of a source's calls per second of time that may come back, to caches that may be cold.
const RETURN_PER_SECOND: f64 = 0.01;
/// Differences of shares below this cause no change.
pub(crate) const DEAD_BAND: f64 = 0.005;
/// The same where reports are noisy.
const MOST_DEAD_BAND: f64 = 0.08;
/// A region is above the last threshold, and not by noise, from so many standard deviations of its load on.
const FULL_BAND: f64 = 3.0;
/// Differences of shares below this come from sums in another order.
const ROUNDING: f64 = 1e-6;
/// The interval that a first round counts as, in seconds.
const FIRST_INTERVAL: f64 = 1.0;
/// For how many times the number of regions a round slows sources down before it moves none.
const MOST_SLOWED: usize = 8;
/// The longest time for which a round moves calls, in seconds.
const LONGEST_INTERVAL: f64 = 10.0;

/// What a plan is made from, besides the state.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// Rings, thresholds and classes.
    pub policy: &'a RingsPolicy,
    /// The ring of each region as seen from each other one.
    pub rings: &'a RingMatrix,
    /// Reports and power.
    pub observation: &'a Observation,
}

/// The result of one round.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The state for the next round, with the tables to be put into force.
    pub state: PlannerState,
    /// Why the tables are those of the round before, if the input could not be planned from.
    pub refusal: Option<Refusal>,
    /// The changes against the tables of the round before.
    pub shifts: Vec<Shift>,
    /// Predicted utilisation by region with the new tables; empty if the planner refused.
    pub predicted: Vec<f64>,
    /// Predicted utilisation by region where shifts that leave overloaded regions end; empty if the planner refused.
    pub aim: Vec<f64>,
}

/// Plans one round. Input that is missing, stale or absurd leaves the tables as they are.
pub fn plan(input: PlanInput<'_>, state: &PlannerState) -> Plan {
    let PlanInput { policy, rings, observation } = input;
    if let Err(refusal) = check(policy, rings, observation, state) {
        let state = state.clone();
        let refusal = Some(refusal);
        return Plan { state, refusal, shifts: Vec::new(), predicted: Vec::new(), aim: Vec::new() };
    }
    let mut next = state.clone();
    next.learn(observation, policy);
    let mut problem = Problem::new(policy, rings, observation, &next);
    if next.is_settling(observation.now_ms) && problem.is_short(policy) {
        next.settle();
        problem = Problem::new(policy, rings, observation, &next);
    }
    let targets = Targets::new(policy, &problem, &next);
    let round = Round::new(policy, &problem, &targets, &state.tables);
    let seconds =
        state.planned_at_ms.map_or(FIRST_INTERVAL, |at| observation.now_ms.saturating_sub(at) as f64 / 1e3);
    // After a pause nothing is caught up on: the pace of a minute in one step is none.
    let seconds = seconds.min(LONGEST_INTERVAL);
    let flows = round.flows(&mut next, seconds);
    // Sources have paces of their own, so between two plans that drop calls by class, their flows may not.
    let flows = by_importance(&problem, flows, policy.rings.len());
    let loads = problem.loads(&round.current);
    let full: Vec<bool> = loads.iter().zip(&round.ceilings).map(|(load, ceiling)| load > ceiling).collect();
    next.tables = without_noise(problem.tables_of(&flows), &state.tables, &full);
    next.planned_at_ms = Some(observation.now_ms);
    let shifts = explain(policy, &problem, &state.tables, &next.tables);
    let predicted = problem.loads(&problem.flows_of(&next.tables, &targets.aim));
    let aim = problem.loads(&targets.aim);
    Plan { state: next, refusal: None, shifts, predicted, aim }
}

/// A source whose shares all changed by less than the least share keeps its table, unless it sends less to a region that is
/// `full`: a small part of its calls may be most of those of a small region.
fn without_noise(mut tables: Tables, before: &Tables, full: &[bool]) -> Tables {
    for (new, old) in tables.sources.iter_mut().zip(&before.sources) {
        let rows = || new.classes.iter().zip(&old.classes);
        let mut shares = rows().flat_map(|(new, old)| new.shares.iter().zip(&old.shares));
        let is_same = shares.all(|(new, old)| new.abs_diff(*old) < MIN_SHARE)
            && rows().all(|(new, old)| new.dropped.abs_diff(old.dropped) < MIN_SHARE);
        let relieves = |(new, old): (&ClassShares, &ClassShares)| {
            full.iter().enumerate().any(|(to, is_full)| *is_full && new.shares[to] < old.shares[to])
        };
        if is_same && !rows().any(relieves) {
            new.classes.clone_from(&old.classes);
        }
    }
    tables
}

/// What a source does in a round.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    /// Calls stay where they are.
    Stay,
    /// More calls leave, or go elsewhere.
    Leave,
    /// Calls come back.
    Return,
}

struct Round<'a> {
    policy: &'a RingsPolicy,
    problem: &'a Problem<'a>,
    targets: &'a Targets<'a>,
    before: &'a Tables,
    /// The flows of the tables before the round.
    current: Flows,
    /// By source, the differences of its shares that cause no change.
    dead_bands: Vec<f64>,
    /// By region, the load above which it is above the last threshold, and not by noise.
    ceilings: Vec<f64>,
}

impl<'a> Round<'a> {
    fn new(
        policy: &'a RingsPolicy,
        problem: &'a Problem<'a>,
        targets: &'a Targets<'a>,
        before: &'a Tables,
    ) -> Self {
        let current = problem.flows_of(before, &targets.aim);
        let band = |(source, noise): (usize, f64)| {
            // What a drain has yet to make leave is no noise. Afterwards, the loads of the regions that take the calls are noisy.
            let noise = if problem.has_left(source, &current) { noise } else { 0.0 };
            noise.clamp(DEAD_BAND, MOST_DEAD_BAND)
        };
        let dead_bands = problem.noise(&current).into_iter().enumerate().map(band).collect();
        let ceiling = |error: f64| policy.ceiling() * (1.0 + (FULL_BAND * error).min(policy.margin));
        let ceilings = problem.errors(&current).into_iter().map(ceiling).collect();
        Self { policy, problem, targets, before, current, dead_bands, ceilings }
    }

    /// The flows after this round.
    fn flows(&self, next: &mut PlannerState, seconds: f64) -> Flows {
        let (aim, current) = (&self.targets.aim, &self.current);
        let loads = self.problem.loads(current);
        // Above the last threshold, waiting is worse than a reaction that is too strong.
        if loads.iter().zip(&self.ceilings).any(|(load, ceiling)| load > ceiling) {
            return self.relief(next, current, &loads, seconds);
        }
        let home = self.targets.homeward(self.problem, current);
        let mut directions: Vec<Direction> = (0..self.problem.regions)
            .map(|source| self.direction(source, next.pids[source].is_active(), current, &loads))
            .collect();
        self.make_room(&mut directions, current, &loads);
        let mut flows = current.clone();
        for (source, direction) in directions.iter().enumerate() {
            let (target, per_second) = match direction {
                Direction::Stay => {
                    next.pids[source].rest();
                    continue;
                }
                Direction::Leave => (aim, LEAVE_PER_SECOND),
                Direction::Return => (&home, RETURN_PER_SECOND),
            };
            let error = self.distance(source, current, target);
            let part = Self::part(&mut next.pids[source], error, (seconds, per_second));
            self.blend(source, &mut flows, target, part);
            self.pace_return(source, &mut flows, current, seconds);
        }
        self.guard(&mut flows, current, &loads);
        // What leaves a region may need the room, and is not told from calls that come nearer.
        if !directions.contains(&Direction::Leave) {
            let directions = &directions;
            let are = |direction| (0..directions.len()).filter(move |at| directions[*at] == direction);
            let most = (RETURN_PER_SECOND * seconds).max(MIN_CHANGE);
            let loads = self.targets.expected_loads(self.before, (are(Direction::Return), &home));
            // Callers that vanished with their region need the room that their table has for their return, not that of a trace of calls.
            let stay = are(Direction::Stay).filter(|source| !self.problem.is_absent(*source));
            let stay = stay.map(|source| (source, self.dead_bands[source]));
            self.targets.draw_near((self.policy, self.problem), loads, (stay, most), &mut flows);
        }
        flows
    }

    /// The flows while a region is above the last threshold: what has to leave does so at once. Calls that come back,
    /// to regions that have nothing to do with it, do so at their pace, unless that leaves a region above the threshold.
    fn relief(&self, next: &mut PlannerState, current: &Flows, loads: &[f64], seconds: f64) -> Flows {
        let aim = &self.targets.aim;
        let home = self.targets.homeward(self.problem, current);
        let mut flows = aim.clone();
        for source in 0..self.problem.regions {
            let pid = &mut next.pids[source];
            let direction = self.direction(source, pid.is_active(), current, loads);
            let comes_back = self.away(source, aim).0 < self.away(source, current).0 - DEAD_BAND;
            match direction {
                Direction::Return => {
                    let error = self.distance(source, current, &home);
                    let part = Self::part(pid, error, (seconds, RETURN_PER_SECOND));
                    self.blend(source, &mut flows, current, 1.0);
                    self.blend(source, &mut flows, &home, part);
                }
                Direction::Stay
                    if comes_back || self.distance(source, current, aim) < self.dead_bands[source] =>
                {
                    pid.rest();
                    self.blend(source, &mut flows, current, 1.0);
                }
                Direction::Stay | Direction::Leave => pid.rest(),
            }
            self.pace_return(source, &mut flows, current, seconds);
        }
        let bounds =
            self.problem.loads(aim).into_iter().zip(&self.ceilings).map(|(load, most)| load.max(*most));
        let is_relief =
            self.problem.loads(&flows).iter().zip(bounds).all(|(load, bound)| *load <= bound + 1e-9);
        if is_relief {
            return flows;
        }
        next.pids.iter_mut().for_each(Pid::rest);
        aim.clone()
    }

    /// Calls that a change brings home from other regions come at the pace of a return, whatever the change is for, unless calls
    /// are dropped meanwhile.
    fn pace_return(&self, source: usize, flows: &mut Flows, current: &Flows, seconds: f64) {
        let dropped = |flows: &Flows| flows.dropped.iter().sum::<f64>();
        if dropped(current) > dropped(&self.targets.aim) * (1.0 + DEAD_BAND) {
            return;
        }
        let rows = 0..self.problem.classes;
        let served_again = |class: usize| {
            let row = current.row(source, class);
            (current.dropped[row] - flows.dropped[row]).max(0.0)
        };
        let comes = |class: usize| {
            let gain = flows.get(source, class, source) - current.get(source, class, source);
            (gain - served_again(class)).max(0.0)
        };
        let coming: Vec<f64> = rows.map(comes).collect();
        let most = (RETURN_PER_SECOND * seconds).max(MIN_CHANGE) * self.problem.offered(source);
        let excess = 1.0 - most / coming.iter().sum::<f64>();
        if excess > ROUNDING {
            for (class, coming) in coming.into_iter().enumerate() {
                flows.take_back((source, class), (source, coming * excess), current);
            }
        }
    }

    /// The part of the remaining change that this round makes, of at most so much per second.
    fn part(pid: &mut Pid, error: f64, (seconds, per_second): (f64, f64)) -> f64 {
        let moved = pid.step(error, seconds, per_second * seconds);
        if error > 0.0 { moved / error } else { 0.0 }
    }

    /// Slows sources down that together would bring a region above its present load, that of the aim, and the first threshold:
    /// others, which have yet to leave it, do so at a slower pace, or have not begun. The latter do not hinder the rest: only what is
    /// sent to such a region is slowed down, and by no more than it has to be.
    fn guard(&self, flows: &mut Flows, current: &Flows, loads: &[f64]) {
        let aim_loads = self.problem.loads(&self.targets.aim);
        let first = self.policy.threshold();
        let bounds = loads.iter().zip(&aim_loads).map(|(now, aim)| now.max(*aim).max(first));
        let bounds: Vec<f64> = bounds.collect();
        // A source that is slowed down leaves others less room, which may slow down further ones; what is nearly still is
        // stopped, so that this ends.
        for _ in 0..MOST_SLOWED * self.problem.regions {
            let then = self.problem.loads(flows);
            let excess = |region: &usize| then[*region] - bounds[*region];
            let worst = (0..then.len()).max_by(|a, b| excess(a).total_cmp(&excess(b)));
            match worst {
                Some(region) if excess(&region) > ROUNDING => {
                    self.slow_down(flows, current, (region, bounds[region] - loads[region]));
                }
                _ => return,
            }
        }
        flows.clone_from(current);
    }

    /// Takes calls that were moved to a region back to where they were, so far that its load grows by no more than this.
    fn slow_down(&self, flows: &mut Flows, current: &Flows, (region, most): (usize, f64)) {
        let cost = self.problem.cost[region];
        let rows = (0..self.problem.regions)
            .flat_map(|source| (0..self.problem.classes).map(move |class| (source, class)));
        let changes: Vec<((usize, usize), f64)> = rows
            .map(|row| (row, flows.get(row.0, row.1, region) - current.get(row.0, row.1, region)))
            .collect();
        let sum = |sign: f64| changes.iter().map(|(_, change)| (change * sign).max(0.0)).sum::<f64>() * cost;
        let part = ((most + sum(-1.0)) / sum(1.0)).clamp(0.0, 1.0);
        let part = if part < ROUNDING { 0.0 } else { part };
        for (row, change) in changes.into_iter().filter(|(_, change)| *change > 0.0) {
            flows.take_back(row, (region, change * (1.0 - part)), current);
        }
    }

    fn direction(&self, source: usize, is_moving: bool, current: &Flows, loads: &[f64]) -> Direction {
        let Targets { least, aim, back, .. } = self.targets;
        let (away, dropped) = self.away(source, current);
        let (least_away, least_dropped) = self.away(source, least);
        let (back_away, back_dropped) = self.away(source, back);
        let band = self.dead_bands[source];
        let is_hot = |to: usize| {
            let excess = self.sent(source, to, current) - self.sent(source, to, aim);
            // The least share of a region that may get none is too much.
            let most = if self.problem.accepts(to) { band.max(2.0 * DEAD_BAND) } else { ROUNDING };
            // Others that have to go there are let in up to the threshold itself, and would wait below it.
            let is_full = loads[to] > self.policy.rings[0].load - DEAD_BAND;
            to != source && excess > most && (is_full || !self.problem.accepts(to))
        };
        let uses_hot = (0..self.problem.regions).any(is_hot);
        // A change that has begun is made up to its aim, beyond the threshold.
        let (aim_away, aim_dropped) = self.away(source, aim);
        let is_short = is_moving && away < aim_away - DEAD_BAND.max(band / 3.0);
        // Higher thresholds may keep fewer calls at home: they leave more room in the nearest regions.
        let least_away = match self.problem.is_whole(source) {
            true => least_away.min(aim_away - band.min(self.margin(source))),
            false => least_away,
        };
        let drops_band = (FULL_BAND * self.problem.demand_error()).min(self.policy.margin);
        let is_above = away < least_away - ROUNDING || dropped < least_dropped - drops_band.max(ROUNDING);
        let serves_again = is_moving && dropped > aim_dropped + DEAD_BAND;
        // Where all calls fit at home, the last of them come back.
        let back_band = if back_away < DEAD_BAND { DEAD_BAND } else { band };
        if is_above || is_short || uses_hot {
            Direction::Leave
        } else if away > back_away + back_band || dropped > back_dropped + DEAD_BAND || serves_again {
            Direction::Return
        } else {
            Direction::Stay
        }
    }

    /// The share of a source's calls that is as much load at home as a shift aims below the threshold.
    fn margin(&self, source: usize) -> f64 {
        self.policy.margin / (self.problem.offered(source) * self.problem.cost[source])
    }

    /// Lets calls of a source leave, too, whose region has no room for those of others that have to leave theirs, if that is
    /// what the aim is.
    fn make_room(&self, directions: &mut [Direction], current: &Flows, loads: &[f64]) {
        let aim = &self.targets.aim;
        let full = self.policy.threshold() - self.policy.margin - DEAD_BAND;
        let grows = |source: usize, to: usize| {
            self.sent(source, to, aim) > self.sent(source, to, current) + DEAD_BAND
        };
        let stays_too_much = |source: usize| {
            loads[source] > full && self.away(source, current).0 < self.away(source, aim).0 - DEAD_BAND
        };
        let mut leaving: Vec<usize> =
            (0..directions.len()).filter(|source| directions[*source] == Direction::Leave).collect();
        while let Some(source) = leaving.pop() {
            for (to, direction) in directions.iter_mut().enumerate() {
                if *direction != Direction::Leave && grows(source, to) && stays_too_much(to) {
                    *direction = Direction::Leave;
                    leaving.push(to);
                }
            }
        }
    }

    /// The share of a source's calls at one destination.
    fn sent(&self, source: usize, to: usize, flows: &Flows) -> f64 {
        let offered = self.problem.offered(source);
        if offered <= 0.0 {
            return 0.0;
        }
        (0..self.problem.classes).map(|class| flows.get(source, class, to)).sum::<f64>() / offered
    }

    /// The shares of a source's calls that are not served at home, and that are dropped.
    fn away(&self, source: usize, flows: &Flows) -> (f64, f64) {
        let offered = self.problem.offered(source);
        if offered <= 0.0 {
            return (0.0, 0.0);
        }
        let dropped: f64 =
            (0..self.problem.classes).map(|class| flows.dropped[flows.row(source, class)]).sum();
        (1.0 - self.sent(source, source, flows), dropped / offered)
    }

    /// The share of a source's calls that have another destination in the other flows.
    fn distance(&self, source: usize, a: &Flows, b: &Flows) -> f64 {
        let offered = self.problem.offered(source);
        let mut sum = 0.0;
        for class in 0..self.problem.classes {
            for to in 0..self.problem.regions {
                sum += (a.get(source, class, to) - b.get(source, class, to)).abs();
            }
            let row = a.row(source, class);
            sum += (a.dropped[row] - b.dropped[row]).abs();
        }
        if offered > 0.0 { (sum / 2.0 / offered).min(1.0) } else { 0.0 }
    }

    /// Moves this part of the way from the flows of a source to the target.
    fn blend(&self, source: usize, flows: &mut Flows, target: &Flows, part: f64) {
        for class in 0..self.problem.classes {
            for to in 0..self.problem.regions {
                let change = target.get(source, class, to) - flows.get(source, class, to);
                flows.add(source, class, to, change * part);
            }
            let row = flows.row(source, class);
            let change = target.dropped[row] - flows.dropped[row];
            flows.dropped[row] += change * part;
        }
    }
}

/// The share as a number from 0 to 1.
pub(crate) fn share(of_whole: u32) -> f64 {
    f64::from(of_whole) / f64::from(WHOLE)
}
