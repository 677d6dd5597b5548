//! The gRPC service for operators: apply configuration, read its history, roll back.

pub(crate) mod authorization_rules;
mod caller_permissions;
mod config_history;
mod manual_region_tables;
mod partition_split;
mod planned_write;
pub(crate) mod route_quota_check;
pub(crate) mod service_identity_check;

use std::sync::Arc;

use fairmesh_controllers::Statuses;
use fairmesh_gateway_control::GatewayLoads;
use fairmesh_model::{CpuBy, Invalid, RecordKey, Revision, ServiceName, Tenant};
use fairmesh_rib::{
    Node,
    access::{AccessControl, Caller, needs_of_value},
    server::WriteError,
};
use fairmesh_store::{PartitionedStore, Store, write_author::saying};
use fairmesh_traces::{Traces, read_traces};
use fairmesh_views::Scope;
use fairmesh_wire::{identity_of, record_encoding, run_blocking, software_of, transport::Waits, v1};
use tokio::{
    sync::{Mutex, MutexGuard},
    task::spawn_blocking,
    time::Instant,
};
use tonic::{Request, Response, Status};

use crate::{
    audit::{AuditLog, Log},
    change_message::read_message,
    controllers,
    reports::CallViews,
    store_error::write_error,
    wall_clock::now_ms,
    zone_probes::ZoneProbes,
};
pub use config_history::HISTORY_KEPT;
pub(crate) use config_history::changes;
use planned_write::{Author, DesiredRecord, PlannedWrite};

/// The gRPC service `Admin`.
#[derive(Clone, Debug)]
pub(crate) struct AdminService {
    pub(crate) node: Node,
    pub(crate) store: Arc<dyn Store>,
    /// The store, if it supports several partitions.
    pub(crate) partitions: Option<Arc<PartitionedStore>>,
    pub(crate) audit: AuditLog,
    pub(crate) access: AccessControl,
    pub(crate) controllers: Statuses,
    pub(crate) calls: Arc<CallViews>,
    pub(crate) probes: ZoneProbes,
    pub(crate) gateway: GatewayLoads,
    pub(crate) traces: Option<Traces>,
    /// Lock held while workloads are written, from the comparison with other tenants' workloads until the node has
    /// applied them. Otherwise two tenants could claim the same programs at the same time.
    pub(crate) workloads: Arc<Mutex<()>>,
}

impl AdminService {
    /// Checks that workloads do not conflict with those of other tenants. No other workloads can be written
    /// until the guard is dropped.
    async fn claim_workloads(
        &self,
        caller: Option<&Caller>,
        desired: &[DesiredRecord],
    ) -> Result<Option<MutexGuard<'_, ()>>, Status> {
        let is_workload = |one: &&DesiredRecord| matches!(one.key, RecordKey::Workload(_));
        let workloads: Vec<&DesiredRecord> = desired.iter().filter(is_workload).collect();
        if workloads.is_empty() {
            return Ok(None);
        }
        let alone = self.workloads.lock().await;
        if let Some(caller) = caller {
            for one in workloads {
                self.access.check(caller, &needs_of_value(&one.key, one.value.as_deref())?)?;
            }
        }
        Ok(Some(alone))
    }

    /// Refuses policies that change a service's rules, unless the caller may also write the service's authorization.
    fn check_rules(&self, caller: Option<&Caller>, desired: &[DesiredRecord]) -> Result<(), Status> {
        let Some(caller) = caller else { return Ok(()) };
        let grants = self.access.grants(caller);
        match authorization_rules::changed_by_policies(&self.node, desired).find(|key| !grants.may_write(key))
        {
            None => Ok(()),
            Some(key) => Err(Status::permission_denied(format!(
                "{caller} may not write {key}: the policy has other rules in 'authorization'; leave them out, which keeps \
                 those in force, or have an authorizer of the tenant apply them"
            ))),
        }
    }

    /// Plans the writes, after checking permissions, the quotas of tenants and the identities of services.
    fn plan(&self, desired: Vec<DesiredRecord>, author: &Author) -> Result<PlannedWrite, WriteError> {
        let written = || desired.iter().map(|one| (&one.key, one.value.as_ref()));
        route_quota_check::check(&self.node, written()).map_err(WriteError::Invalid)?;
        service_identity_check::check(&self.access, written()).map_err(WriteError::Invalid)?;
        planned_write::plan(&self.node, desired, author)
    }

    /// Executes a plan, with the reason that its author gave. Writes are conditional on the records read, so that a
    /// concurrent change wins.
    async fn execute(
        &self,
        plan: PlannedWrite,
        why: String,
        dry_run: bool,
    ) -> Result<v1::ApplyResponse, Status> {
        let revision = match dry_run || plan.batch.ops.is_empty() {
            true => {
                self.node.check(&plan.batch).map_err(WriteError::from)?;
                self.node.revision()
            }
            false => saying(why.into(), self.store.write(plan.batch)).await.map_err(write_error)?,
        };
        Ok(response(plan.outcomes, revision))
    }
}

