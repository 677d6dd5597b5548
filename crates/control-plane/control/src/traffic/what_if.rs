//! Predictions of changes, by the optimizer's model.
//!
//! The planner hands its model over when a prediction asks for it, and the prediction is made on a thread of its own: rounds do not wait.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{Prefix, Record, RecordKey, Region, ServiceName};
use fairmesh_planner::{
    OptimizerInput, OptimizerPlanner, Prediction, Scenario, ServiceFacts, ServicePlan, TopologyFacts, WhatIf,
};
use fairmesh_rib::Node;
use fairmesh_wire::{record_encoding, v1};
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};
use tonic::Status;

use super::{TrafficPlanning, optimizer_status::expected, published_value::Published};
use crate::planner_facts::policy_in_force;

/// How long the next round of the planner is waited for.
const ROUND_PATIENCE: Duration = Duration::from_secs(10);
/// Bounds of a request.
const MAX_RECORDS: usize = 1_000;
const MAX_REGIONS: usize = 1_000;
const MAX_FACTOR: f64 = 1_000.0;
/// Maximum number of regions that a refusal names.
const MAX_NAMED: usize = 20;

/// The optimizer's model after a round, with the facts of the round.
#[derive(Debug)]
pub(crate) struct Model {
    pub(super) optimizer: OptimizerPlanner,
    pub(super) services: BTreeMap<ServiceName, Arc<ServiceFacts>>,
    pub(super) topology: Arc<TopologyFacts>,
    pub(super) at_ms: u64,
}

/// Predictions under way. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct WhatIfs {
    is_requested: Arc<AtomicBool>,
    model: Published<Option<Arc<Model>>>,
    /// One at a time: each takes a core for up to seconds.
    permits: Arc<Semaphore>,
}

impl Default for WhatIfs {
    fn default() -> Self {
        let permits = Arc::new(Semaphore::new(1));
        Self { is_requested: Arc::default(), model: Published::default(), permits }
    }
}

impl WhatIfs {
    /// Whether a prediction waits for the model; from now on it does no more.
    pub(super) fn take_request(&self) -> bool {
        self.is_requested.swap(false, Relaxed)
    }

    /// Hands the model over.
    pub(super) fn publish(&self, model: Model) {
        self.model.publish(Some(Arc::new(model)));
    }
}

/// A request for the model. Once it is dropped, also with a caller that goes away, no model is kept, and none is handed over.
struct ModelRequest<'a>(&'a WhatIfs);

impl<'a> ModelRequest<'a> {
    fn begin(what_ifs: &'a WhatIfs) -> Self {
        // An earlier request may have been dropped while the planner handed its model over.
        what_ifs.model.publish(None);
        what_ifs.is_requested.store(true, Relaxed);
        Self(what_ifs)
    }
}

impl Drop for ModelRequest<'_> {
    fn drop(&mut self) {
        self.0.take_request();
        self.0.model.publish(None);
    }
}

impl TrafficPlanning {
    /// What a change would lead to.
    pub(super) async fn what_if(&self, scenario: Scenario) -> Result<v1::WhatIfResponse, Status> {
        let permit = Arc::clone(&self.what_if.permits).try_acquire_owned();
        let permit = permit
            .map_err(|_| Status::resource_exhausted("another prediction is being made; try again soon"))?;
        let model = self.model().await?;
        let predicted = spawn_blocking(move || {
            let _permit = permit;
            let Model { optimizer, services, topology, at_ms } = &*model;
            let refused = Default::default();
            let input = OptimizerInput { services, refused: &refused, topology };
            check_regions(optimizer.regions_of_scenario(input, &scenario, *at_ms))?;
            let predicted = optimizer.what_if(input, &scenario, *at_ms);
            predicted.map_err(|why| Status::failed_precondition(why.text))
        });
        let predicted = predicted.await.map_err(|error| Status::internal(error.to_string()))?;
        let WhatIf { now, then } = predicted?;
        Ok(v1::WhatIfResponse { now: Some(write(&now)), then: Some(write(&then)) })
    }

    /// The model after the next round of the planner.
    async fn model(&self) -> Result<Arc<Model>, Status> {
        let _request = ModelRequest::begin(&self.what_if);
        let mut models = self.what_if.model.follow();
        self.facts.notify();
        // Closed only with the planner, which `self` shares.
        let round = timeout(ROUND_PATIENCE, models.wait_for(|model| model.is_some())).await;
        let model = round.ok().and_then(|model| model.ok()?.as_ref().clone());
        model.ok_or_else(|| {
            Status::failed_precondition(
                "the planner makes no rounds, or changes nothing since it is in shadow mode; see 'fairmesh control status'",
            )
        })
    }
}

