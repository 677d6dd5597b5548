//! The iterations: a pass of prices and a projection, two Newton steps, multipliers. The best plan so far is at hand at any time.

use super::{
    arc_flows::{Arcs, Flow},
    compiled_problem::Network,
    line_search::step,
    newton::newton_target,
    plan::CEILING_TOLERANCE,
    pricing::price,
};

/// Newton steps of an iteration: from the third on, they gain less than a pass of prices.
const NEWTON_STEPS: usize = 2;
/// Sums are formed again after so many iterations, against rounding errors of combined flows.
const FRESH_SUMS: usize = 3;
/// Rates of edges that close cycles have settled when none changes by more than this share.
const SETTLED: f64 = 1e-3;

/// When a solution is good enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// The gap between objective and bound at which it ends, as a part of the objective.
    pub gap: f64,
    /// Maximum number of iterations of one solution. A cap on egress takes up to 18 more solutions, at other prices of egress.
    pub iterations: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { gap: 0.01, iterations: 60 }
    }
}

/// How far a solution is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Iterations that were made.
    pub iterations: usize,
    /// The objective of the best plan.
    pub objective: f64,
    /// No plan is better.
    pub bound: f64,
    /// Whether no pool of the best plan exceeds the ceiling.
    pub is_feasible: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Solver {
    pub(super) network: Network,
    pub(super) bound: f64,
    pub(super) iterations: usize,
    pub(super) best: Best,
    arcs: Arcs,
    flow: Flow,
    damping: f64,
    scale: f64,
}

/// The best flow so far.
#[derive(Clone, Debug)]
pub(super) struct Best {
    pub(super) arcs: Arcs,
    pub(super) flow: Flow,
    score: Score,
}

/// What a flow is worth.
#[derive(Clone, Copy, Debug)]
struct Score {
    objective: f64,
    /// How far the fullest pool is above the ceiling.
    excess: f64,
}

impl Score {
    fn new(network: &Network, flow: &Flow) -> Self {
        Self { objective: flow.objective(network), excess: flow.excess(network) }
    }

    fn is_feasible(self) -> bool {
        self.excess <= CEILING_TOLERANCE
    }

    fn is_better_than(self, other: Self) -> bool {
        match (self.is_feasible(), other.is_feasible()) {
            (true, true) => self.objective < other.objective,
            (false, false) => self.excess < other.excess,
            (is_feasible, _) => is_feasible,
        }
    }
}

impl Solver {
    /// Starts from these arcs; `is_warm` where they are those of a plan for nearly the same problem.
    pub(super) fn new(mut network: Network, arcs: Arcs, is_warm: bool) -> Self {
        let mut flow = Flow::default();
        arcs.settle(&mut network, &mut flow);
        let score = Score::new(&network, &flow);
        let best = Best { arcs: arcs.clone(), flow: flow.clone(), score };
        let damping = if is_warm { 0.1 } else { 1.0 };
        Self { network, bound: 0.0, iterations: 0, best, arcs, flow, damping, scale: 1.0 }
    }

    /// The same flow with another price of egress.
    pub(super) fn with_price(&self, ms_per_dollar: f64) -> Self {
        let mut network = self.network.clone();
        network.ms_per_dollar = ms_per_dollar;
        let mut arcs = self.best.arcs.clone();
        arcs.renew_costs(&network);
        Self { iterations: self.iterations, ..Self::new(network, arcs, true) }
    }

    /// Iterates until the gap is small enough, iterations are used up, or `go_on` says no.
    pub(super) fn run(&mut self, effort: Effort, go_on: &mut dyn FnMut(&Progress) -> bool) {
        for iteration in 1..=effort.iterations {
            if iteration % FRESH_SUMS == 0 {
                self.arcs.propagate(&self.network, &self.arcs.share, &mut self.flow);
            }
            let change = self.iterate(iteration > 1);
            self.iterations += 1;
            let progress = self.progress();
            let gap = (progress.objective - progress.bound) / progress.objective.max(f64::MIN_POSITIVE);
            let is_done = progress.is_feasible && gap <= effort.gap && change < SETTLED;
            if is_done || !go_on(&progress) {
                break;
            }
        }
        if !self.network.cut.is_empty() {
            let Self { network, best, .. } = self;
            best.arcs.settle(network, &mut best.flow);
            best.score = Score::new(network, &best.flow);
        }
    }

    fn progress(&self) -> Progress {
        Progress {
            iterations: self.iterations,
            objective: self.best.score.objective,
            bound: self.bound,
            is_feasible: self.best.score.is_feasible(),
        }
    }

    /// One iteration. Returns the greatest change of the rates of edges that close cycles.
    fn iterate(&mut self, with_newton: bool) -> f64 {
        let priced = price(&self.network, &self.arcs, &self.flow, self.scale);
        self.arcs = priced.arcs;
        let mut change = 0.0;
        if self.network.cut.is_empty() {
            self.bound = self.bound.max(priced.bound);
        } else {
            // The bound is that of the last rates.
            self.bound = priced.bound;
            change = self.network.renew_lagged(&self.flow.arrivals);
            self.arcs.propagate(&self.network, &self.arcs.share, &mut self.flow);
        }
        let part = step(&self.network, &mut self.arcs, &mut self.flow, &priced.target);
        self.scale = match part {
            None => (self.scale * 0.5).max(1e-2),
            Some(part) if part >= 1.0 => (self.scale * 1.3).min(20.0),
            Some(part) if part < 0.3 => (self.scale * 0.6).max(1e-2),
            Some(part) if part < 0.7 => (self.scale * 0.85).max(1e-2),
            Some(_) => self.scale,
        };
        for _ in 0..if with_newton { NEWTON_STEPS } else { 0 } {
            self.newton_step();
        }
        for (pool, work) in self.network.pools.iter_mut().zip(&self.flow.work) {
            pool.update_multipliers(*work);
        }
        self.keep_best();
        change
    }

    fn newton_step(&mut self) {
        let target = newton_target(&self.network, &self.arcs, &self.flow, self.damping);
        let part = step(&self.network, &mut self.arcs, &mut self.flow, &target).unwrap_or(0.0);
        if part >= 1.0 {
            self.damping = (self.damping * 0.4).max(1e-4);
        } else if part < 0.5 {
            self.damping = (self.damping * 2.5).min(10.0);
        }
    }

    fn keep_best(&mut self) {
        let (score, best) = (Score::new(&self.network, &self.flow), self.best.score);
        // With cycles, plans of earlier iterations had other rates.
        let is_renewed = !self.network.cut.is_empty() && (score.is_feasible() || !best.is_feasible());
        if is_renewed || score.is_better_than(best) {
            self.best = Best { arcs: self.arcs.clone(), flow: self.flow.clone(), score };
        }
    }
}
