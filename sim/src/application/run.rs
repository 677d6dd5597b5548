//! State of a simulated application: call trees, counters, planner, and measurements.

mod caches;
mod call_tree;
mod contender;
mod controller;
mod counters;
mod forecast;
mod measured;
mod reports;

use std::collections::BTreeSet;

use fairmesh_model::{Invalid, Label, Region, RegionTable, ServiceName, TrafficShares};
use fairmesh_te::optimizer::ProblemError;

pub(crate) use call_tree::{CallEnd, NewCall, TreeCall};
pub use controller::Planner;
pub use measured::{Measured, MeasuredClass, MeasuredPool, TableChange, TriedChange, WindowFigures};

use caches::Caches;
use call_tree::CallTrees;
use contender::Contender;
use controller::Controller;
use counters::Counters;
use measured::Measurements;
use reports::{Names, PendingReports};

use super::Scenario;
use crate::{engine::Placement, registry::Registry, server::Server};

/// Stands for a caller that a server does not have.
pub(crate) const NO_CALLER: u32 = u32::MAX;

/// Tables of a service, by region of the callers.
pub type ServiceTables = (ServiceName, Vec<(Region, TrafficShares)>);

/// The tables with which Waterfall serves the rates of a valid application, filling regions up to the load in it.
///
/// # Errors
/// The first name that is not valid, or why there is no plan for these rates.
pub fn waterfall_tables(scenario: &Scenario) -> Result<Vec<ServiceTables>, Invalid> {
    let names = Names::new(&scenario.placement()?, &CallTrees::new(scenario)?);
    let tables = Contender::new(scenario, Planner::Waterfall, &names)?.plan_known(&names);
    let unplanned = |problem: ProblemError| {
        Invalid::new("", problem.to_string(), "correct the scenario, so that each called service has servers")
    };
    let tables = tables.map_err(unplanned)?;
    Ok(tables.into_iter().map(|(service, tables)| (names.services[service].clone(), tables)).collect())
}

/// State that the engine needs for an application.
#[derive(Debug)]
pub(crate) struct ApplicationRun {
    pub(crate) trees: CallTrees,
    caches: Caches,
    /// Calls, by the number of their request in flight.
    calls: Vec<TreeCall>,
    /// Callers that run inside servers, by server and called service.
    pub(crate) inner_callers: Vec<Vec<u32>>,
    pub(crate) counters: Counters,
    pub(crate) measurements: Measurements,
    controller: Controller,
    pending: PendingReports,
    names: Names,
    /// Length of a report interval, which is also the delay of its reports, in nanoseconds.
    pub(crate) every: u64,
    pub(crate) report_delay: u64,
}

impl ApplicationRun {
    pub(crate) fn new(scenario: &Scenario, planner: Planner, place: &Placement) -> Result<Self, Invalid> {
        let trees = CallTrees::new(scenario)?;
        let names = Names::new(place, &trees);
        Ok(Self {
            counters: Counters::new(place.regions.len(), trees.edges.len(), trees.operations.len()),
            measurements: Measurements::new(scenario),
            controller: Controller::new(scenario, planner, &names)?,
            pending: PendingReports::new(scenario),
            caches: Caches::new(scenario),
            trees,
            calls: Vec::new(),
            inner_callers: Vec::new(),
            names,
            every: scenario.play.every.nanos(),
            report_delay: scenario.play.report_delay.nanos(),
        })
    }

    /// The label of the class of calls to an operation.
    pub(crate) fn label(&self, operation: u16) -> Option<&Label> {
        self.trees.operations[usize::from(operation)].node.class.as_ref()
    }

    /// Starts a call of a tree.
    pub(crate) fn begin(&mut self, id: u32, call: TreeCall) {
        let id = id as usize;
        if self.calls.len() <= id {
            self.calls.resize(id + 1, TreeCall::default());
        }
        self.calls[id] = call;
    }

    pub(crate) fn call(&mut self, id: u32) -> &mut TreeCall {
        &mut self.calls[id as usize]
    }

    /// Returns the calls that a request makes next; empty if there are none.
    pub(crate) fn next_calls(&mut self, id: u32, now: u64) -> Vec<NewCall> {
        self.trees.next_calls(&mut self.calls[id as usize], now)
    }

    /// Returns the time for which a call from a region waits for a record that the cache of region `at` lacks.
    pub(crate) fn cache_wait(&mut self, id: u32, source: u16, at: u16) -> u64 {
        let call = &self.calls[id as usize];
        let operation = self.trees.operation_of(call.edge);
        let service = self.trees.operations[usize::from(operation)].service;
        self.caches.wait((operation, source), (service, at), call.seed())
    }

    /// Ends a report interval.
    pub(crate) fn end_interval(&mut self, servers: &mut [Server], registry: &Registry, now: u64) {
        let interval = self.counters.end(servers, registry, now);
        self.measurements.end_interval(&interval, now);
        self.pending.send(self.names.messages(&interval, self.every), now);
        self.counters.begin(servers, now);
    }

    /// Plans with the reports that have arrived. Returns the services and regions whose tables changed.
    pub(crate) fn plan(&mut self, serving: &[Vec<Vec<u32>>], now: u64) -> BTreeSet<(u16, u16)> {
        let mut changed = BTreeSet::new();
        self.controller.receive(self.pending.arrived(now), now);
        for (service, region) in self.controller.plan(serving, now) {
            changed.insert((service, region));
            if let Some(table) = self.controller.table(service, region) {
                self.measurements.record_table(&self.names, (service, region), table, now);
            }
        }
        changed
    }

    /// The table of a service for callers in a region.
    pub(crate) fn table(&self, service: u16, region: u16) -> Option<&RegionTable> {
        self.controller.table(service, region)
    }

    /// The measured figures.
    pub(crate) fn report(self, scenario: &Scenario) -> Measured {
        let forecast = forecast::forecast(scenario, &self.controller, &self.names);
        let attempts = self.controller.attempts().iter().map(TriedChange::from).collect();
        Measured { attempts, ..self.measurements.report(scenario, &self.names, forecast.as_ref()) }
    }
}