fn response(outcomes: Vec<v1::Outcome>, revision: Revision) -> v1::ApplyResponse {
    v1::ApplyResponse { outcomes, revision: Some(revision.into()) }
}

#[tonic::async_trait]
impl v1::admin_server::Admin for AdminService {
    type SplitStoreStream = partition_split::Progress;

    async fn read_calls(
        &self,
        request: Request<v1::ReadCallsRequest>,
    ) -> Result<Response<v1::ReadCallsResponse>, Status> {
        let v1::ReadCallsRequest { service, tenant, window_s, series } = request.into_inner();
        let invalid = |problem: Invalid| Status::invalid_argument(problem.to_string());
        let scope = match (service.as_str(), tenant.as_str()) {
            ("", "") => Scope::All,
            ("", tenant) => Scope::Tenant(Tenant::new(tenant).map_err(invalid)?),
            (service, _) => Scope::Service(ServiceName::new(service).map_err(invalid)?),
        };
        let calls = Arc::clone(&self.calls);
        let read = spawn_blocking(move || calls.read((scope, window_s, series))).await;
        read.map(Response::new).map_err(|_| Status::unavailable("the control plane is stopping; retry"))
    }

    async fn read_cost(
        &self,
        request: Request<v1::ReadCostRequest>,
    ) -> Result<Response<v1::ReadCostResponse>, Status> {
        let v1::ReadCostRequest { service, by_origin, window_s } = request.into_inner();
        let service =
            ServiceName::new(service).map_err(|problem| Status::invalid_argument(problem.to_string()))?;
        let by = if by_origin { CpuBy::Origin } else { CpuBy::Caller };
        let calls = Arc::clone(&self.calls);
        let read = spawn_blocking(move || calls.cost(&service, by, window_s)).await;
        read.map(Response::new).map_err(|_| Status::unavailable("the control plane is stopping; retry"))
    }

    async fn read_traces(
        &self,
        request: Request<v1::ReadTracesRequest>,
    ) -> Result<Response<v1::ReadTracesResponse>, Status> {
        read_traces(self.traces.as_ref(), request.get_ref()).map(Response::new)
    }

    async fn read_probes(
        &self,
        _: Request<v1::ReadProbesRequest>,
    ) -> Result<Response<v1::ReadProbesResponse>, Status> {
        Ok(Response::new(self.probes.read()))
    }

    async fn read_gateway(
        &self,
        _: Request<v1::ReadGatewayRequest>,
    ) -> Result<Response<v1::ReadGatewayResponse>, Status> {
        Ok(Response::new(self.gateway.read()))
    }

    async fn split_store(
        &self,
        request: Request<v1::SplitStoreRequest>,
    ) -> Result<Response<Self::SplitStoreStream>, Status> {
        let store = self.partitions.clone().ok_or_else(|| {
            Status::failed_precondition(
                "this store is not partitioned; keep it in etcd, and start the control plane with --partitioned",
            )
        })?;
        let wanted = partition_split::parse_request(request.into_inner()).map_err(invalid)?;
        Ok(Response::new(partition_split::start(store, wanted)))
    }

    async fn read_audit(
        &self,
        request: Request<v1::ReadAuditRequest>,
    ) -> Result<Response<v1::ReadAuditResponse>, Status> {
        let v1::ReadAuditRequest { after, activity } = request.into_inner();
        let log = if activity { Log::Activity } else { Log::Security };
        let read = self.audit.read(log, after).await;
        let (entries, last) =
            read.map_err(|error| Status::internal(format!("the log of writes cannot be read: {error}")))?;
        Ok(Response::new(v1::ReadAuditResponse { entries, last }))
    }