/// The change that a request describes.
pub(super) fn scenario(request: v1::WhatIfRequest, node: &Node) -> Result<Scenario, Status> {
    let v1::WhatIfRequest { records, demand, lost_regions } = request;
    if records.len() > MAX_RECORDS || demand.len().max(lost_regions.len()) > MAX_REGIONS {
        return Err(Status::invalid_argument(format!(
            "more than {MAX_RECORDS} records or {MAX_REGIONS} regions; name fewer"
        )));
    }
    let mut scenario = Scenario::default();
    for op in records {
        add_record(&mut scenario, &op, node)?;
    }
    for v1::DemandFactor { region: name, factor } in demand {
        if !(0.0..=MAX_FACTOR).contains(&factor) {
            return Err(Status::invalid_argument(format!(
                "demand: {factor} is no factor; send 0 to {MAX_FACTOR}"
            )));
        }
        let of = (!name.is_empty()).then(|| region(&name)).transpose()?;
        scenario.demand.push((of, factor));
    }
    scenario.lost = lost_regions.iter().map(|name| region(name)).collect::<Result<_, _>>()?;
    Ok(scenario)
}

fn add_record(scenario: &mut Scenario, op: &v1::Op, node: &Node) -> Result<(), Status> {
    let value = op.value.as_deref();
    let key = RecordKey::parse(&op.key);
    let key = key.map_err(|e| Status::invalid_argument(e.within("records").to_string()))?;
    let record = value.map(|value| record_encoding::decode(&key, value)).transpose();
    let record = record.map_err(|e| Status::invalid_argument(e.within(op.key.clone()).to_string()))?;
    match (key, record) {
        (RecordKey::Policy(service), _) => {
            check_service(node, &service)?;
            let facts = policy_in_force(node, &service, value);
            scenario.policies.insert(service, facts);
        }
        (_, Some(Record::Regions(regions))) => scenario.regions = Some(regions),
        (_, Some(Record::RoundTrips(declared))) => scenario.round_trips = Some(declared),
        _ => {
            return Err(Status::invalid_argument(format!(
                "{} says nothing about traffic; send policies and a topology",
                op.key
            )));
        }
    }
    Ok(())
}

/// Refuses a policy of a service that nobody can call, such as one whose name has a typing error.
fn check_service(node: &Node, service: &ServiceName) -> Result<(), Status> {
    let is_declared = node.get(&RecordKey::Service(service.clone()).to_string()).is_some();
    if is_declared || !node.read(&[Prefix::endpoints(service, None)]).1.is_empty() {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "records: service {service} is not declared and has no endpoints; see 'fairmesh get services'"
    )))
}

/// Refuses regions that neither the topology nor endpoints nor calls have.
fn check_regions((unknown, known): (BTreeSet<Region>, BTreeSet<Region>)) -> Result<(), Status> {
    let list = |regions: BTreeSet<Region>| {
        let names: Vec<_> = regions.iter().take(MAX_NAMED).map(ToString::to_string).collect();
        names.join(", ")
    };
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(Status::invalid_argument(format!(
            "no endpoint, call or topology has the region {}; known are: {}",
            list(unknown),
            list(known)
        ))),
    }
}

fn region(name: &str) -> Result<Region, Status> {
    Region::new(name).map_err(|e| Status::invalid_argument(e.within("region").to_string()))
}

fn write(prediction: &Prediction) -> v1::Prediction {
    let planned = prediction.services.iter().map(|(service, plan)| write_service(service, plan));
    let unplanned = prediction.unplanned.iter().map(|(service, why)| v1::PredictedService {
        service: service.to_string(),
        why_not: why.text.clone(),
        ..Default::default()
    });
    v1::Prediction {
        latency_ms: prediction.latency_ms,
        latency_error_ms: prediction.latency_error_ms,
        egress: prediction.egress,
        shed: prediction.shed,
        gap: prediction.gap,
        services: planned.chain(unplanned).collect(),
    }
}

fn write_service(service: &ServiceName, plan: &ServicePlan) -> v1::PredictedService {
    let load =
        |(region, load): (&Region, &f64)| v1::PredictedLoad { region: region.to_string(), load: *load };
    v1::PredictedService {
        service: service.to_string(),
        loads: plan.regions.iter().zip(&plan.loads).map(load).collect(),
        expected: expected(plan),
        model_error: plan.model_error,
        why_not: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_planner::MeshPlanner;

    use super::*;

    #[test]
    fn dropped_model_request_clears_request_and_model() {
        let what_ifs = WhatIfs::default();
        let model = || Model {
            optimizer: MeshPlanner::default().optimizer().clone(),
            services: BTreeMap::new(),
            topology: Arc::default(),
            at_ms: 0,
        };
        drop(ModelRequest::begin(&what_ifs));
        assert!(!what_ifs.take_request());
        let request = ModelRequest::begin(&what_ifs);
        assert!(what_ifs.take_request());
        what_ifs.publish(model());
        drop(request);
        assert!(what_ifs.model.read().is_none());
        what_ifs.publish(model());
        let _next = ModelRequest::begin(&what_ifs);
        assert!(what_ifs.model.read().is_none(), "that of an earlier request is too old");
    }
}
