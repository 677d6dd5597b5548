//! Prediction of the true model for the tables in force.

use fairmesh_model::{RegionTable, Share};
use fairmesh_te::optimizer::{Caller, Plan, Problem, Shares};

use super::{controller::Controller, reports::Names};
use crate::application::{Figures, Scenario};

/// Predicted figures of the tables in force, at the final rates of the scenario. `None` if the model does not apply,
/// such as when a service has lost all servers.
pub(super) fn forecast(scenario: &Scenario, controller: &Controller, names: &Names) -> Option<Figures> {
    let mut problem = scenario.problem();
    let mut admitted = vec![1.0; problem.edges.len()];
    for (edge, clients) in scenario.clients.iter().enumerate() {
        let callee = problem.edges[edge].callee;
        let service = problem.nodes[callee].service as u16;
        let Caller::Clients { demand, .. } = &mut problem.edges[edge].caller else { continue };
        let mut dropped = 0.0;
        for ((at, region), rate) in (0..).zip(&names.regions).zip(demand.iter_mut()) {
            let last = clients.rate_over_time.get(region.as_str()).and_then(|points| points.last());
            *rate *= last.map_or(1.0, |point| point.times);
            let row = controller.table(service, at).and_then(|table| row(table, names, callee));
            dropped += *rate * row.map_or(0.0, |row| part(row.dropped));
        }
        let total: f64 = demand.iter().sum();
        admitted[edge] = if total > 0.0 { (1.0 - dropped / total).clamp(0.0, 1.0) } else { 1.0 };
    }
    let plan = Plan::evaluate(&problem, &shares(&problem, controller, names), &admitted).ok()?;
    Some(Figures::new("forecast", scenario, &problem, &plan))
}

/// Converts the region tables of the controller to shares of the optimizer's model, one row for each edge and source
/// region. Without a table, all calls go to the nearest region.
fn shares(problem: &Problem, controller: &Controller, names: &Names) -> Shares {
    let rows = problem.edges.iter().flat_map(|edge| {
        let service = problem.nodes[edge.callee].service as u16;
        (0..problem.regions as u16).map(move |source| {
            let table = controller.table(service, source);
            let row = table.and_then(|table| row(table, names, edge.callee));
            let to = row.into_iter().flat_map(|row| &row.to);
            to.filter_map(|(region, share)| {
                let at = names.regions.iter().position(|name| name == region)?;
                Some((at as u16, part(*share)))
            })
            .collect()
        })
    });
    Shares::new(problem.regions, rows)
}

/// The shares of the calls to an operation.
fn row<'a>(
    table: &'a RegionTable,
    names: &Names,
    operation: usize,
) -> Option<&'a fairmesh_model::RegionShares> {
    let class = names.nodes[operation].class.as_ref();
    let own = class.and_then(|class| table.shares.classes.get(class));
    own.or(table.shares.default.as_ref())
}

fn part(share: Share) -> f64 {
    f64::from(share.millionths()) / 1e6
}
