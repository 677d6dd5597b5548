use std::{collections::BTreeMap, fmt, mem, sync::Arc, time::Duration};

use fairmesh_controllers::{
    self as controllers, BoxError, Controller, Decision, Refusal, Triggers, Wake, Write,
};
use fairmesh_model::{Record, RecordKey, ServiceName, TrafficReport};
use fairmesh_planner::{
    MeshPlanner, Now, ServiceFacts, ServicePlanner, ServiceRound, TableWrite, TopologyFacts,
};
use fairmesh_rib::{Expect, Node, Op};
use fairmesh_wire::record_encoding;
use tokio::{sync::Notify, task::spawn_blocking};

use super::{
    LONGEST_PAUSE, Plans, ROUND_INTERVAL, TrafficPlanning, planning_threads::PlanningThreads, what_if::Model,
};

/// A round is made after this time without any change: reports that stop are a change as well.
const SILENCE: Duration = Duration::from_secs(5);

/// Plans the region tables of each service whose policy asks for it.
///
/// The state is the memory of the planners: the last reports of regions, the costs of calls, and the plans that the planners continue. After
/// a panic the planners start anew from the facts and the tables in force, as after a change of the control plane.
#[derive(Clone, Debug)]
pub(crate) struct PlannerController {
    planning: TrafficPlanning,
    /// Facts have changed, or reports have arrived.
    changed: Arc<Notify>,
    planner: MeshPlanner,
    threads: PlanningThreads,
    /// The batches of the last round that are not written yet, by subject.
    pending: BTreeMap<String, Pending>,
    /// Whether planners differ from the plans that were published last.
    is_unpublished: bool,
    /// The version of the topology of the plans that were published last.
    published_topology: Option<u64>,
}

/// Tables of a service that are being written.
#[derive(Clone, Debug)]
struct Pending {
    service: ServiceName,
    facts: Arc<ServiceFacts>,
    tables: Vec<TableWrite>,
    now: Now,
}

/// Facts of a round of the planner.
#[derive(Debug)]
pub(crate) struct PlannerFacts {
    topology: Arc<TopologyFacts>,
    planned: BTreeMap<ServiceName, Arc<ServiceFacts>>,
    /// The sum of all reports and its time, if the optimizer plans.
    sum: Option<(TrafficReport, u64)>,
    /// Tables of services that have no planner any more.
    leftovers: Vec<(ServiceName, Vec<TableWrite>)>,
    not_understood: Vec<ServiceName>,
}

/// The publication of other plans, or of the optimizer's model to subscribers.
#[derive(Debug)]
pub(crate) enum Publication {
    Plans(Plans),
    Model(Box<Model>),
}

impl fmt::Display for Publication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plans(plans) => write!(f, "publish the plans of {} services", plans.by_service.len()),
            Self::Model(_) => f.write_str("publish the model for a prediction"),
        }
    }
}

impl PlannerController {
    /// A planner that has seen nothing yet.
    pub(crate) fn new(planning: TrafficPlanning) -> Self {
        Self {
            changed: planning.facts.subscribe(),
            planning,
            planner: MeshPlanner::default(),
            threads: PlanningThreads::of_machine(),
            pending: BTreeMap::new(),
            is_unpublished: false,
            published_topology: None,
        }
    }

    /// The services whose tables are kept as they are, and why.
    fn refused(&self) -> Vec<Refusal> {
        let refusal = |(service, planner): (&ServiceName, &Arc<ServicePlanner>)| {
            let reason = planner.refused.as_ref()?.text.clone();
            Some(Refusal { subject: service.to_string(), reason })
        };
        self.planner.services().iter().filter_map(refusal).collect()
    }

    /// The publication of the plans, if they differ from the last published plans.
    fn publish(&mut self, topology: &TopologyFacts) -> Option<Publication> {
        let before = self.published_topology.replace(topology.version);
        let differs = mem::take(&mut self.is_unpublished) || before != Some(topology.version);
        differs.then(|| {
            Publication::Plans(Plans {
                topology: topology.version,
                by_service: self.planner.services().clone(),
                without_trace_context: self.planner.without_trace_context(),
            })
        })
    }

    /// The optimizer's model after the round, if it was asked for. Copying it in each round was rejected: that costs as much as the
    /// mesh is large.
    fn model(
        &self,
        services: BTreeMap<ServiceName, Arc<ServiceFacts>>,
        topology: Arc<TopologyFacts>,
        now: Now,
    ) -> Option<Publication> {
        let model =
            || Model { optimizer: self.planner.optimizer().clone(), services, topology, at_ms: now.ms };
        self.planning.what_if.take_request().then(|| Publication::Model(Box::new(model())))
    }
}

