//! Applications: several services in several regions that call each other. Planners divide their calls among regions,
//! and the model predicts latency, load and egress of each planner's shares.
//!
//! [`plan`] runs the production planners on the inputs of a mesh in a steady state, and predicts the result by the
//! model. [`play`] simulates every request in the engine of fleets, with reports, planning rounds and tables as in
//! production.

mod capacity;
mod figures;
mod fleet;
mod pool_shape;
mod random;
mod rings;
mod run;
mod scenario;

use fairmesh_model::Invalid;
use fairmesh_te::optimizer::{Effort, ProblemError, optimize, ring_by_criticality, waterfall};
use serde::Serialize;

pub use capacity::capacity_factor;
pub use figures::{ClassFigures, EgressFigures, Figures, PoolFigures};
pub use random::RandomApplication;
pub(crate) use run::{ApplicationRun, CallEnd, NO_CALLER, NewCall, TreeCall};
pub use run::{
    Measured, MeasuredClass, MeasuredPool, Planner, ServiceTables, TableChange, TriedChange, WindowFigures,
    waterfall_tables,
};
pub use scenario::{Cache, Call, Clients, Operation, Play, Pool, PoolEvent, Scenario, Service, Variant};

use crate::{engine::build_application, scenario::SimTime};

/// Relative optimality gap at which the optimizer stops.
const GAP: f64 = 1e-4;
const ITERATIONS: usize = 500;

/// Results of all planners for an application.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Name of the scenario.
    pub scenario: String,
    /// Figures by planner: rings, Waterfall, ring by criticality, optimizer.
    pub planners: Vec<Figures>,
    /// Measured figures of each planner; empty unless requests were simulated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<Measured>,
}

/// Simulates the requests of a valid application whose tables come from one planner.
///
/// # Errors
/// The first field that is not valid.
pub fn play(
    scenario: &Scenario,
    planner: Planner,
    progress: impl FnMut(SimTime),
) -> Result<Measured, Invalid> {
    scenario.validate()?;
    let mut engine = build_application(scenario, planner)?;
    engine.run(progress);
    let measured = engine.application.map(|run| run.report(scenario));
    // The engine was built with an application.
    let measured = measured.ok_or_else(|| Invalid::new("kind", "is no application", "write 'kind: app'"))?;
    Ok(Measured { planner: planner.name().to_owned(), ..measured })
}

/// Plans a valid application with each planner.
///
/// # Errors
/// The application has an operation without servers, or a cycle in which calls multiply without end.
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
    Ok(Report { scenario: scenario.name.clone(), planners: figures.collect(), measured: Vec::new() })
}
