//! Applications: several services in several regions that call each other. Planners divide their calls among regions, and the
//! model predicts latency, load and egress of each planner's shares.
//!
//! The planners are those of production, on the same inputs that they would have of a mesh in a steady state. Requests are not simulated: what
//! a planner does over time is shown by scenarios of one service.

mod figures;
mod random;
mod rings;
mod scenario;

use fairmesh_te::optimizer::{Effort, ProblemError, optimize, ring_by_criticality, waterfall};
use serde::Serialize;

pub use figures::{ClassFigures, EgressFigures, Figures, PoolFigures};
pub use random::RandomApplication;
pub use scenario::{Call, Clients, EgressPrice, Operation, Scenario, Service};

/// The optimizer ends at this gap.
const GAP: f64 = 1e-4;
const ITERATIONS: usize = 500;

/// What planners do with an application.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Its name.
    pub scenario: String,
    /// By planner: rings, Waterfall, ring by criticality, optimizer.
    pub planners: Vec<Figures>,
}

/// Plans a valid application by each planner.
///
/// # Errors
/// The application has an operation without servers, or calls that multiply without end.
pub fn plan(scenario: &Scenario) -> Result<Report, ProblemError> {
    let problem = scenario.problem();
    let effort = Effort { gap: GAP, iterations: ITERATIONS };
    let threshold = scenario.waterfall;
    let planners = [
        ("rings", rings::plan(scenario, &problem)?),
        ("waterfall", waterfall(&problem, threshold)?),
        ("criticality", ring_by_criticality(&problem, threshold)?),
        ("optimizer", optimize(&problem, None, effort, &mut |_| true)?),
    ];
    let figures = planners.iter().map(|(name, plan)| Figures::new(name, scenario, &problem, plan));
    Ok(Report { scenario: scenario.name.clone(), planners: figures.collect() })
}
