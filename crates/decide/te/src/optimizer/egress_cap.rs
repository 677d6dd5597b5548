//! The cap on what egress costs: a price of egress is looked for at which the plan keeps to it.

use super::{
    arc_flows::{Arcs, Flow},
    line_search::combine,
    plan::Plan,
    problem::Problem,
    solver::{Effort, Progress, Solver},
};

/// Prices of the bracket end within this factor.
const BRACKET: f64 = 1.02;
/// Maximum number of solutions at prices within the bracket.
const SOLUTIONS: usize = 16;
/// At this multiple of the latency's worth, egress alone decides.
const ONLY_EGRESS: f64 = 100.0;
/// Where egress has no price, the least one is this part of the highest.
const LEAST_PRICE: f64 = 1e-6;
/// How far beside the last price the next one is looked for.
const NEAR: f64 = 1.2;

pub(super) struct Capped<'a> {
    problem: &'a Problem,
    cap: f64,
    effort: Effort,
    go_on: &'a mut dyn FnMut(&Progress) -> bool,
    /// Whether `go_on` has said no: what is found by then is mixed.
    is_stopped: bool,
}

impl<'a> Capped<'a> {
    /// A search for a plan with at most `cap` dollars per second.
    pub(super) fn new(
        problem: &'a Problem,
        cap: f64,
        effort: Effort,
        go_on: &'a mut dyn FnMut(&Progress) -> bool,
    ) -> Self {
        Self { problem, cap, effort, go_on, is_stopped: false }
    }

    /// A plan that keeps to the cap, from one that does not; `near` is the price of the last plan. If even the least egress is above
    /// the cap, the plan has that.
    pub(super) fn plan(mut self, low: Solver, near: f64) -> Plan {
        let lowest = low.network.ms_per_dollar;
        let objective = low.best.flow.objective(&low.network);
        let highest = ONLY_EGRESS * objective / self.cap.max(1e-3 * low.egress());
        let mut bracket = Bracket { low, high: None };
        if near > lowest {
            self.narrow(near * NEAR, &mut bracket);
        }
        if bracket.high.is_some() {
            self.narrow(near / NEAR, &mut bracket);
        }
        let high = match bracket.high.take() {
            Some(high) => high,
            None => self.solve(&bracket.low, highest),
        };
        if high.egress() > self.cap {
            return self.priced_as_asked(&high, high.best.arcs.clone(), high.best.flow.clone());
        }
        self.bisect(bracket.low, high)
    }

    fn bisect(&mut self, mut low: Solver, mut high: Solver) -> Plan {
        for _ in 0..SOLUTIONS {
            let (from, to) = (low.network.ms_per_dollar, high.network.ms_per_dollar);
            if to <= from * BRACKET || self.is_stopped {
                break;
            }
            let solved = self.solve(&high, (from.max(to * LEAST_PRICE) * to).sqrt());
            if solved.egress() > self.cap {
                low = solved;
            } else {
                high = solved;
            }
        }
        self.mix(&low, &high)
    }

    /// Solves at a price, and replaces the end of the bracket on whose side of the cap it is.
    fn narrow(&mut self, price: f64, bracket: &mut Bracket) {
        let solved = self.solve(bracket.high.as_ref().unwrap_or(&bracket.low), price);
        if solved.egress() > self.cap {
            bracket.low = solved;
        } else {
            bracket.high = Some(solved);
        }
    }

    fn solve(&mut self, from: &Solver, price: f64) -> Solver {
        let mut solver = from.with_price(price);
        let Self { go_on, is_stopped, .. } = self;
        solver.run(self.effort, &mut |progress| {
            *is_stopped = *is_stopped || !go_on(progress);
            !*is_stopped
        });
        solver
    }

    /// The flow between both that is at the cap. Its cost is at most that between theirs.
    fn mix(&self, low: &Solver, high: &Solver) -> Plan {
        let (above, below) = (low.egress(), high.egress());
        let part = if above > below { ((above - self.cap) / (above - below)).clamp(0.0, 1.0) } else { 1.0 };
        let (mut arcs, target) = union(&low.best.arcs, &high.best.arcs);
        let mut network = high.network.clone();
        let (mut flow, mut there) = (Flow::default(), Flow::default());
        arcs.settle(&mut network, &mut flow);
        arcs.propagate(&network, &target, &mut there);
        combine(&mut arcs, &mut flow, (&target, &there), part);
        self.priced_as_asked(high, arcs, flow)
    }

    /// The plan with its objective at the price that was asked for, and the bound that follows from the price that was found.
    fn priced_as_asked(&self, solver: &Solver, mut arcs: Arcs, mut flow: Flow) -> Plan {
        let mut network = solver.network.clone();
        let found = network.ms_per_dollar;
        network.ms_per_dollar = self.problem.preferences.ms_per_dollar();
        arcs.renew_costs(&network);
        arcs.settle(&mut network, &mut flow);
        let bound =
            solver.bound - (found - network.ms_per_dollar) * self.cap.max(arcs.egress(&network, &flow));
        let plan = Plan::new(&network, &arcs, &flow);
        Plan { bound: bound.max(0.0), iterations: solver.iterations, ms_per_dollar: found, ..plan }
    }
}

/// Solutions on both sides of the cap.
struct Bracket {
    low: Solver,
    high: Option<Solver>,
}

/// The arcs of both, with the shares of the first, and the shares of the second.
fn union(first: &Arcs, second: &Arcs) -> (Arcs, Vec<f64>) {
    let mut arcs = Arcs { offsets: vec![0], ..Arcs::default() };
    let mut target = Vec::new();
    for block in 0..first.offsets.len() - 1 {
        let start = arcs.to.len();
        for arc in first.range(block) {
            arcs.push(first.to[arc], first.cost[arc], first.share[arc]);
            target.push(0.0);
        }
        for arc in second.range(block) {
            match (start..arcs.to.len()).find(|at| arcs.to[*at] == second.to[arc]) {
                Some(at) => target[at] = second.share[arc],
                None => {
                    arcs.push(second.to[arc], second.cost[arc], 0.0);
                    target.push(second.share[arc]);
                }
            }
        }
        arcs.end_block();
    }
    (arcs, target)
}
