use super::{
    plan::Plan,
    problem::{Caller, Problem},
};
use crate::share_tables::{ClassShares, RegionTable, Tables};

impl Plan {
    /// The plan as tables of one service, whose classes are these nodes, the most important first.
    ///
    /// A table has one row for a source region and class, whoever calls: edges count by their calls. Where there are none now, the row is that
    /// of the first edge, or leads to the nearest region. Calls that were not admitted are dropped.
    pub fn tables(&self, problem: &Problem, nodes: &[usize]) -> Tables {
        let class = |source: usize, node: usize| self.class_shares(problem, source, node);
        let source =
            |source: usize| RegionTable { classes: nodes.iter().map(|node| class(source, *node)).collect() };
        Tables { sources: (0..problem.regions).map(source).collect() }
    }

    fn class_shares(&self, problem: &Problem, source: usize, node: usize) -> ClassShares {
        let mut rates = vec![0.0; problem.regions];
        let mut unused = vec![0.0; problem.regions];
        let mut dropped = 0.0;
        let inbound = problem.edges.iter().enumerate().filter(|(_, edge)| edge.callee == node);
        for (number, edge) in inbound {
            let calls = self.calls[number * problem.regions + source];
            let is_first = unused.iter().all(|share| *share == 0.0);
            for (to, share) in self.shares.row(number, source) {
                rates[usize::from(*to)] += calls * share;
                unused[usize::from(*to)] += if is_first { *share } else { 0.0 };
            }
            if let Caller::Clients { demand, .. } = &edge.caller {
                dropped += demand[source] * (1.0 - self.admitted[number]);
            }
        }
        let total = rates.iter().sum::<f64>() + dropped;
        let (shares, dropped) = match total > 0.0 {
            true => (rates.iter().map(|rate| rate / total).collect(), dropped / total),
            false => (unused, 0.0),
        };
        ClassShares::round(&shares, dropped, nearest(problem, source, problem.nodes[node].service))
    }
}

/// The nearest region with servers; a valid problem has one.
fn nearest(problem: &Problem, source: usize, service: usize) -> usize {
    let trip = |region: usize| problem.round_trips[source * problem.regions + region];
    let order =
        |a: &usize, b: &usize| (*a != source).cmp(&(*b != source)).then(trip(*a).total_cmp(&trip(*b)));
    problem.placed(service).min_by(order).unwrap_or(source)
}
