//! The processes of an application: a control plane, and an agent and a process with servers and clients by region.

use std::time::Duration;

use fairmesh_model::{Label, RegionShares, Share, spec::write_duration};
use fairmesh_sim::application::{Scenario, ServiceTables, waterfall_tables};
use fairmesh_wire::v1::{DemandFactor, TrafficStatusRequest, WhatIfRequest};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{APPLICATION, Clocked, Contender, Phase, Times, service_name, socket_of};
use crate::{
    mesh_processes::{ControlPlane, start_agent},
    proxy::process::Process,
    role_process::RoleProcess,
};

/// Timeout of a client's call, and so the maximum time of calls that are in flight when a phase ends.
const TIMEOUT: Duration = Duration::from_secs(15);
/// What-if is asked this long before the usual load ends, so that it multiplies the demand of that load.
const BEFORE_END: Duration = Duration::from_secs(5);

pub(super) struct Fleet {
    scenario: Scenario,
    contender: Contender,
    // Dropped in this order, so that no process outlives what it uses.
    regions: Vec<RoleProcess>,
    _agents: Vec<Process>,
    control: ControlPlane,
    dir: TempDir,
}

impl Fleet {
    /// Starts everything. Returns once all servers are registered.
    pub(super) async fn start(scenario: &Scenario, contender: Contender) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let text = serde_json::to_vec(scenario).map_err(|e| e.to_string())?;
        std::fs::write(dir.path().join(APPLICATION), text).map_err(|e| e.to_string())?;
        let control = ControlPlane::start(dir.path()).await?;
        control.apply(&declarations(scenario)?).await?;
        let mut agents = Vec::new();
        for region in &scenario.topology.regions {
            let (agent, _) =
                start_agent(dir.path(), &control, &region.name, &socket_of(&region.name)).await?;
            agents.push(agent);
        }
        let scenario = scenario.clone();
        let mut fleet = Self { scenario, contender, regions: Vec::new(), _agents: agents, control, dir };
        // Before servers start, so that calls have classes from the first one on.
        fleet.apply_policies(Phase::Usual).await?;
        for region in &fleet.scenario.topology.regions {
            let args = ["application", "--region", &region.name];
            fleet.regions.push(RoleProcess::start(fleet.dir.path(), &args).await?.0);
        }
        Ok(fleet)
    }

    /// Lets all clients call, and returns what they saw after `times.learn`.
    pub(super) async fn call(&mut self, phase: Phase, times: Times) -> Result<Clocked, String> {
        self.apply_policies(phase).await?;
        clients_call(&mut self.regions, phase, times).await
    }

    /// Lets all clients call at their usual rates, and asks for a prediction of the peak shortly before they end.
    pub(super) async fn call_and_predict_peak(
        &mut self,
        times: Times,
    ) -> Result<(Clocked, Result<f64, String>), String> {
        self.apply_policies(Phase::Usual).await?;
        let (scenario, control) = (&self.scenario, &self.control);
        let prediction = async {
            tokio::time::sleep((times.learn + times.measure).saturating_sub(BEFORE_END)).await;
            predict_peak(scenario, control).await
        };
        let (clocked, predicted) =
            tokio::join!(clients_call(&mut self.regions, Phase::Usual, times), prediction);
        Ok((clocked?, predicted))
    }

    /// Services that the optimizer does not plan at present, each with the reason.
    pub(super) async fn left_to_rings(&self) -> Result<Vec<String>, String> {
        let request = TrafficStatusRequest::default();
        let response = self.control.connection.traffic_planner().status(request).await;
        let planned = response.map_err(|status| status.message().to_owned())?.into_inner().services;
        let why = |name: String| match planned.iter().find(|service| service.service == name) {
            None => Some(format!("{name} has no planner")),
            Some(service) if service.optimized.is_some() => None,
            Some(service) => Some(format!("{name}: {}", service.why_rings)),
        };
        Ok(self.scenario.services.iter().filter_map(|service| why(service_name(&service.name))).collect())
    }

    /// Waterfall's tables depend on the rates. Planners learn these themselves, and their policies stay.
    async fn apply_policies(&self, phase: Phase) -> Result<(), String> {
        let tables = match self.contender {
            Contender::Waterfall => waterfall_tables(&phase.of(&self.scenario)).map_err(|e| e.to_string())?,
            Contender::Optimizer => Vec::new(),
        };
        let services = self.scenario.services.iter();
        let policies: Vec<Value> =
            services.map(|one| policy(&self.scenario, &one.name, self.contender, &tables)).collect();
        self.control.apply(&policies).await
    }
}

