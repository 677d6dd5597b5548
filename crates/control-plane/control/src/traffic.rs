//! Plans region tables from reports: the controller of the rings planner (ServiceRouter §3.4.1).
//!
//! The loop feeds the planners of `fairmesh-planner` and writes what they ask for. Records reach them by an index that each
//! commit updates, reports as one sum a round. Once a second, each service with a planner whose facts have changed is planned
//! anew, and its tables are written in one batch. Input that is missing, stale or absurd leaves the tables as they are. No
//! call ever waits for this: without it, tables lose their force by and by, and routers decide by rings.
//!
//! Only the control plane that serves the store plans. Its writes are conditional on the tables that it read: an operator,
//! or another control plane, that was faster wins, and the next round starts from what it wrote. Conditions on the
//! policy's record were rejected, since a batch can only check records that it writes.

mod drains;
mod lone_shards;
mod metrics;
mod service;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{Record, RecordKey, Region, ServiceName, TableOrigin};
use fairmesh_planner::{Now, ServiceFacts, ServicePlanner, StoredTable, TableWrite, TopologyFacts};
use fairmesh_rib::{Batch, Expect, Node, Op};
use fairmesh_store::Store;
use fairmesh_wire::records;
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crate::{admin::now_ms, facts::FactsIndex, monotonic_clock::MonotonicClock, signals::TrafficReports};
use drains::DrainState;
use lone_shards::LoneShardsCache;
pub(crate) use service::TrafficService;

/// The shortest time between two rounds.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);
/// A round is made after this time without any change: reports that stop are a change as well.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a write may take before the next round goes on without it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Services whose tables are written at the same time: a store that is slow with each keeps the others from none.
const MAX_WRITES: usize = 16;

/// The controller of a control plane.
#[derive(Debug)]
pub(crate) struct TrafficController {
    node: Node,
    store: Arc<dyn Store>,
    facts: Arc<FactsIndex>,
    reports: Arc<TrafficReports>,
    clock: MonotonicClock,
    planners: Mutex<BTreeMap<ServiceName, ServicePlanner>>,
    drain_states: Mutex<BTreeMap<Region, DrainState>>,
    lone_shards: Mutex<LoneShardsCache>,
    counts: Counts,
}

/// Totals of all services.
#[derive(Debug, Default)]
struct Counts {
    planned: AtomicU64,
    refused: Mutex<BTreeMap<&'static str, u64>>,
    written: AtomicU64,
    write_failures: AtomicU64,
}

/// What the last round started from.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    reports: u64,
    revision: u64,
}

impl TrafficController {
    /// A controller that is yet to [run](Self::run).
    pub(crate) fn new(
        (node, store): (&Node, &Arc<dyn Store>),
        facts: Arc<FactsIndex>,
        reports: Arc<TrafficReports>,
        clock: MonotonicClock,
    ) -> Self {
        Self {
            node: node.clone(),
            store: Arc::clone(store),
            facts,
            reports,
            clock,
            planners: Mutex::default(),
            drain_states: Mutex::default(),
            lone_shards: Mutex::default(),
            counts: Counts::default(),
        }
    }

    /// Plans forever.
    pub(crate) async fn run(self: Arc<Self>) {
        let started_ms = self.clock.now_ms();
        let mut ticks = interval(ROUND_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut last, mut rounds_at) = (Seen::default(), Instant::now());
        loop {
            ticks.tick().await;
            let seen = Seen { reports: self.reports.taken(), revision: self.node.revision().number };
            let has_planners = !lock(&self.planners).is_empty() || !self.facts.planned().is_empty();
            let is_due = seen != last || rounds_at.elapsed() >= SILENCE;
            if is_due && (has_planners || !self.facts.topology().drains.is_empty()) {
                (last, rounds_at) = (seen, Instant::now());
                Arc::clone(&self).round(Now { ms: self.clock.now_ms(), started_ms, wall_ms: now_ms() }).await;
            }
        }
    }

    async fn round(self: Arc<Self>, now: Now) {
        let planned = self.facts.planned();
        self.reports.update_facts();
        self.delete_leftovers(&planned).await;
        let topology = self.facts.topology();
        match topology.drains.is_empty() {
            true => lock(&self.lone_shards).clear(),
            false => self.find_lone_shards(planned.iter()),
        }
        let facts: BTreeMap<_, _> = {
            let index = self.facts.lock();
            // A policy may have changed since: its new tables may be by hand.
            let planned = planned.iter().filter_map(|service| Some((service, index.service(service)?)));
            let planned = planned.filter(|(_, facts)| facts.traffic.is_planned());
            planned.map(|(service, facts)| (service.clone(), facts)).collect()
        };
        let plan = |(service, facts): (&ServiceName, &Arc<ServiceFacts>)| {
            (service.clone(), self.plan(service, facts, &topology, now))
        };
        let writes = facts.iter().map(plan).collect();
        self.write_all(writes, &facts, now).await;
        self.step_drains(&facts, &topology, now).await;
    }

