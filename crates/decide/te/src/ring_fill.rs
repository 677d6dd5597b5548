//! The target of a plan: all calls at home, then from the most loaded region to the least loaded one of the opened
//! rings, until no region is above its threshold or no opened ring has room (ServiceRouter §3.4.1).

mod admission;

use crate::{region_flows::Flows, round_problem::Problem};

/// A step moves this part of a source's calls, the least share that is published. Smaller steps would end in shares
/// that are rounded away.
const STEP: f64 = 0.01;
/// Loads within this of a threshold are at it.
const TOLERANCE: f64 = 1e-9;
/// Maximum number of steps of one pass for each region: a source moves all of its calls in 100.
const STEPS_PER_REGION: usize = 400;

/// What becomes of calls that no region in the rings may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stranded {
    /// Regions that still serve do, though they are drained or too far: that is better than to drop calls.
    Serve,
    /// They count as dropped, so that a drain that would leave them is not begun.
    Drop,
}

/// Fills regions up to these thresholds, one for each ring.
///
/// Pass `r` moves calls of regions above threshold `r`, to regions of rings up to `r + 1` that are below it. So a farther
/// ring gets calls only after all regions of the nearer ones are at the threshold, and no region is filled above a
/// threshold while an opened ring has another one below it.
///
/// Calls are dropped only of regions that would be above their ceiling, whatever the thresholds are: those at which a shift
/// aims, and below which calls return, are lower than the loads that regions can serve. No call is dropped while one of a less
/// important class is served by a region that it could be moved to.
pub(crate) fn fill(problem: &Problem<'_>, thresholds: &[f64], ceilings: &[f64], stranded: Stranded) -> Flows {
    let mut fill = Fill::new(problem, stranded);
    for (ring, threshold) in thresholds.iter().enumerate() {
        fill.place_homeless(ring + 1, *threshold);
        fill.relieve(ring + 1, *threshold);
    }
    let ceiling = thresholds.last().copied().unwrap_or(1.0);
    fill.place_homeless(thresholds.len(), f64::INFINITY);
    if stranded == Stranded::Serve {
        fill.place_stranded();
    }
    fill.level(thresholds.len(), ceiling);
    if stranded == Stranded::Serve {
        fill.recall(thresholds.len(), ceilings);
    }
    // Levelling leaves differences of up to a step, and what is recalled leaves room.
    fill.relieve(thresholds.len(), ceilings.iter().copied().fold(ceiling, f64::max));
    let ceilings = problem.dropping_loads(ceilings);
    fill.shed(&ceilings);
    fill.admit(thresholds.len(), &ceilings);
    fill.flows
}

/// Serves calls that are dropped in place of those of less important classes that are served where they could be moved to. Loads
/// stay as they are.
pub(crate) fn by_importance(problem: &Problem<'_>, flows: Flows, rings: usize) -> Flows {
    if problem.classes == 1 || flows.dropped.iter().all(|rate| *rate <= 0.0) {
        return flows;
    }
    let loads = problem.loads(&flows);
    // Nothing is room: what a return has yet to serve again is for its pace to decide.
    let ceilings: Vec<f64> = loads.iter().map(|load| load - TOLERANCE).collect();
    let homeless = vec![0.0; flows.dropped.len()];
    let mut fill = Fill { problem, flows, loads, homeless, least_keep: f64::MIN_POSITIVE };
    fill.admit(rings, &ceilings);
    fill.flows
}

struct Fill<'a> {
    problem: &'a Problem<'a>,
    flows: Flows,
    loads: Vec<f64>,
    /// Calls per second, by source and class, that have to leave and have no destination yet.
    homeless: Vec<f64>,
    /// A region that keeps this share of its calls serves more of them rather than that they are dropped.
    least_keep: f64,
}

impl<'a> Fill<'a> {
    fn new(problem: &'a Problem<'a>, stranded: Stranded) -> Self {
        let (regions, classes) = (problem.regions, problem.classes);
        let mut flows = Flows::new(regions, classes);
        let mut homeless = vec![0.0; regions * classes];
        for source in 0..regions {
            for class in 0..classes {
                let demand = problem.demand(source, class);
                let kept = (demand * problem.keep[source]).max(problem.pinned(source, class));
                flows.add(source, class, source, kept);
                homeless[source * classes + class] = demand - kept;
            }
        }
        let loads = problem.loads(&flows);
        let least_keep = if stranded == Stranded::Serve { f64::MIN_POSITIVE } else { 1.0 };
        Self { problem, flows, loads, homeless, least_keep }
    }