    async fn describe_caller(
        &self,
        request: Request<v1::DescribeCallerRequest>,
    ) -> Result<Response<v1::DescribeCallerResponse>, Status> {
        let caller = request.extensions().get::<Caller>().cloned().unwrap_or_default();
        Ok(Response::new(caller_permissions::describe(&self.access, &caller)))
    }

    async fn list_controllers(
        &self,
        _: Request<v1::ListControllersRequest>,
    ) -> Result<Response<v1::ListControllersResponse>, Status> {
        Ok(Response::new(controllers::describe(&self.controllers, Instant::now())))
    }

    async fn apply(&self, request: Request<v1::ApplyRequest>) -> Result<Response<v1::ApplyResponse>, Status> {
        let (author, waits) = (author(&request), Waits::of(&request));
        let caller = request.extensions().get::<Caller>().cloned();
        let v1::ApplyRequest { ops, dry_run, message } = request.into_inner();
        let author = Author { message: read_message(message).map_err(invalid)?, ..author };
        let desired = run_blocking(&waits, move || planned_write::parse_ops(ops)).await?.map_err(invalid)?;
        let desired = authorization_rules::join(&self.node, desired).map_err(invalid)?;
        self.check_rules(caller.as_ref(), &desired)?;
        let _alone = self.claim_workloads(caller.as_ref(), &desired).await?;
        let plan = self.plan(desired, &author)?;
        self.execute(plan, author.message, dry_run).await.map(Response::new)
    }

    async fn get_history(
        &self,
        request: Request<v1::GetHistoryRequest>,
    ) -> Result<Response<v1::GetHistoryResponse>, Status> {
        let waits = Waits::of(&request);
        let v1::GetHistoryRequest { kind, service } = request.into_inner();
        let key = RecordKey::with_history(&kind, &service).map_err(invalid)?;
        let (node, of) = (self.node.clone(), key.clone());
        let changes = run_blocking(&waits, move || config_history::changes(&node, &of)).await?;
        if changes.is_empty() {
            return Err(Status::not_found(format!(
                "{} never existed; check the name with 'fairmesh get {kind}'",
                config_history::describe(&key)
            )));
        }
        Ok(Response::new(v1::GetHistoryResponse { changes }))
    }

    async fn rollback(
        &self,
        request: Request<v1::RollbackRequest>,
    ) -> Result<Response<v1::ApplyResponse>, Status> {
        let (author, waits) = (author(&request), Waits::of(&request));
        let caller = request.extensions().get::<Caller>().cloned().unwrap_or_default();
        let v1::RollbackRequest { kind, service, revision, message } = request.into_inner();
        let author = Author { message: read_message(message).map_err(invalid)?, ..author };
        let key = RecordKey::with_history(&kind, &service).map_err(invalid)?;
        let (node, of) = (self.node.clone(), key.clone());
        let value = run_blocking(&waits, move || config_history::value_at(&node, &of, revision))
            .await?
            .map_err(|missing| Status::not_found(missing.to_string()))?;
        // A policy that cannot be read may have rules, which a rollback must not bring back.
        if value.as_ref().is_some_and(|value| record_encoding::decode(&key, value).is_err()) {
            return Err(Status::failed_precondition(
                "this release cannot read that value; choose another revision",
            ));
        }
        self.access.check(&caller, &needs_of_value(&key, value.as_deref())?)?;
        let desired =
            authorization_rules::join(&self.node, vec![DesiredRecord::new(key, value)]).map_err(invalid)?;
        let _alone = self.claim_workloads(Some(&caller), &desired).await?;
        let plan = self.plan(desired, &author)?;
        self.execute(plan, author.message, false).await.map(Response::new)
    }
}

fn author<T>(request: &Request<T>) -> Author {
    let caller = request.extensions().get::<Caller>().map(ToString::to_string);
    let caller = caller.unwrap_or_else(|| identity_of(request).to_string());
    let software = software_of(request);
    let by = if software.is_empty() { caller } else { format!("{software} ({caller})") };
    Author { by, at_ms: now_ms(), message: String::new() }
}

fn invalid(problem: Invalid) -> Status {
    WriteError::Invalid(problem).into()
}
