//! The order of the graph: callers before callees. Cycles are cut at their smallest edge, the one with the fewest calls per second.

use super::{
    problem::{Caller, Problem},
    validation::ProblemError,
};

/// Rounds until rates in cycles have settled: enough for a gain of 0.98. Rounds in the order of the graph settle at least as fast as these
/// (Stein and Rosenberg 1948), so that admission and plans follow each cycle that is accepted to its end.
pub(super) const ROUNDS: usize = 2_000;
/// Rates have settled when none changes by more than this share.
pub(super) const SETTLED: f64 = 1e-9;

/// Nodes in the order of calls.
#[derive(Debug)]
pub(super) struct Order {
    /// Nodes, callers first.
    pub(super) nodes: Vec<usize>,
    /// Edges that close a cycle, ascending.
    pub(super) cut: Vec<usize>,
}

/// Calls per second of each node over all regions. Routing does not change them.
pub(super) fn total_rates(problem: &Problem) -> Result<Vec<f64>, ProblemError> {
    let clients = rates_of_clients(problem);
    let mut rates = clients.clone();
    for _ in 0..ROUNDS {
        let mut next = clients.clone();
        for edge in &problem.edges {
            if let Caller::Node { node, calls } = edge.caller {
                next[edge.callee] += calls * rates[node];
            }
        }
        // Before the comparison, which an infinite change would pass.
        if let Some(endless) = next.iter().position(|rate| !rate.is_finite()) {
            return Err(ProblemError::LoopGain(endless));
        }
        let is_settled = |(before, now): (&f64, &f64)| (now - before).abs() <= SETTLED * now;
        let are_settled = rates.iter().zip(&next).all(is_settled);
        rates = next;
        if are_settled {
            return Ok(rates);
        }
    }
    let greatest = (0..rates.len()).max_by(|a, b| rates[*a].total_cmp(&rates[*b]));
    Err(ProblemError::LoopGain(greatest.unwrap_or(0)))
}

fn rates_of_clients(problem: &Problem) -> Vec<f64> {
    let mut rates = vec![0.0; problem.nodes.len()];
    for edge in &problem.edges {
        if let Caller::Clients { demand, .. } = &edge.caller {
            rates[edge.callee] += demand.iter().sum::<f64>();
        }
    }
    rates
}

/// Orders nodes by Kahn's algorithm. Where only cycles are left, one of them loses its smallest edge.
///
/// An order that cuts the fewest calls over all cycles together was rejected: which edges it cuts depends on the whole graph, and an operator
/// could not tell why.
pub(super) fn order(problem: &Problem) -> Result<Order, ProblemError> {
    let rates = total_rates(problem)?;
    let mut sort = Sort::new(problem);
    while sort.nodes.len() < problem.nodes.len() {
        sort.take_ready();
        if let Some(start) = sort.waiting.iter().position(|waiting| *waiting > 0) {
            let cycle = sort.cycle_before(start);
            let rate = |edge: usize| match problem.edges[edge].caller {
                Caller::Node { node, calls } => calls * rates[node],
                Caller::Clients { .. } => f64::INFINITY,
            };
            let smallest = cycle.into_iter().min_by(|a, b| rate(*a).total_cmp(&rate(*b)));
            // A node that waits has a caller that waits, so that there is a cycle before it.
            smallest.into_iter().for_each(|edge| sort.cut(edge));
        }
    }
    sort.cut.sort_unstable();
    Ok(Order { nodes: sort.nodes, cut: sort.cut })
}

struct Sort<'a> {
    problem: &'a Problem,
    inbound: Vec<Vec<usize>>,
    outbound: Vec<Vec<usize>>,
    /// Edges into each node from nodes that are not ordered.
    waiting: Vec<usize>,
    is_cut: Vec<bool>,
    ready: Vec<usize>,
    nodes: Vec<usize>,
    cut: Vec<usize>,
}

impl<'a> Sort<'a> {
    fn new(problem: &'a Problem) -> Self {
        let count = problem.nodes.len();
        let (mut inbound, mut outbound) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        for (at, edge) in problem.edges.iter().enumerate() {
            if let Caller::Node { node, .. } = edge.caller {
                inbound[edge.callee].push(at);
                outbound[node].push(at);
            }
        }
        let waiting: Vec<usize> = inbound.iter().map(Vec::len).collect();
        let ready = (0..count).rev().filter(|node| waiting[*node] == 0).collect();
        let is_cut = vec![false; problem.edges.len()];
        Self { problem, inbound, outbound, waiting, is_cut, ready, nodes: Vec::new(), cut: Vec::new() }
    }

    fn take_ready(&mut self) {
        while let Some(node) = self.ready.pop() {
            self.nodes.push(node);
            for edge in std::mem::take(&mut self.outbound[node]) {
                if !self.is_cut[edge] {
                    self.arrive(self.problem.edges[edge].callee);
                }
            }
        }
    }

    fn arrive(&mut self, node: usize) {
        self.waiting[node] -= 1;
        if self.waiting[node] == 0 {
            self.ready.push(node);
        }
    }

    fn cut(&mut self, edge: usize) {
        self.is_cut[edge] = true;
        self.cut.push(edge);
        self.arrive(self.problem.edges[edge].callee);
    }

    /// The edges of a cycle, found by a walk from callee to caller.
    fn cycle_before(&self, start: usize) -> Vec<usize> {
        let mut seen_at = vec![usize::MAX; self.waiting.len()];
        let (mut walk, mut node) = (Vec::new(), start);
        while seen_at[node] == usize::MAX {
            seen_at[node] = walk.len();
            let waits_for = |edge: &&usize| !self.is_cut[**edge] && self.waiting[self.caller(**edge)] > 0;
            let Some(edge) = self.inbound[node].iter().find(waits_for) else { break };
            walk.push(*edge);
            node = self.caller(*edge);
        }
        walk.split_off(seen_at[node].min(walk.len()))
    }

    fn caller(&self, edge: usize) -> usize {
        match self.problem.edges[edge].caller {
            Caller::Node { node, .. } => node,
            // Only edges between nodes are listed as inbound.
            Caller::Clients { .. } => self.problem.edges[edge].callee,
        }
    }
}