    /// The least loaded region of the rings up to `ring` around `from` that is below `limit`, with the first of equals.
    fn least_loaded(&self, from: usize, ring: usize, limit: f64) -> Option<usize> {
        let within = |to: &usize| self.problem.rings.ring(from, *to).is_some_and(|found| found <= ring);
        (0..self.problem.regions)
            .filter(|to| *to != from && self.problem.accepts(*to))
            .filter(|to| self.loads[*to] < limit - TOLERANCE)
            .filter(within)
            .min_by(|a, b| self.loads[*a].total_cmp(&self.loads[*b]))
    }

    /// Adds calls to a destination.
    fn send(&mut self, (source, class): (usize, usize), to: usize, rate: f64) {
        self.flows.add(source, class, to, rate);
        self.loads[to] += rate * self.problem.cost[to];
    }

    /// How many calls per second a region takes up to a limit.
    fn room(&self, to: usize, limit: f64) -> f64 {
        ((limit - self.loads[to]) / self.problem.cost[to]).max(0.0)
    }

    /// Places calls that have no region of their own, the most important class first. Sources take turns, so that one
    /// of them does not fill the regions of the others.
    fn place_homeless(&mut self, ring: usize, limit: f64) {
        for class in 0..self.problem.classes {
            let mut is_placing = true;
            while is_placing {
                is_placing = false;
                for source in 0..self.problem.regions {
                    is_placing |= self.place_step((source, class), ring, limit);
                }
            }
        }
    }

    fn place_step(&mut self, (source, class): (usize, usize), ring: usize, limit: f64) -> bool {
        let at = self.flows.row(source, class);
        let left = self.homeless[at];
        if left <= 0.0 {
            return false;
        }
        let Some(to) = self.least_loaded(source, ring, limit) else { return false };
        let step = self.problem.demand(source, class) * STEP;
        let rate = left.min(step).min(self.room(to, limit));
        self.send((source, class), to, rate);
        // What is left after the last whole step is a rounding error.
        self.homeless[at] = if left - rate < step * TOLERANCE { 0.0 } else { left - rate };
        rate > 0.0
    }

    /// Places calls that no region in the rings takes: at home, if anything serves there, and else at the least loaded region
    /// of all, one that is not drained first.
    fn place_stranded(&mut self) {
        for source in 0..self.problem.regions {
            for class in 0..self.problem.classes {
                let at = self.flows.row(source, class);
                let step = self.problem.demand(source, class) * STEP;
                while self.homeless[at] > 0.0 {
                    let Some(to) = self.last_resort(source) else { break };
                    let left = self.homeless[at];
                    let rate = if left - step < step * TOLERANCE { left } else { step };
                    self.send((source, class), to, rate);
                    self.homeless[at] = left - rate;
                }
            }
        }
    }

    fn last_resort(&self, source: usize) -> Option<usize> {
        if self.problem.serves(source) {
            return Some(source);
        }
        let drained = |region: usize| !self.problem.accepts(region);
        (0..self.problem.regions)
            .filter(|to| self.problem.serves(*to))
            .min_by(|a, b| drained(*a).cmp(&drained(*b)).then(self.loads[*a].total_cmp(&self.loads[*b])))
    }

    /// Moves calls of regions above the threshold, the most loaded first.
    fn relieve(&mut self, ring: usize, threshold: f64) {
        let mut is_stuck = vec![false; self.problem.regions];
        for _ in 0..self.problem.regions * STEPS_PER_REGION {
            let above = |region: &usize| !is_stuck[*region] && self.loads[*region] > threshold + TOLERANCE;
            let most = (0..self.problem.regions)
                .filter(above)
                .max_by(|a, b| self.loads[*a].total_cmp(&self.loads[*b]).then(b.cmp(a)));
            let Some(from) = most else { return };
            is_stuck[from] = !self.relieve_step(from, ring, threshold);
        }
    }

    fn relieve_step(&mut self, from: usize, ring: usize, threshold: f64) -> bool {
        let Some(to) = self.least_loaded(from, ring, threshold) else { return false };
        let excess = (self.loads[from] - threshold) / self.problem.cost[from];
        let rate = excess.min(self.problem.offered(from) * STEP).min(self.room(to, threshold));
        self.move_home_calls(from, to, rate)
    }

    /// Moves calls that a region serves for itself, the lowest class first.
    fn move_home_calls(&mut self, from: usize, to: usize, rate: f64) -> bool {
        for class in (0..self.problem.classes).rev() {
            let movable = self.flows.get(from, class, from) - self.problem.pinned(from, class);
            let rate = rate.min(movable);
            if rate > 0.0 {
                self.send((from, class), from, -rate);
                self.send((from, class), to, rate);
                return true;
            }
        }
        false
    }