async fn clients_call(
    regions: &mut [RoleProcess],
    phase: Phase,
    Times { learn, measure }: Times,
) -> Result<Clocked, String> {
    let order = format!("call {} {} {}", phase.name(), learn.as_millis(), measure.as_millis());
    let length = learn + measure + TIMEOUT;
    let clocked = regions.iter_mut().map(|region| region.run::<Clocked>(order.clone(), length));
    Ok(try_join_all(clocked).await?.into_iter().fold(Clocked::default(), Clocked::plus))
}

/// The mean latency of clients' calls that the control plane predicts for the peak, in milliseconds.
async fn predict_peak(scenario: &Scenario, control: &ControlPlane) -> Result<f64, String> {
    let rate = |phase: Phase, region: &str| -> f64 {
        scenario.clients.iter().map(|clients| phase.rate(clients, region)).sum()
    };
    let factors = scenario.topology.regions.iter().filter_map(|region| {
        let [usual, peak] = [Phase::Usual, Phase::Peak].map(|phase| rate(phase, &region.name));
        (usual > 0.0).then(|| DemandFactor { region: region.name.clone(), factor: peak / usual })
    });
    let request = WhatIfRequest { demand: factors.collect(), ..WhatIfRequest::default() };
    let response = control.connection.traffic_planner().what_if(request).await;
    let then = response.map_err(|status| status.message().to_owned())?.into_inner().then;
    let then = then.ok_or("there is no prediction")?;
    match then.services.iter().find(|service| !service.why_not.is_empty()) {
        Some(service) => Err(format!("{}: {}", service.service, service.why_not)),
        None => Ok(then.latency_ms),
    }
}

/// The documents of topology and services.
fn declarations(scenario: &Scenario) -> Result<Vec<Value>, String> {
    let mut topology = serde_json::to_value(&scenario.topology).map_err(|e| e.to_string())?;
    topology["kind"] = json!("Topology");
    let service = |name: &str| json!({"kind": "Service", "name": service_name(name), "protocol": "http1"});
    let services = scenario.services.iter().map(|one| service(&one.name));
    Ok(std::iter::once(topology).chain(services).collect())
}

/// The policy of a service. Its first operation is its calls without a class, and each further one is a class, as in
/// the simulator.
fn policy(scenario: &Scenario, service: &str, contender: Contender, tables: &[ServiceTables]) -> Value {
    let operations = scenario.operations.iter().filter(|operation| operation.service == service);
    let classes: Vec<&str> = operations.skip(1).map(|operation| operation.name.as_str()).collect();
    let route = |class: &&str| {
        let path = json!({"exact": format!("/{class}")});
        json!({"name": class, "match": {"path": path}, "class": class})
    };
    let routes: Vec<Value> = classes.iter().map(route).collect();
    let traffic = match contender {
        Contender::Waterfall => json!({"shares": shares(service, tables)}),
        Contender::Optimizer => {
            let load = |part: f64| format!("{}%", (part * 100.0).round());
            let rings = scenario.rings.iter();
            let rings = rings.map(|ring| json!({"within": ring.within, "load": load(ring.load)}));
            json!({"planner": contender.name(), "classes": classes, "rings": rings.collect::<Vec<_>>()})
        }
    };
    let timeout = write_duration(TIMEOUT);
    json!({"kind": "Policy", "service": service_name(service), "timeout": timeout, "routes": routes, "traffic": traffic})
}

/// Waterfall's shares of a service.
fn shares(service: &str, tables: &[ServiceTables]) -> Vec<Value> {
    let name = service_name(service);
    let of_service = tables.iter().filter(|(of, _)| of.to_string() == name).flat_map(|(_, tables)| tables);
    let rows = of_service.flat_map(|(from, shares)| {
        let from = from.to_string();
        shares.iter().map(move |(class, row)| share(&from, class, row))
    });
    rows.collect()
}

fn share(from: &str, class: Option<&Label>, row: &RegionShares) -> Value {
    let share =
        |(region, share): (&fairmesh_model::Region, &Share)| (region.to_string(), json!(share.to_string()));
    let to: serde_json::Map<_, _> = row.to.iter().map(share).collect();
    let mut value = json!({"from": from, "to": to});
    if let Some(class) = class {
        value["class"] = json!(class.as_str());
    }
    if row.dropped != Share::NONE {
        value["dropped"] = json!(row.dropped.to_string());
    }
    value
}
