//! The rings planner of each service, simulated round by round on the reports that its callers and servers would send.

use fairmesh_model::{Region, Regions};
use fairmesh_te::{
    CallerReport, Observation, PlanInput, PlannerState, RegionObservation, RingMatrix, RingsPolicy,
    ServerReport, Tables, WHOLE,
    optimizer::{Plan, Problem, ProblemError, Shares},
};

use super::Scenario;
use crate::scenario::rings_policy;

/// Number of rounds after which tables have settled: half an hour, since planners move only a limited share of calls
/// per round.
const ROUNDS: u64 = 360;
const ROUND_MS: u64 = 5_000;
/// Number of rounds in which planners only learn, before they move calls.
const LEARNING: u64 = 60;
/// Maximum utilisation that servers report.
const FULL: f64 = 1.0;

/// Returns the shares to which the rings planners of all services converge.
pub(super) fn plan(scenario: &Scenario, problem: &Problem) -> Result<Plan, ProblemError> {
    let regions: Vec<Region> = scenario.regions().iter().filter_map(|name| name.parse().ok()).collect();
    // The scenario is valid, and so are its rings.
    let policy = rings_policy(&scenario.rings, 1).unwrap_or_else(|_| RingsPolicy::new(Vec::new(), 1));
    let rings = RingMatrix::new(&policy, &regions, &Regions::default(), &scenario.places().1);
    let mut states: Vec<PlannerState> =
        problem.services.iter().map(|_| PlannerState::new(problem.regions, 1)).collect();
    let admitted = vec![1.0; problem.edges.len()];
    let mut plan = Plan::evaluate(problem, &shares(problem, &states), &admitted)?;
    for round in 1..=ROUNDS {
        let mut is_moving = false;
        for (service, state) in states.iter_mut().enumerate() {
            let observation = observation(problem, &plan, service, round * ROUND_MS);
            let input = PlanInput { policy: &policy, rings: &rings, observation: &observation };
            let next = fairmesh_te::plan(input, state).state;
            is_moving |= next.tables() != state.tables();
            *state = next;
        }
        plan = Plan::evaluate(problem, &shares(problem, &states), &admitted)?;
        if !is_moving && round > LEARNING {
            break;
        }
    }
    Ok(plan)
}

/// Returns the tables of all called services. If a table drops calls, its remaining shares are scaled up, since the
/// optimizer's model has no drops between services.
fn shares(problem: &Problem, states: &[PlannerState]) -> Shares {
    let rows = problem.edges.iter().flat_map(|edge| {
        let tables: &Tables = states[problem.nodes[edge.callee].service].tables();
        (0..problem.regions).map(|source| {
            let to = tables.of(source, 0).shares.iter().enumerate().filter(|(_, share)| **share > 0);
            to.map(|(region, share)| (region as u16, f64::from(*share) / f64::from(WHOLE))).collect()
        })
    });
    Shares::new(problem.regions, rows)
}

/// Returns the reports of a service's callers and servers under a plan.
fn observation(problem: &Problem, plan: &Plan, service: usize, now_ms: u64) -> Observation {
    let count = problem.regions;
    let mut sent = vec![vec![0.0; count]; count];
    for (number, edge) in problem.edges.iter().enumerate() {
        if problem.nodes[edge.callee].service != service {
            continue;
        }
        for (source, sent) in sent.iter_mut().enumerate() {
            for (to, share) in plan.shares.row(number, source) {
                sent[usize::from(*to)] += plan.calls[number * count + source] * share;
            }
        }
    }
    let region = |at: usize| {
        let power = problem.services[service].capacity[at];
        let received = sent.iter().map(|row| row[at]).sum();
        let load = plan.loads[service * count + at].min(FULL);
        let servers = ServerReport { at_ms: now_ms, load, received, ..ServerReport::default() };
        let callers = CallerReport {
            at_ms: now_ms,
            offered: vec![sent[at].iter().sum()],
            sent: sent[at].clone(),
            pinned: 0.0,
        };
        RegionObservation {
            power,
            keep: 1.0,
            servers: (power > 0.0).then_some(servers),
            callers: Some(callers),
        }
    };
    Observation { now_ms, regions: (0..count).map(region).collect() }
}