    /// Where capacity is short, levels the loads above the ceiling.
    fn level(&mut self, ring: usize, ceiling: f64) {
        let mut is_stuck = vec![false; self.problem.regions];
        for _ in 0..self.problem.regions * STEPS_PER_REGION {
            let above = |region: &usize| !is_stuck[*region] && self.loads[*region] > ceiling + TOLERANCE;
            let most = (0..self.problem.regions)
                .filter(above)
                .max_by(|a, b| self.loads[*a].total_cmp(&self.loads[*b]).then(b.cmp(a)));
            let Some(from) = most else { return };
            is_stuck[from] = !self.level_step(from, ring);
        }
    }

    fn level_step(&mut self, from: usize, ring: usize) -> bool {
        let Some(to) = self.least_loaded(from, ring, self.loads[from]) else { return false };
        let costs = self.problem.cost[from] + self.problem.cost[to];
        let even = (self.loads[from] - self.loads[to]) / costs;
        let step = self.problem.offered(from) * STEP;
        // Less than a step would go back and forth.
        even >= step && self.move_home_calls(from, to, step)
    }

    /// Calls that a drain has moved, or has yet to give back, stay at home as far as there is room, rather than that any are
    /// dropped. A region whose drain has ended keeps none: its servers may be about to stop.
    fn recall(&mut self, ring: usize, ceilings: &[f64]) {
        let regions = 0..self.problem.regions;
        let keep = |source: &usize| self.problem.keep[*source];
        let partly: Vec<usize> =
            regions.clone().filter(|source| keep(source) > 0.0 && keep(source) < 1.0).collect();
        // What one region lacks is no room for another: each has as many calls brought back as it has too many now.
        let above = |region: usize| (self.loads[region] - ceilings[region]) / self.problem.cost[region];
        let excess: Vec<f64> = regions.clone().map(above).collect();
        for (full, excess) in excess.into_iter().enumerate().filter(|(_, excess)| *excess > 0.0) {
            // Room elsewhere is of use where calls of the full region may go.
            let within = |to: usize| self.problem.rings.ring(full, to).is_some_and(|found| found <= ring);
            let takes = |to: &usize| *to != full && self.problem.accepts(*to) && within(*to);
            let others: Vec<usize> = regions.clone().filter(takes).collect();
            let mut left = excess;
            for from in std::iter::once(full).chain(others) {
                for source in partly.iter().filter(|source| **source != from) {
                    left -= self.bring_back(*source, from, (left, ceilings[*source]));
                }
            }
        }
    }

    /// Moves at most this many calls of a source home from a region, up to a limit there; returns how many.
    fn bring_back(&mut self, source: usize, from: usize, (most, limit): (f64, f64)) -> f64 {
        let mut moved = 0.0;
        for class in 0..self.problem.classes {
            let there = self.flows.get(source, class, from);
            let rate = (most - moved).min(there).min(self.room(source, limit));
            if rate > 0.0 {
                self.send((source, class), from, -rate);
                self.send((source, class), source, rate);
                moved += rate;
            }
        }
        moved
    }

    /// Drops calls at regions above their ceiling, those of the lowest class first, and those that have no region at all.
    fn shed(&mut self, ceilings: &[f64]) {
        for (dropped, homeless) in self.flows.dropped.iter_mut().zip(&self.homeless) {
            *dropped += homeless;
        }
        for (region, ceiling) in ceilings.iter().enumerate() {
            for class in (0..self.problem.classes).rev() {
                if self.loads[region] > ceiling + TOLERANCE {
                    self.shed_class(region, class, *ceiling);
                }
            }
        }
    }

    fn shed_class(&mut self, region: usize, class: usize, ceiling: f64) {
        let excess = (self.loads[region] - ceiling) / self.problem.cost[region];
        self.drop_calls(region, class, excess);
    }

    /// Drops so many calls of a class that a region serves, of each source the same part.
    fn drop_calls(&mut self, region: usize, class: usize, rate: f64) {
        let rates: Vec<f64> =
            (0..self.problem.regions).map(|source| self.flows.get(source, class, region)).collect();
        let total: f64 = rates.iter().sum();
        if total <= 0.0 {
            return;
        }
        let part = (rate / total).min(1.0);
        for (source, rate) in rates.into_iter().enumerate() {
            self.send((source, class), region, -rate * part);
            let at = self.flows.row(source, class);
            self.flows.dropped[at] += rate * part;
        }
    }
}