    /// Deletes the planned tables of services that are not planned for any more.
    async fn delete_leftovers(&self, planned: &BTreeSet<ServiceName>) {
        let former: Vec<ServiceName> = {
            let planners = lock(&self.planners);
            planners.keys().filter(|service| !planned.contains(*service)).cloned().collect()
        };
        for service in former {
            let leftover = self.planned_tables(&service);
            if leftover.is_empty() || self.write(&service, &leftover).await {
                lock(&self.planners).remove(&service);
            }
        }
    }

    /// Has the facts say which shards of services have no copy elsewhere.
    fn find_lone_shards<'a>(&self, services: impl IntoIterator<Item = &'a ServiceName>) {
        for service in services {
            let lone = lock(&self.lone_shards).get(&self.node, service);
            self.facts.lock().set_lone_shards(service, lone);
        }
    }

    /// Writes the tables of services, several at a time, each in a batch of its own: a conflict of one is none of the others.
    async fn write_all(
        self: &Arc<Self>,
        writes: Vec<(ServiceName, Vec<TableWrite>)>,
        services: &BTreeMap<ServiceName, Arc<ServiceFacts>>,
        now: Now,
    ) {
        let mut pending = writes.into_iter().filter(|(_, writes)| !writes.is_empty());
        let mut writing = JoinSet::new();
        loop {
            while writing.len() < MAX_WRITES
                && let Some((service, writes)) = pending.next()
            {
                let controller = Arc::clone(self);
                writing.spawn(async move {
                    let is_written = controller.write(&service, &writes).await;
                    (service, writes, is_written)
                });
            }
            let Some(written) = writing.join_next().await else { return };
            // The runtime has reported a panic.
            let Ok((service, writes, true)) = written else { continue };
            let mut planners = lock(&self.planners);
            if let (Some(planner), Some(facts)) = (planners.get_mut(&service), services.get(&service)) {
                planner.written(facts, &writes, now);
            }
        }
    }

    /// Plans a service, if its planner has anything to plan.
    fn plan(
        &self,
        service: &ServiceName,
        facts: &ServiceFacts,
        topology: &TopologyFacts,
        now: Now,
    ) -> Vec<TableWrite> {
        let mut planners = lock(&self.planners);
        let planner = planners.entry(service.clone()).or_default();
        if !planner.is_due(facts, topology, now) {
            return Vec::new();
        }
        let before = planner.refused.clone();
        let writes = planner.round(facts, topology, now);
        match &planner.refused {
            None => drop(self.counts.planned.fetch_add(1, Relaxed)),
            Some(refused) => *lock(&self.counts.refused).entry(refused.reason).or_default() += 1,
        }
        match (&before, &planner.refused) {
            (before, Some(refused)) if before.as_ref() != Some(refused) => {
                tracing::warn!(%service, reason = refused.text, "region tables are kept as they are");
            }
            (Some(_), None) => tracing::info!(%service, "region tables are planned again"),
            _ => {}
        }
        writes
    }

    /// Writes tables in one batch; whether they are written.
    async fn write(&self, service: &ServiceName, writes: &[TableWrite]) -> bool {
        if writes.is_empty() {
            return false;
        }
        let op = |write: &TableWrite| {
            let key = RecordKey::RegionTable(service.clone(), write.from.clone()).to_string();
            let op = match &write.table {
                Some(table) => Op::put(key, records::encode(&Record::RegionTable(table.clone()))),
                None => Op::delete(key),
            };
            op.expecting(write.replaces.map_or(Expect::Absent, Expect::Revision))
        };
        let batch = Batch { ops: writes.iter().map(op).collect() };
        let problem = match timeout(WRITE_TIMEOUT, self.store.write(batch)).await {
            Ok(Ok(_)) => {
                self.counts.written.fetch_add(1, Relaxed);
                return true;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the store did not respond in time".to_owned(),
        };
        self.counts.write_failures.fetch_add(1, Relaxed);
        tracing::warn!(%service, problem, "region tables are not written; the next round plans again");
        false
    }

    /// What leaves a service without planned tables: its policy may have changed while some were being written.
    fn planned_tables(&self, service: &ServiceName) -> Vec<TableWrite> {
        let facts = self.facts.service(service);
        let planned = facts.tables.iter().filter(|(_, stored)| stored.table.origin != TableOrigin::ByHand);
        let delete = |(from, stored): (&Region, &StoredTable)| TableWrite {
            from: from.clone(),
            table: None,
            replaces: Some(stored.revision),
        };
        planned.map(delete).collect()
    }
}

/// Each of the values is consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
