//! Plans region tables from reports and drains regions: the controllers of the rings planner (ServiceRouter §3.4.1).
//!
//! [`PlannerController`] feeds the planners of `fairmesh-planner` and writes what they ask for. Records reach them by an index
//! that each commit updates, reports as sums. At most once a second, each service with a planner whose facts have changed is
//! planned anew, and its tables are written in one batch; services whose calls grow or whose endpoints change do not wait for that second. Input that is missing, stale or absurd leaves the tables as they
//! are. No call ever waits for this: without it, tables lose their force by and by, and routers decide by rings.
//!
//! The planner publishes a snapshot of its plans after each round. [`DrainController`], operators and metrics read that, so
//! that no lock is held while it plans. Drains within the planner's round were rejected: a drain waits for programs and for
//! other services, and neither may delay a plan.
//!
//! Only the control plane that serves the store plans. Its writes are conditional on the tables that it read: an operator,
//! or another control plane, that was faster wins, and the next round starts from what it wrote. Conditions on the
//! policy's record were rejected, since a batch can only check records that it writes.

mod adjustments;
mod drain_controller;
mod drain_requests;
mod drain_states;
mod forecast;
mod metrics;
mod optimizer_status;
mod planner_controller;
mod planning_threads;
mod published_value;
mod service;
mod status;
mod what_if;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fairmesh_controllers::{self as controllers, Controller as _, MonotonicClock};
use fairmesh_model::{Region, ServiceName};
use fairmesh_planner::{Now, ServicePlanner};
use fairmesh_rib::Node;
use tokio::sync::Notify;

use crate::{ShadowController, planner_facts::FactsIndex, reports::TrafficReports};
pub(crate) use drain_controller::DrainController;
use drain_states::DrainState;
use metrics::PlanCounts;
pub(crate) use planner_controller::PlannerController;
use published_value::Published;
pub(crate) use service::TrafficService;
use what_if::WhatIfs;

/// The shortest time between the begins of two rounds. Most services are planned in every other round.
const ROUND_INTERVAL: Duration = Duration::from_millis(500);
/// The longest pause after a failed round: reports are void after seconds, and tables have to be confirmed.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The plans of all services, as the last round of the planner left them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plans {
    /// The version of the topology that they are made from.
    topology: u64,
    by_service: BTreeMap<ServiceName, Arc<ServicePlanner>>,
    /// Services whose programs pass no trace context on, with the share of their calls that name no parent.
    without_trace_context: BTreeMap<ServiceName, f64>,
}

/// What the controllers of region tables and drains share with operators and metrics. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct TrafficPlanning {
    facts: Arc<FactsIndex>,
    reports: Arc<TrafficReports>,
    clock: MonotonicClock,
    started_ms: u64,
    plans: Published<Plans>,
    /// Notified when there are other plans. The controller of drains waits for it.
    plans_changed: Arc<Notify>,
    drain_states: Published<BTreeMap<Region, DrainState>>,
    counts: PlanCounts,
    what_if: WhatIfs,
    /// The controller in shadow mode without whose changes no drain goes on.
    shadow: Option<&'static str>,
}

impl TrafficPlanning {
    /// Nothing is planned yet, and these controllers are in shadow mode. Reports may be missing for a while from now on.
    pub(crate) fn new(node: Node, facts: Arc<FactsIndex>, shadow: &[ShadowController]) -> Self {
        let clock = MonotonicClock::start();
        let reports = Arc::new(TrafficReports::new(node, facts.clone(), clock));
        let started_ms = clock.now_ms();
        let (plans, plans_changed, drain_states, counts, what_if) = Default::default();
        let names = [PlannerController::NAME, DrainController::NAME];
        let shadow = names.into_iter().find(|name| shadow.iter().any(|one| one.name() == *name));
        Self {
            facts,
            reports,
            clock,
            started_ms,
            plans,
            plans_changed,
            drain_states,
            counts,
            what_if,
            shadow,
        }
    }

    /// The reports that are planned from.
    pub(crate) fn reports(&self) -> Arc<TrafficReports> {
        Arc::clone(&self.reports)
    }

    /// The time of a round, as planners have it.
    fn now(&self, now: controllers::Now) -> Now {
        Now { ms: self.clock.ms_at(now.at), started_ms: self.started_ms, wall_ms: now.wall_ms }
    }
}

#[cfg(test)]
mod tests;
