//! Problems of the tests.

use fairmesh_te::optimizer::{
    Caller, Edge, Effort, Node, Plan, Preferences, Problem, ServicePools, optimize,
};

/// OR, UT, IOW, SC of the paper, in milliseconds; it leaves out UT–SC, which the triangle inequality puts between 36 and 55.
pub(crate) const PAPER_TRIPS: [[f64; 4]; 4] =
    [[0.0, 30.0, 37.0, 66.0], [30.0, 0.0, 20.0, 50.0], [37.0, 20.0, 0.0, 35.0], [66.0, 50.0, 35.0, 0.0]];

/// A preference for latency alone, with a ceiling that no case touches.
pub(crate) fn latency_alone() -> Preferences {
    Preferences { dollars_per_ms: f64::INFINITY, egress_cap: None, ceiling: 0.99, admission: 0.99 }
}

/// One service in every region that clients call with one class.
pub(crate) fn one_service(trips: &[Vec<f64>], demand: &[f64], capacity: f64, sensitivity: f64) -> Problem {
    let regions = demand.len();
    Problem {
        regions,
        round_trips: trips.concat(),
        egress_prices: vec![0.0; regions * regions],
        services: vec![ServicePools {
            capacity: vec![capacity; regions],
            sensitivity,
            ..ServicePools::default()
        }],
        nodes: vec![Node { service: 0, work: 1.0, latency: 0.0 }],
        corrections: Vec::new(),
        edges: vec![clients(demand, 0, 0)],
        preferences: latency_alone(),
    }
}

pub(crate) fn paper(demand: [f64; 4], sensitivity: f64) -> Problem {
    let trips: Vec<Vec<f64>> = PAPER_TRIPS.iter().map(|row| row.to_vec()).collect();
    one_service(&trips, &demand, 1_000.0, sensitivity)
}

pub(crate) fn clients(demand: &[f64], callee: usize, priority: u8) -> Edge {
    let caller = Caller::Clients { demand: demand.to_vec(), priority };
    Edge { caller, callee, request_bytes: 0.0, response_bytes: 0.0, given: Vec::new() }
}

pub(crate) fn calls(node: usize, calls: f64, callee: usize) -> Edge {
    let caller = Caller::Node { node, calls };
    Edge { caller, callee, request_bytes: 0.0, response_bytes: 0.0, given: Vec::new() }
}

/// Distances along links of a graph.
pub(crate) fn distances(regions: usize, links: &[(usize, usize, f64)]) -> Vec<Vec<f64>> {
    let mut trips = vec![vec![f64::INFINITY; regions]; regions];
    (0..regions).for_each(|at| trips[at][at] = 0.0);
    for (from, to, length) in links {
        trips[*from][*to] = *length;
        trips[*to][*from] = *length;
    }
    for middle in 0..regions {
        for from in 0..regions {
            for to in 0..regions {
                trips[from][to] = trips[from][to].min(trips[from][middle] + trips[middle][to]);
            }
        }
    }
    trips
}

/// A plan within a millionth of the optimum.
pub(crate) fn solve(problem: &Problem) -> Plan {
    solve_within(problem, 1e-6)
}

pub(crate) fn solve_within(problem: &Problem, gap: f64) -> Plan {
    let plan = optimize(problem, None, Effort { gap, iterations: 2_000 }, &mut |_| true).unwrap();
    assert!(plan.gap() <= gap * 1.001, "gap {} after {} iterations", plan.gap(), plan.iterations);
    plan
}

/// Calls per second over an edge from a region to another.
pub(crate) fn flow(problem: &Problem, plan: &Plan, edge: usize, (from, to): (usize, usize)) -> f64 {
    let share = plan.shares.row(edge, from).iter().find(|(region, _)| usize::from(*region) == to);
    plan.calls[edge * problem.regions + from] * share.map_or(0.0, |(_, share)| *share)
}

/// Within a tenth of a percent: averages.
#[track_caller]
pub(crate) fn assert_average(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-3 * expected, "{found} instead of {expected}");
}

/// Within a percent: flows, since the optimum is flat.
#[track_caller]
pub(crate) fn assert_flow(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 0.01 * expected.max(10.0), "{found} instead of {expected}");
}
