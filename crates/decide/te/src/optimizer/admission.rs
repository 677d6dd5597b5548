//! Which demand fits, decided before routing by priority.
//!
//! Whatever the routing, a service has to work on the same calls, so that what fits depends on sums over regions: a row for each service, and one for
//! each pool that given shares lead to. A price for each dropped call inside the routing was rejected: it took 2,000 times as long, and a class with
//! heavy calls lost to one of less importance with light ones.

use super::{
    problem::{Caller, Problem},
    topological_order::{Order, ROUNDS, SETTLED, order},
    validation::ProblemError,
};

/// A row has no room when less than this part of what is asked of it is left.
const FULL: f64 = 1e-9;

/// The demand that is served.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admission {
    /// Share of each edge's demand, from 0 to 1; 1 for calls between nodes. Every region sheds the same share.
    pub shares: Vec<f64>,
    /// Work per second that lacks room, by service, over all regions: what an autoscaler would have to add.
    pub lacking: Vec<f64>,
}

/// Admits demand level by level, the most important first. Within a level all demand gets the same share, until a service that it needs is full.
///
/// # Errors
/// The problem is not valid.
pub fn admit(problem: &Problem) -> Result<Admission, ProblemError> {
    problem.validate()?;
    let demands = demands(problem, &order(problem)?);
    let room = rooms(problem);
    let mut lacking = vec![0.0; problem.services.len()];
    for (service, lacking) in lacking.iter_mut().enumerate() {
        let asked: f64 = demands.iter().map(|demand| demand.work[service]).sum();
        *lacking = (asked - room[service]).max(0.0);
    }
    let mut filling = Filling { demands, room, shares: vec![1.0; problem.edges.len()] };
    let mut levels: Vec<u8> = filling.demands.iter().map(|demand| demand.priority).collect();
    levels.sort_unstable();
    levels.dedup();
    levels.into_iter().for_each(|level| filling.fill_level(level));
    Ok(Admission { shares: filling.shares, lacking })
}

/// Demand of one edge.
struct Demand {
    edge: usize,
    priority: u8,
    /// Work per second by row.
    work: Vec<f64>,
}

/// Rows: services, then services × regions.
fn rooms(problem: &Problem) -> Vec<f64> {
    let admission = problem.preferences.admission;
    let capacity = |service: usize| problem.services[service].capacity.iter().map(|one| one * admission);
    let services = 0..problem.services.len();
    services.clone().map(|service| capacity(service).sum()).chain(services.flat_map(capacity)).collect()
}

fn demands(problem: &Problem, order: &Order) -> Vec<Demand> {
    let mut inbound = vec![Vec::new(); problem.nodes.len()];
    for (at, edge) in problem.edges.iter().enumerate() {
        inbound[edge.callee].push(at);
    }
    let demand = |(at, edge): (usize, &super::problem::Edge)| match &edge.caller {
        Caller::Clients { demand, priority } => {
            let rate = demand.iter().sum();
            Some(Demand { edge: at, priority: *priority, work: work(problem, (order, &inbound), at, rate) })
        }
        Caller::Node { .. } => None,
    };
    problem.edges.iter().enumerate().filter_map(demand).collect()
}

/// Work by row that calls of one edge cause.
fn work(
    problem: &Problem,
    (order, inbound): (&Order, &[Vec<usize>]),
    entry: usize,
    clients: f64,
) -> Vec<f64> {
    let services = problem.services.len();
    let mut rates = vec![0.0; problem.nodes.len()];
    let mut calls = vec![0.0; problem.edges.len()];
    for _ in 0..if order.cut.is_empty() { 1 } else { ROUNDS } {
        let mut are_settled = true;
        for node in &order.nodes {
            for at in &inbound[*node] {
                calls[*at] = match problem.edges[*at].caller {
                    Caller::Clients { .. } if *at == entry => clients,
                    Caller::Clients { .. } => 0.0,
                    Caller::Node { node, calls } => calls * rates[node],
                };
            }
            let now: f64 = inbound[*node].iter().map(|at| calls[*at]).sum();
            are_settled &= (now - rates[*node]).abs() <= SETTLED * now;
            rates[*node] = now;
        }
        if are_settled {
            break;
        }
    }
    let mut work = vec![0.0; services + services * problem.regions];
    for (edge, calls) in problem.edges.iter().zip(calls).filter(|(_, calls)| *calls > 0.0) {
        let node = &problem.nodes[edge.callee];
        work[node.service] += node.work * calls;
        // Where rows differ by source, the load of a pool depends on the routing before it.
        if let [row] = &edge.given[..] {
            let first = services + node.service * problem.regions;
            for (work, share) in work[first..].iter_mut().zip(row) {
                *work += node.work * calls * share;
            }
        }
    }
    work
}

struct Filling {
    demands: Vec<Demand>,
    room: Vec<f64>,
    shares: Vec<f64>,
}

impl Filling {
    fn fill_level(&mut self, priority: u8) {
        let is_of_level = |at: &usize| self.demands[*at].priority == priority;
        let level: Vec<usize> = (0..self.demands.len()).filter(is_of_level).collect();
        let mut rising = level.clone();
        let mut share = 0.0;
        while !rising.is_empty() && share < 1.0 {
            let asked = self.asked(&rising);
            let part = asked.iter().zip(&self.room).filter(|(asked, _)| **asked > 0.0);
            let fits = part.map(|(asked, room)| room.max(0.0) / asked).fold(1.0 - share, f64::min);
            share += fits;
            self.room.iter_mut().zip(&asked).for_each(|(room, asked)| *room -= fits * asked);
            rising.iter().for_each(|at| self.shares[self.demands[*at].edge] = share);
            let is_full: Vec<bool> = self
                .room
                .iter()
                .zip(&asked)
                .map(|(room, asked)| *room <= FULL * asked && *asked > 0.0)
                .collect();
            let before = rising.len();
            rising.retain(|at| {
                self.demands[*at].work.iter().zip(&is_full).all(|(work, full)| *work <= 0.0 || !full)
            });
            if rising.len() == before {
                break;
            }
        }
    }

    fn asked(&self, rising: &[usize]) -> Vec<f64> {
        let mut asked = vec![0.0; self.room.len()];
        for at in rising {
            asked.iter_mut().zip(&self.demands[*at].work).for_each(|(sum, work)| *sum += work);
        }
        asked
    }
}
