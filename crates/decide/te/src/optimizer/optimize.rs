use super::{
    admission::admit,
    compiled_problem::Network,
    egress_cap::Capped,
    plan::Plan,
    problem::Problem,
    solver::{Effort, Progress, Solver},
    validation::ProblemError,
    waterfall::{Unit, fill, rooms},
};

/// Pools are filled to this load at first.
const FILL_LOAD: f64 = 0.7;

/// Plans where calls run: admits demand, then routes it.
///
/// `last` is the last plan for a problem with the same services and edges, which may have other demand, servers or fits.
/// The solution starts from it and is not worse; under a cap on egress or with cut cycles it may be. `go_on` is called after
/// each iteration; when it says no, the best plan so far is returned, with its gap. A plan that was stopped before its price of
/// egress was found may exceed the cap.
///
/// # Errors
/// The problem is not valid. The last plan stays in force.
pub fn optimize(
    problem: &Problem,
    last: Option<&Plan>,
    effort: Effort,
    go_on: &mut dyn FnMut(&Progress) -> bool,
) -> Result<Plan, ProblemError> {
    let admitted = admit(problem)?.shares;
    let mut network = Network::new(problem, &admitted)?;
    let last = last.filter(|last| last.loads.len() == problem.services.len() * problem.regions);
    let arcs = match last {
        Some(last) => {
            network.set_multipliers(&last.multipliers);
            last.shares.arcs(&network)
        }
        None => fill(&network, &mut rooms(&network, FILL_LOAD), Unit::Work),
    };
    let mut solver = Solver::new(network, arcs, last.is_some());
    solver.run(effort, go_on);
    let plan = match problem.preferences.egress_cap {
        Some(cap) if solver.egress() > cap => {
            let near = last.map_or(0.0, |last| last.ms_per_dollar);
            Capped::new(problem, cap, effort, go_on).plan(solver, near)
        }
        _ => solver.plan(),
    };
    Ok(Plan { admitted, ..plan })
}

impl Solver {
    /// Dollars per second for egress, of the best plan.
    pub(super) fn egress(&self) -> f64 {
        self.best.arcs.egress(&self.network, &self.best.flow)
    }

    fn plan(&self) -> Plan {
        let plan = Plan::new(&self.network, &self.best.arcs, &self.best.flow);
        Plan { bound: self.bound, iterations: self.iterations, ..plan }
    }
}
