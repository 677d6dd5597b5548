use std::{collections::BTreeMap, fmt, mem, sync::Arc, time::Duration};

use fairmesh_controllers::{
    self as controllers, BoxError, Controller, Decision, Refusal, Triggers, Wake, Write,
};
use fairmesh_model::{Record, RecordKey, ServiceName};
use fairmesh_planner::{Now, ServiceFacts, ServicePlanner, TableWrite, TopologyFacts};
use fairmesh_rib::{Expect, Node, Op};
use fairmesh_wire::records;
use tokio::sync::Notify;

use super::{LONGEST_PAUSE, Plans, ROUND_INTERVAL, TrafficPlanning};

/// A round is made after this time without any change: reports that stop are a change as well.
const SILENCE: Duration = Duration::from_secs(5);

/// Plans the region tables of each service whose policy asks for it.
///
/// Its state is the memory of the planners: what regions reported last, and the plans that they continue. After a panic they
/// start anew from the facts and the tables in force, like those of another control plane that takes over.
#[derive(Clone, Debug)]
pub(crate) struct PlannerController {
    planning: TrafficPlanning,
    /// Facts have changed, or reports have arrived.
    changed: Arc<Notify>,
    planners: BTreeMap<ServiceName, Arc<ServicePlanner>>,
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
    /// Tables of services that have no planner any more.
    leftovers: Vec<(ServiceName, Vec<TableWrite>)>,
    not_understood: Vec<ServiceName>,
}

/// The publication of other plans.
#[derive(Debug)]
pub(crate) struct PublishPlans(Plans);

impl fmt::Display for PublishPlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "publish the plans of {} services", self.0.by_service.len())
    }
}

impl PlannerController {
    /// A planner that has seen nothing yet.
    pub(crate) fn new(planning: TrafficPlanning) -> Self {
        Self {
            changed: planning.facts.subscribe(),
            planning,
            planners: BTreeMap::new(),
            pending: BTreeMap::new(),
            is_unpublished: false,
            published_topology: None,
        }
    }

    /// Plans a service, if its planner has anything to plan.
    fn plan(
        &mut self,
        service: &ServiceName,
        facts: &ServiceFacts,
        topology: &TopologyFacts,
        now: Now,
    ) -> Vec<TableWrite> {
        let planner = self.planners.entry(service.clone()).or_default();
        if !planner.is_due(facts, topology, now) {
            return Vec::new();
        }
        self.is_unpublished = true;
        let planner = Arc::make_mut(planner);
        let tables = planner.round(facts, topology, now);
        self.planning.counts.count_round(planner.refused.as_ref());
        tables
    }

    /// Forgets the planners of services that are not planned for any more.
    fn forget_others(&mut self, planned: &BTreeMap<ServiceName, Arc<ServiceFacts>>) {
        let before = self.planners.len();
        self.planners.retain(|service, _| planned.contains_key(service));
        self.is_unpublished |= self.planners.len() < before;
    }

    /// The services whose tables are kept as they are, and why.
    fn refused(&self) -> Vec<Refusal> {
        let refusal = |(service, planner): (&ServiceName, &Arc<ServicePlanner>)| {
            let reason = planner.refused.as_ref()?.text.clone();
            Some(Refusal { subject: service.to_string(), reason })
        };
        self.planners.iter().filter_map(refusal).collect()
    }

    /// The publication of the plans, if they differ from those that were published last.
    fn publish(&mut self, topology: &TopologyFacts) -> Option<PublishPlans> {
        let before = self.published_topology.replace(topology.version);
        let differs = mem::take(&mut self.is_unpublished) || before != Some(topology.version);
        differs.then(|| PublishPlans(Plans { topology: topology.version, by_service: self.planners.clone() }))
    }
}

impl Controller for PlannerController {
    const NAME: &'static str = "planner";
    const DEADLINE: Duration = Duration::from_secs(10);
    const LONGEST_PAUSE: Duration = LONGEST_PAUSE;
    type Facts = PlannerFacts;
    type Effect = PublishPlans;

    fn triggers(&self) -> Triggers {
        let notify = Some(Arc::clone(&self.changed));
        Triggers { notify, interval: Some(SILENCE), min_gap: ROUND_INTERVAL, ..Triggers::default() }
    }

    async fn read_facts(&mut self, _: &Node, _: Wake) -> Result<PlannerFacts, BoxError> {
        self.planning.reports.update_facts();
        let facts = self.planning.facts.lock();
        let planned = facts.planned();
        let planned = planned.iter().filter_map(|service| Some((service.clone(), facts.service(service)?)));
        let leftovers = facts.left_over().map(|(service, facts)| (service.clone(), facts.leftover_tables()));
        Ok(PlannerFacts {
            topology: facts.topology(),
            planned: planned.collect(),
            leftovers: leftovers.collect(),
            not_understood: facts.not_understood().cloned().collect(),
        })
    }

    fn reconcile(&mut self, facts: PlannerFacts, now: controllers::Now) -> Decision<PublishPlans> {
        let now = self.planning.now(now);
        let PlannerFacts { topology, planned, leftovers, not_understood } = facts;
        self.pending.clear();
        self.forget_others(&planned);
        let mut writes = Vec::new();
        for (service, facts) in planned {
            let tables = self.plan(&service, &facts, &topology, now);
            if !tables.is_empty() {
                let write = batch(&service, &tables, "calls are divided anew, or tables are confirmed");
                self.pending.insert(write.subject.clone(), Pending { service, facts, tables, now });
                writes.push(write);
            }
        }
        let without_planner = "its policy asks for no planner any more";
        writes.extend(leftovers.iter().map(|(service, tables)| batch(service, tables, without_planner)));
        let effects = self.publish(&topology).into_iter().collect();
        let mut refused = self.refused();
        refused.extend(not_understood.iter().map(refuse_unknown));
        Decision { writes, effects, refused }
    }

    async fn apply(&mut self, PublishPlans(plans): PublishPlans) -> Result<(), BoxError> {
        self.planning.plans.publish(plans);
        self.planning.plans_changed.notify_one();
        Ok(())
    }

    fn written(&mut self, subject: &str) {
        self.planning.counts.written.inc();
        let Some(Pending { service, facts, tables, now }) = self.pending.remove(subject) else { return };
        if let Some(planner) = self.planners.get_mut(&service) {
            Arc::make_mut(planner).written(&facts, &tables, now);
            self.is_unpublished = true;
        }
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
            Some(table) => Op::put(key, records::encode(&Record::RegionTable(table.clone()))),
            None => Op::delete(key),
        };
        op.expecting(write.replaces.map_or(Expect::Absent, Expect::Revision))
    };
    Write { subject: service.to_string(), reason, ops: tables.iter().map(op).collect() }
}
