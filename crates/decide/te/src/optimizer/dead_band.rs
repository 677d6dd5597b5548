use super::{
    plan::{Plan, Shares},
    problem::Problem,
    validation::ProblemError,
};

/// Whether a plan is enough better than the shares in force to be published: many plans cost nearly the same, and each new one moves connections.
///
/// It is if the shares in force, at present demand, cost more by the part `band` of their own cost, exceed the ceiling, admit other
/// demand, or exceed the cap on egress and the plan needs less by that part. 0.01 to 0.02 is a good band.
///
/// # Errors
/// The problem is not valid.
pub fn is_worth_publishing(
    problem: &Problem,
    in_force: &Plan,
    plan: &Plan,
    band: f64,
) -> Result<bool, ProblemError> {
    let ceiling = problem.preferences.ceiling;
    if !plan.is_usable(ceiling) {
        return Ok(false);
    }
    if in_force.admitted.len() != plan.admitted.len() {
        return Ok(true);
    }
    let now = Plan::evaluate(problem, &in_force.shares, &plan.admitted)?;
    let sheds_otherwise = |(before, now): (&f64, &f64)| (before - now).abs() > band;
    let is_other = in_force.admitted.iter().zip(&plan.admitted).any(sheds_otherwise);
    let is_over = !now.is_usable(ceiling) || leads_nowhere(problem, &in_force.shares);
    // A plan that keeps to a cap costs more than one that does not: its objective has egress at the price that was asked for.
    let is_above_cap = problem.preferences.egress_cap.is_some_and(|cap| now.egress > cap);
    let saves_egress = is_above_cap && plan.egress < now.egress * (1.0 - band);
    Ok(is_other || is_over || saves_egress || plan.objective < now.objective * (1.0 - band))
}

/// Whether any shares lead to regions without servers.
fn leads_nowhere(problem: &Problem, shares: &Shares) -> bool {
    let gone = |edge: usize, to: &(u16, f64)| {
        let service = problem.nodes[problem.edges[edge].callee].service;
        to.1 > 0.0 && !problem.is_placed(service, usize::from(to.0))
    };
    let row_is_gone = |edge: usize, source| shares.row(edge, source).iter().any(|to| gone(edge, to));
    (0..problem.edges.len()).any(|edge| (0..problem.regions).any(|source| row_is_gone(edge, source)))
}
