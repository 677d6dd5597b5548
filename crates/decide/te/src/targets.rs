//! Where the calls of a round should be, and how those that are away come back: home, or nearer.

use crate::{
    planner_state::PlannerState,
    region_flows::Flows,
    rings_planner::{DEAD_BAND, share},
    rings_policy::RingsPolicy,
    round_problem::Problem,
    share_tables::{MIN_SHARE, Tables},
};

/// Loads within this of a ceiling are at it.
const TOLERANCE: f64 = 1e-6;

/// Room for dropped calls is no noise from so many standard deviations of all demand on.
const DROPS_BAND: f64 = 3.0;

/// Where calls go if thresholds are exactly met, where a shift aims, and what would have to stay away for calls to
/// return.
///
/// Calls leave by the demand of the round, and return by the greatest demand of late: that of a small service swings by
/// more than margin and hysteresis from one round to the next, and would take its calls back and forth.
pub(crate) struct Targets<'a> {
    pub(crate) least: Flows,
    pub(crate) aim: Flows,
    pub(crate) back: Flows,
    /// The round with the greatest demand of late.
    peaks: Problem<'a>,
}

impl<'a> Targets<'a> {
    pub(crate) fn new(policy: &RingsPolicy, problem: &Problem<'a>, state: &PlannerState) -> Self {
        let least = problem.fill(&policy.thresholds(0.0), &ceilings(policy, None, problem.regions));
        let mut short = is_short(policy, problem, &least);
        let stays_short = stays_short(policy, problem, &state.tables);
        short.iter_mut().zip(&stays_short).for_each(|(short, stays)| *short |= stays);
        let by = policy.margin;
        let aim =
            problem.fill(&policy.thresholds(by), &ceilings(policy, Some((&short, by)), problem.regions));
        let peaks = problem.at_peaks(state);
        let mut back = back(policy, (problem, &peaks), state, (short, &stays_short));
        keep_away(problem, &aim, &mut back);
        Self { least, aim, back, peaks }
    }

    /// The target of sources whose calls return: home, from the farthest regions first. No call is dropped for it, and
    /// none goes to another region, unless calls that were dropped are served again: as many of them as a shift would have served.
    pub(crate) fn homeward(&self, problem: &Problem<'_>, current: &Flows) -> Flows {
        let mut flows = current.clone();
        for source in 0..problem.regions {
            let rows = 0..problem.classes;
            let dropped = |flows: &Flows| {
                rows.clone().map(|class| flows.dropped[flows.row(source, class)]).sum::<f64>()
            };
            let serves_again = dropped(current) > dropped(&self.aim) + DEAD_BAND * problem.offered(source);
            for class in 0..problem.classes {
                match serves_again {
                    true => flows.set_shares((source, class), problem.demand(source, class), &self.aim),
                    false => self.bring_home((source, class), problem, &mut flows),
                }
            }
        }
        flows
    }

    fn bring_home(&self, (source, class): (usize, usize), problem: &Problem<'_>, flows: &mut Flows) {
        let mut left = self.back.get(source, class, source) - flows.get(source, class, source);
        for from in farthest_first(problem, source) {
            let rate = flows.get(source, class, from).min(left);
            if rate > 0.0 {
                flows.add(source, class, from, -rate);
                flows.add(source, class, source, rate);
                left -= rate;
            }
        }
    }

    /// The loads by the greatest demand of late, by the tables or once calls of these sources have come home, whichever is
    /// greater.
    pub(crate) fn expected_loads(
        &self,
        tables: &Tables,
        (returning, home): (impl Iterator<Item = usize>, &Flows),
    ) -> Vec<f64> {
        let mut flows = self.peaks.flows_of(tables, &self.aim);
        let loads = self.peaks.loads(&flows);
        for source in returning {
            for class in 0..self.peaks.classes {
                flows.set_shares((source, class), self.peaks.demand(source, class), home);
            }
        }
        loads.into_iter().zip(self.peaks.loads(&flows)).map(|(now, then)| now.max(then)).collect()
    }