impl Controller for PlannerController {
    const NAME: &'static str = "planner";
    const DEADLINE: Duration = Duration::from_secs(10);
    const LONGEST_PAUSE: Duration = LONGEST_PAUSE;
    type Facts = PlannerFacts;
    type Effect = Publication;

    fn triggers(&self) -> Triggers {
        let notify = Some(Arc::clone(&self.changed));
        Triggers { notify, interval: Some(SILENCE), min_gap: ROUND_INTERVAL, ..Triggers::default() }
    }

    async fn read_facts(&mut self, _: &Node, _: Wake) -> Result<PlannerFacts, BoxError> {
        // Sums of many reports take a while, and only the threads of blocking tasks may wait for them.
        let reports = self.planning.reports();
        spawn_blocking(move || reports.update_facts()).await?;
        let facts = self.planning.facts.lock();
        let planned = facts.planned();
        let planned = planned.iter().filter_map(|service| Some((service.clone(), facts.service(service)?)));
        let planned: BTreeMap<_, _> = planned.collect();
        let leftovers = facts.left_over().map(|(service, facts)| (service.clone(), facts.leftover_tables()));
        let mut read = PlannerFacts {
            topology: facts.topology(),
            leftovers: leftovers.collect(),
            not_understood: facts.not_understood().cloned().collect(),
            sum: None,
            planned,
        };
        drop(facts);
        if read.planned.values().any(|facts| facts.traffic.is_optimized()) {
            read.sum = Some(self.planning.reports.sum_of_all());
        }
        Ok(read)
    }

    fn reconcile(&mut self, facts: PlannerFacts, now: controllers::Now) -> Decision<Publication> {
        let now = self.planning.now(now);
        let PlannerFacts { topology, planned, sum, leftovers, not_understood } = facts;
        self.pending.clear();
        self.is_unpublished |= self.planner.services().keys().any(|service| !planned.contains_key(service));
        if let Some((sum, at_ms)) = &sum {
            self.planner.observe(sum, *at_ms);
        }
        let mut writes = Vec::new();
        for ServiceRound { service, tables, refused } in
            self.planner.round(&planned, &topology, &self.threads, now)
        {
            self.is_unpublished = true;
            self.planning.counts.count_round(refused.as_ref());
            let Some(facts) = planned.get(&service).filter(|_| !tables.is_empty()).cloned() else { continue };
            let write = batch(&service, &tables, "calls are divided anew, or tables are confirmed");
            self.pending.insert(write.subject.clone(), Pending { service, facts, tables, now });
            writes.push(write);
        }
        let without_planner = "its policy asks for no planner any more";
        writes.extend(leftovers.iter().map(|(service, tables)| batch(service, tables, without_planner)));
        let effects = self.publish(&topology).into_iter();
        let effects = effects.chain(self.model(planned, topology, now)).collect();
        let mut refused = self.refused();
        refused.extend(not_understood.iter().map(refuse_unknown));
        Decision { writes, effects, refused }
    }

    async fn apply(&mut self, publication: Publication) -> Result<(), BoxError> {
        match publication {
            Publication::Plans(plans) => {
                self.planning.plans.publish(plans);
                self.planning.plans_changed.notify_one();
            }
            Publication::Model(model) => self.planning.what_if.publish(*model),
        }
        Ok(())
    }

    fn written(&mut self, subject: &str) {
        self.planning.counts.written.inc();
        let Some(Pending { service, facts, tables, now }) = self.pending.remove(subject) else { return };
        self.planner.written(&service, &facts, &tables, now);
        self.is_unpublished = true;
    }

    fn not_written(&mut self, _: &str) {
        self.planning.counts.write_failures.inc();
    }
}

/// Keeps the tables of a service whose policy this release does not understand, as in the middle of an upgrade.
fn refuse_unknown(service: &ServiceName) -> Refusal {
    let reason =
        "its policy names a planner or a mode that this release does not know: upgrade the control plane";
    Refusal { subject: service.to_string(), reason: reason.to_owned() }
}

/// The tables of a service in one batch, each on condition of the revision that was read.
fn batch(service: &ServiceName, tables: &[TableWrite], reason: &'static str) -> Write {
    let op = |write: &TableWrite| {
        let key = RecordKey::RegionTable(service.clone(), write.from.clone()).to_string();
        let op = match &write.table {
            Some(table) => Op::put(key, record_encoding::encode(&Record::RegionTable(table.clone()))),
            None => Op::delete(key),
        };
        op.expecting(write.replaces.map_or(Expect::Absent, Expect::Revision))
    };
    Write { subject: service.to_string(), reason, ops: tables.iter().map(op).collect() }
}
