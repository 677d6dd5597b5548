use std::time::Duration;

use axum::{Json, extract::State, http::Extensions};
use fairmesh_model::{
    EndpointState, InstanceId, Invalid, ServiceName,
    spec::{EndpointsSpec, read_duration},
};
use fairmesh_wire::transport::Waits;
use serde::{Deserialize, Serialize};
use tonic::Status;

use super::json::{Failure, Spec};
use crate::{InstanceClaim, InstanceRef, Registration, Registry, RegistryError, StateReport};

/// Default time that a drain waits for callers.
const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Instances {
    service: String,
    instances: Vec<String>,
}

impl Instances {
    fn plan(&self) -> Result<Vec<InstanceClaim>, Invalid> {
        let service = service(&self.service)?;
        let instances = self.instances.iter().enumerate();
        instances
            .map(|(i, text)| {
                let instance = instance(&format!("instances[{i}]"), text)?;
                Ok(InstanceRef { service: service.clone(), instance }.into())
            })
            .collect()
    }
}

fn service(text: &str) -> Result<ServiceName, Invalid> {
    ServiceName::new(text).map_err(|e| e.within("service"))
}

fn instance(field: &str, text: &str) -> Result<InstanceId, Invalid> {
    InstanceId::new(text).map_err(|e| e.within(field))
}

#[derive(Serialize)]
pub(super) struct RevisionResponse {
    revision: u64,
}

pub(super) async fn register(
    State(registry): State<Registry>,
    Spec(spec): Spec<EndpointsSpec>,
) -> Result<Json<RevisionResponse>, Failure> {
    let (service, endpoints) = spec.validate()?;
    let registrations = endpoints.into_iter().zip(&spec.endpoints).map(|(endpoint, written)| Registration {
        service: service.clone(),
        endpoint,
        explicit_state: written.state.is_some(),
        declaration: None,
    });
    let registrations: Vec<_> = registrations.collect();
    registry.refuse_plaintext(&registrations)?;
    let revision = registry.register(&registrations).await?;
    Ok(Json(RevisionResponse { revision }))
}

#[derive(Serialize)]
pub(super) struct RenewResponse {
    unknown: Vec<String>,
}

pub(super) async fn renew(
    State(registry): State<Registry>,
    Spec(body): Spec<Instances>,
) -> Result<Json<RenewResponse>, Failure> {
    let unknown = registry.renew(&body.plan()?).await?;
    Ok(Json(RenewResponse {
        unknown: unknown.iter().map(|instance| instance.instance.to_string()).collect(),
    }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct EndpointStateReports {
    service: String,
    reports: Vec<EndpointStateReport>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EndpointStateReport {
    instance: String,
    state: EndpointState,
}

pub(super) async fn report(
    State(registry): State<Registry>,
    Spec(body): Spec<EndpointStateReports>,
) -> Result<Json<RevisionResponse>, Failure> {
    let service = service(&body.service)?;
    let reports = body.reports.iter().enumerate().map(|(i, report)| {
        let instance = instance(&format!("reports[{i}].instance"), &report.instance)?;
        let claim = InstanceRef { service: service.clone(), instance }.into();
        Ok(StateReport { claim, state: report.state })
    });
    let reports = reports.collect::<Result<Vec<_>, Invalid>>()?;
    Ok(Json(RevisionResponse { revision: registry.report(&reports).await? }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Drain {
    service: String,
    instances: Vec<String>,
    deadline: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DrainOutcome {
    revision: u64,
    callers_moved: bool,
    behind: Vec<String>,
}

pub(super) async fn drain(
    State(registry): State<Registry>,
    extensions: Extensions,
    Spec(body): Spec<Drain>,
) -> Result<Json<DrainOutcome>, Failure> {
    let Drain { service, instances, deadline } = body;
    let timeout = deadline.map_or(Ok(DEFAULT_DRAIN_TIMEOUT), |text| read_duration(&text));
    let timeout = timeout.map_err(|e| e.within("deadline"))?;
    let instances = Instances { service, instances }.plan()?;
    let drained = Waits::of_http(&extensions).run(registry.drain(&instances, timeout)).await;
    let unavailable =
        |refused: Status| Invalid::new("deadline", refused.message(), "ask for less time, or later");
    let drained = drained.map_err(|refused| RegistryError::Unavailable(unavailable(refused)))??;
    let crate::DrainOutcome { revision, callers_moved, behind } = drained;
    Ok(Json(DrainOutcome { revision, callers_moved, behind }))
}

pub(super) async fn deregister(
    State(registry): State<Registry>,
    Spec(body): Spec<Instances>,
) -> Result<Json<RevisionResponse>, Failure> {
    let revision = registry.deregister(&body.plan()?).await?;
    Ok(Json(RevisionResponse { revision }))
}
