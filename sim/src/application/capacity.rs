//! Number of servers that an application needs, with and without the loss of a region.

use fairmesh_te::optimizer::{Caller, Effort, Problem, optimize};

use super::Scenario;

/// Bounds of the factor on all capacities, and the number of bisection steps.
const LEAST: f64 = 0.05;
const GREATEST: f64 = 20.0;
const STEPS: u32 = 24;
/// Share of served calls from which all calls count as served.
const ALL: f64 = 0.999;

/// Servers needed to survive the loss of any region, divided by servers needed without a loss; all pools are scaled
/// alike. Without a loss, all calls must be served. When a region is lost, its clients stay there, and only calls of
/// priority 0 must be served, or all if `serves_all`. Pools stay below the optimizer's ceiling. `None` if a loss leaves
/// a service without servers.
pub fn capacity_factor(scenario: &Scenario, serves_all: bool) -> Option<f64> {
    let problem = scenario.problem();
    let usual = least_factor(&problem, true)?;
    let mut most = usual;
    for region in 0..problem.regions {
        let mut without = problem.clone();
        without.services.iter_mut().for_each(|service| service.capacity[region] = 0.0);
        most = most.max(least_factor(&without, serves_all)?);
    }
    Some(most / usual)
}

/// Returns the smallest factor on all capacities with which the calls are served; `None` if there is none.
fn least_factor(problem: &Problem, serves_all: bool) -> Option<f64> {
    if !fits(problem, GREATEST, serves_all) {
        return None;
    }
    let (mut low, mut high) = (LEAST, GREATEST);
    for _ in 0..STEPS {
        let middle = (low * high).sqrt();
        match fits(problem, middle, serves_all) {
            true => high = middle,
            false => low = middle,
        }
    }
    Some(high)
}

fn fits(problem: &Problem, factor: f64, serves_all: bool) -> bool {
    let mut scaled = problem.clone();
    for service in &mut scaled.services {
        service.capacity.iter_mut().for_each(|capacity| *capacity *= factor);
    }
    let effort = Effort { gap: 0.01, ..Effort::default() };
    let Ok(plan) = optimize(&scaled, None, effort, &mut |_| true) else { return false };
    let is_served = |(edge, admitted): (&fairmesh_te::optimizer::Edge, &f64)| match edge.caller {
        Caller::Clients { priority, .. } if serves_all || priority == 0 => *admitted >= ALL,
        _ => true,
    };
    plan.is_usable(scaled.preferences.ceiling) && scaled.edges.iter().zip(&plan.admitted).all(is_served)
}