    /// Brings calls of sources that stay away nearer, at most this share of each source: what farther rings serve while a
    /// region of a nearer one has room where a shift aims, by the loads to be expected. A drain, or a load that is gone, has
    /// sent them there. Room for less than `least` of a source's calls may be noise.
    pub(crate) fn draw_near(
        &self,
        (policy, problem): (&RingsPolicy, &Problem<'_>),
        mut loads: Vec<f64>,
        (sources, most): (impl Iterator<Item = (usize, f64)>, f64),
        flows: &mut Flows,
    ) {
        let limit = policy.threshold() - policy.margin;
        for (source, least) in sources {
            let offered = problem.offered(source);
            let moves = self.moves_nearer(problem, source, limit, (flows, &loads));
            let room: f64 = moves.iter().map(|one| one.rate).sum();
            let mut left = room.min(most * offered);
            // Less is not published.
            if room < least * offered || left < share(MIN_SHARE) * offered {
                continue;
            }
            for Move { class, from, to, rate, load } in moves {
                let rate = rate.min(left);
                flows.add(source, class, from, -rate);
                flows.add(source, class, to, rate);
                loads[to] += rate * load;
                left -= rate;
            }
        }
    }

    /// The moves of calls of a source to nearer regions below a load, in the order in which they are to be made.
    fn moves_nearer(
        &self,
        problem: &Problem<'_>,
        source: usize,
        limit: f64,
        (flows, loads): (&Flows, &[f64]),
    ) -> Vec<Move> {
        let (mut moves, mut loads) = (Vec::new(), loads.to_vec());
        let farthest_first = farthest_first(problem, source);
        for class in 0..problem.classes {
            // What the greatest demand of late is to the present one.
            let times = self.peaks.demand(source, class) / problem.demand(source, class);
            for from in farthest_first.iter().copied().filter(|_| times.is_finite()) {
                let mut there = flows.get(source, class, from);
                while there > 0.0
                    && let Some(to) = nearer_with_room(problem, (source, from), &loads, limit)
                {
                    let load = times * problem.cost[to];
                    let rate = there.min((limit - loads[to]) / load);
                    if rate <= 0.0 {
                        break;
                    }
                    moves.push(Move { class, from, to, rate, load });
                    loads[to] += rate * load;
                    there -= rate;
                }
            }
        }
        moves
    }
}

/// A move of calls of a source from one region to another.
struct Move {
    class: usize,
    from: usize,
    to: usize,
    /// Calls per second.
    rate: f64,
    /// The load of the destination by each of them, by the greatest demand of late.
    load: f64,
}

/// The other regions, those of the farthest ring around a source first.
fn farthest_first(problem: &Problem<'_>, source: usize) -> Vec<usize> {
    let mut regions: Vec<usize> = (0..problem.regions).filter(|region| *region != source).collect();
    regions.sort_by_key(|region| std::cmp::Reverse(problem.ring(source, *region)));
    regions
}

/// The least loaded region of the nearest ring that has room, if that is an inner one of the ring of `from`. The first two
/// rings open together: none of them is nearer than the other.
fn nearer_with_room(
    problem: &Problem<'_>,
    (source, from): (usize, usize),
    loads: &[f64],
    limit: f64,
) -> Option<usize> {
    let ring = |to: usize| problem.ring(source, to).max(1);
    (0..problem.regions)
        .filter(|to| *to != source && problem.accepts(*to) && ring(*to) < ring(from))
        .filter(|to| loads[*to] < limit - TOLERANCE)
        .min_by(|a, b| ring(*a).cmp(&ring(*b)).then(loads[*a].total_cmp(&loads[*b])))
}

/// The loads above which calls are dropped. Of regions that are short of capacity, they are this much lower.
fn ceilings(policy: &RingsPolicy, short: Option<(&[bool], f64)>, regions: usize) -> Vec<f64> {
    let lower = |region: usize| short.map_or(0.0, |(short, by)| if short[region] { by } else { 0.0 });
    (0..regions).map(|region| policy.ceiling() - lower(region)).collect()
}

/// The regions that are full while calls are dropped. Only of those a target may drop more than it has to.
fn is_short(policy: &RingsPolicy, problem: &Problem<'_>, least: &Flows) -> Vec<bool> {
    let drops = least.dropped.iter().any(|rate| *rate > 0.0);
    problem.loads(least).iter().map(|load| drops && *load >= policy.ceiling() - TOLERANCE).collect()
}

/// The regions that calls may use of which the tables drop some: they stay short until there is room below the last threshold for
/// all, or calls would be dropped and served again for ever.
fn stays_short(policy: &RingsPolicy, problem: &Problem<'_>, tables: &Tables) -> Vec<bool> {
    let drops = |source: &usize| (0..problem.classes).any(|class| tables.of(*source, class).dropped > 0);
    // Callers that vanished with their region make no calls.
    let is_present = |source: &usize| !problem.is_absent(*source);
    let dropping: Vec<usize> = (0..problem.regions).filter(is_present).filter(drops).collect();
    let may_use = |source: usize, to: usize| source == to || problem.ring(source, to) <= policy.rings.len();
    (0..problem.regions).map(|to| dropping.iter().any(|source| may_use(*source, to))).collect()
}

/// Keeps calls of a source away as far as a shift aims to move them. In a shortage lower ceilings drop more calls of others,
/// which would leave it room at home: its calls would come back and leave again for ever.
fn keep_away(problem: &Problem<'_>, aim: &Flows, back: &mut Flows) {
    for source in 0..problem.regions {
        for class in 0..problem.classes {
            if back.get(source, class, source) > aim.get(source, class, source) {
                back.set_shares((source, class), problem.demand(source, class), aim);
            }
        }
    }
}

/// What would have to stay away for calls to return.
fn back(
    policy: &RingsPolicy,
    (problem, peaks): (&Problem<'_>, &Problem<'_>),
    state: &PlannerState,
    (mut short, stays_short): (Vec<bool>, &[bool]),
) -> Flows {
    let by = policy.margin + policy.hysteresis;
    if state.tables.drops() {
        // Calls are served again once there is room for the greatest demand of late.
        let least = peaks.fill(&policy.thresholds(0.0), &ceilings(policy, None, problem.regions));
        short = is_short(policy, peaks, &least);
        short.iter_mut().zip(stays_short).for_each(|(short, stays)| *short |= stays);
    }
    // Dropped calls cost more than those that travel: they return as soon as their room is no noise of the reports.
    let dropping = policy.margin + (DROPS_BAND * problem.demand_error()).clamp(DEAD_BAND, policy.hysteresis);
    let (thresholds, ceilings) =
        (policy.thresholds(by), ceilings(policy, Some((&short, dropping)), problem.regions));
    let by_peaks = peaks.fill(&thresholds, &ceilings);
    let mut back = problem.fill(&thresholds, &ceilings);
    for source in 0..problem.regions {
        let rows = 0..problem.classes;
        // Calls that are dropped are served again as soon as there is room; and peaks of different moments together may be
        // more than there is room for, which is no reason to drop any.
        let drops = rows.clone().any(|class| {
            state.tables.of(source, class).dropped > 0 || by_peaks.dropped[by_peaks.row(source, class)] > 0.0
        });
        if !drops {
            rows.for_each(|class| back.set_shares((source, class), problem.demand(source, class), &by_peaks));
        }
    }
    back
}
