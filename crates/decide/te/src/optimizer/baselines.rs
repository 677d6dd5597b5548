//! What the optimizer is judged against.

use super::{
    admission::admit,
    arc_flows::{Arcs, Flow, NO_RATE},
    compiled_problem::{Network, Origin},
    plan::Plan,
    problem::{Caller, Problem},
    validation::ProblemError,
    waterfall::{Unit, fill, rooms},
};

/// Waterfall: each region serves its own calls up to `load` of its capacity, and the rest goes to the nearest regions with room (SLATE Appendix A).
/// Capacity is counted in calls per second of the class whose calls are heaviest. Nothing is shed.
///
/// # Errors
/// The problem is not valid.
pub fn waterfall(problem: &Problem, load: f64) -> Result<Plan, ProblemError> {
    problem.validate()?;
    let admitted = vec![1.0; problem.edges.len()];
    let mut network = Network::new(problem, &admitted)?;
    let heaviest = |service: usize| {
        let works = problem.nodes.iter().filter(|node| node.service == service).map(|node| node.work);
        works.fold(0.0, f64::max).max(f64::MIN_POSITIVE)
    };
    let heaviest: Vec<f64> = (0..problem.services.len()).map(heaviest).collect();
    let mut room = rooms(&network, load);
    network.each_pool(|at, pool| room[pool] /= heaviest[at / problem.regions]);
    let arcs = fill(&network, &mut room, Unit::Calls);
    let mut flow = Flow::default();
    arcs.settle(&mut network, &mut flow);
    Ok(Plan { admitted, ..Plan::new(&network, &arcs, &flow) })
}

/// Ring by criticality: capacity is shared by importance. Demand that does not fit is shed, the least important first. Then the
/// most important calls find regions first, their own and then the nearest, up to `load` of the capacity; less important ones get what is left.
///
/// # Errors
/// The problem is not valid.
pub fn ring_by_criticality(problem: &Problem, load: f64) -> Result<Plan, ProblemError> {
    let admitted = admit(problem)?.shares;
    let mut network = Network::new(problem, &admitted)?;
    let mut room = rooms(&network, load);
    let mut levels: Vec<u8> = problem.edges.iter().filter_map(|edge| priority(&edge.caller)).collect();
    levels.sort_unstable();
    levels.dedup();
    let mut sum = vec![Vec::new(); network.blocks];
    for level in levels {
        let mut of_level = network.clone();
        for edge in &mut of_level.edges {
            if let Origin::Clients(rates) = &mut edge.origin
                && priority(&problem.edges[edge.number].caller) != Some(level)
            {
                rates.fill(0.0);
            }
        }
        let arcs = fill(&of_level, &mut room, Unit::Work);
        let mut flow = Flow::default();
        arcs.settle(&mut of_level, &mut flow);
        add(&mut sum, &arcs, &flow);
    }
    let arcs = divide(&network, sum);
    let mut flow = Flow::default();
    arcs.settle(&mut network, &mut flow);
    Ok(Plan { admitted, ..Plan::new(&network, &arcs, &flow) })
}

fn priority(caller: &Caller) -> Option<u8> {
    match caller {
        Caller::Clients { priority, .. } => Some(*priority),
        Caller::Node { .. } => None,
    }
}

/// Adds calls per second of each block's destinations.
fn add(sum: &mut [Vec<(u16, f64)>], arcs: &Arcs, flow: &Flow) {
    for (block, row) in sum.iter_mut().enumerate().filter(|(block, _)| flow.inflow[*block] > NO_RATE) {
        for arc in arcs.range(block) {
            let rate = arcs.share[arc] * flow.inflow[block];
            match row.iter_mut().find(|(to, _)| *to == arcs.to[arc]) {
                Some((_, sum)) => *sum += rate,
                None => row.push((arcs.to[arc], rate)),
            }
        }
    }
}

/// Shares by these calls per second; blocks without any lead to the nearest region.
fn divide(network: &Network, mut sum: Vec<Vec<(u16, f64)>>) -> Arcs {
    let mut arcs = Arcs { offsets: vec![0], ..Arcs::default() };
    for edge in &network.edges {
        for (at, source) in edge.sources.iter().enumerate() {
            let source = usize::from(*source);
            let row = &mut sum[edge.first_block + at];
            if row.is_empty() && edge.given.is_empty() {
                let nearest = network.service_of(edge).nearest(source);
                row.extend(nearest.first().map(|to| (*to as u16, 1.0)));
            }
            let total: f64 = row.iter().map(|(_, rate)| rate).sum();
            for (to, rate) in row {
                arcs.push(*to, network.arc_cost(edge, source, usize::from(*to)), *rate / total);
            }
            arcs.end_block();
        }
    }
    arcs
}
