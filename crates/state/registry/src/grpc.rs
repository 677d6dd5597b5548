use std::time::Duration;

use fairmesh_model::{Invalid, Revision, ServiceName, ShardId, ShardMove};
use fairmesh_store::write_author;
use fairmesh_wire::{agent_of, convert, identity_of, on_behalf_of, transport::Waits, v1};
use tokio::task::spawn_blocking;
use tonic::{Request, Response, Status};

mod load_messages;
mod plaintext_messages;

use crate::{InstanceClaim, InstanceRef, Registration, Registry, RegistryError, StateReport};

/// gRPC service of the registry.
#[derive(Clone, Debug)]
pub struct RegistryService {
    registry: Registry,
}

impl RegistryService {
    /// Serves `registry` over gRPC.
    pub fn new(registry: Registry) -> Self {
        Self { registry }
    }

    /// Returns the revision `number` of the registry's own store.
    fn at(&self, number: u64) -> Option<v1::Revision> {
        Some(Revision { number, ..self.registry.node().revision() }.into())
    }
}

type RpcResult<T> = Result<Response<T>, Status>;

impl From<RegistryError> for Status {
    fn from(error: RegistryError) -> Self {
        let text = error.to_string();
        match error {
            RegistryError::Invalid(_) => Self::invalid_argument(text),
            RegistryError::NotFound(_) => Self::not_found(text),
            RegistryError::Refused(_) => Self::failed_precondition(text),
            RegistryError::Conflict(_) => Self::aborted(text),
            RegistryError::Unavailable(_) => Self::unavailable(text),
        }
    }
}

/// Logs the caller of a request and returns the message.
fn log_and_open<T>(call: &'static str, request: Request<T>) -> T {
    tracing::debug!(call, by = %identity_of(&request), for_whom = on_behalf_of(&request), "registry");
    request.into_inner()
}

#[tonic::async_trait]
impl v1::registry_server::Registry for RegistryService {
    async fn register(&self, request: Request<v1::RegisterRequest>) -> RpcResult<v1::RegisterResponse> {
        let agent = agent_of(&request).cloned();
        let mut registrations =
            each("registrations", log_and_open("register", request).registrations, registration)?;
        for registration in &mut registrations {
            registration.owned_by(agent.as_ref());
        }
        self.registry.refuse_plaintext(&registrations)?;
        let revision = self.registry.register(&registrations).await?;
        Ok(Response::new(v1::RegisterResponse { revision: self.at(revision) }))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> RpcResult<v1::RenewResponse> {
        let v1::RenewRequest { instances, plaintext_callers } = request.into_inner();
        let instances = each("instances", instances, claim)?;
        let callers = each("plaintext_callers", plaintext_callers, plaintext_messages::read)?;
        let unknown = self.registry.renew(&instances).await?;
        let renewed = instances.into_iter().map(|claim| claim.instance);
        let renewed: Vec<_> = renewed.filter(|instance| !unknown.contains(instance)).collect();
        self.registry.report_plaintext_callers(&renewed, &callers).map_err(RegistryError::from)?;
        let unknown = unknown.into_iter().map(|instance| v1::InstanceRef {
            service: instance.service.to_string(),
            instance: instance.instance.to_string(),
            incarnation: 0,
        });
        Ok(Response::new(v1::RenewResponse { unknown: unknown.collect() }))
    }

    async fn read_plaintext_callers(
        &self,
        request: Request<v1::ReadPlaintextCallersRequest>,
    ) -> RpcResult<v1::ReadPlaintextCallersResponse> {
        let servers = self.registry.plaintext_callers(&service(&request.into_inner().service)?);
        let servers =
            servers.into_iter().map(|(instance, callers)| plaintext_messages::server(&instance, &callers));
        Ok(Response::new(v1::ReadPlaintextCallersResponse { servers: servers.collect() }))
    }

    async fn report(&self, request: Request<v1::ReportRequest>) -> RpcResult<v1::ReportResponse> {
        let v1::ReportRequest { reports, by_operator } = log_and_open("report", request);
        let reports = each("reports", reports, state_report)?;
        let revision = match by_operator {
            true => self.registry.report_by_operator(&reports).await?,
            false => self.registry.report(&reports).await?,
        };
        Ok(Response::new(v1::ReportResponse { revision: self.at(revision) }))
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> RpcResult<v1::DrainResponse> {
        let waits = Waits::of(&request);
        let v1::DrainRequest { instances, deadline_ms, by_operator } = log_and_open("drain", request);
        let instances = each("instances", instances, claim)?;
        let patience = Duration::from_millis(deadline_ms.into());
        let author = write_author::current();
        let author = author.as_deref().unwrap_or("an operator");
        let drained = match by_operator {
            true => waits.run(self.registry.drain_by_operator(&instances, author, patience)).await??,
            false => waits.run(self.registry.drain(&instances, patience)).await??,
        };
        Ok(Response::new(v1::DrainResponse {
            revision: self.at(drained.revision),
            callers_moved: drained.callers_moved,
            behind: drained.behind,
        }))
    }

    async fn deregister(&self, request: Request<v1::DeregisterRequest>) -> RpcResult<v1::DeregisterResponse> {
        let v1::DeregisterRequest { instances, only_lost } = log_and_open("deregister", request);
        let instances = each("instances", instances, claim)?;
        let revision = match only_lost {
            true => self.registry.deregister_lost(&instances).await?,
            false => self.registry.deregister(&instances).await?,
        };
        Ok(Response::new(v1::DeregisterResponse { revision: self.at(revision) }))
    }

    async fn get_shards(&self, request: Request<v1::GetShardsRequest>) -> RpcResult<v1::GetShardsResponse> {
        let service = service(&request.into_inner().service)?;
        let map = self.registry.shards(&service)?;
        Ok(Response::new(v1::GetShardsResponse { map: Some(map.into()) }))
    }

    async fn put_shards(&self, request: Request<v1::PutShardsRequest>) -> RpcResult<v1::PutShardsResponse> {
        let request = log_and_open("put_shards", request);
        let service = service(&request.service)?;
        let map = required("map", request.map)?;
        if map.shards.is_empty() {
            self.registry.delete_shards(&service, map.version).await?;
            return Ok(Response::new(v1::PutShardsResponse { version: 0 }));
        }
        let map = map.try_into();
        let map = map.map_err(|e: Invalid| RegistryError::from(e.within("map")))?;
        let version = self.registry.put_shards(&service, &map).await?;
        Ok(Response::new(v1::PutShardsResponse { version }))
    }

    async fn split_shard(&self, request: Request<v1::SplitShardRequest>) -> RpcResult<v1::PutShardsResponse> {
        let request = log_and_open("split_shard", request);
        let service = service(&request.service)?;
        let at = Some(request.at).filter(|at| !at.is_empty());
        let at = at.map(|at| convert::shard_key(&at)).transpose();
        let at = at.map_err(|e| RegistryError::from(e.within("at")))?;
        let version = self.registry.split_shard(&service, ShardId(request.shard), at).await?;
        Ok(Response::new(v1::PutShardsResponse { version }))
    }

    async fn merge_shards(
        &self,
        request: Request<v1::MergeShardsRequest>,
    ) -> RpcResult<v1::PutShardsResponse> {
        let request = log_and_open("merge_shards", request);
        let version = self.registry.merge_shards(&service(&request.service)?, ShardId(request.shard)).await?;
        Ok(Response::new(v1::PutShardsResponse { version }))
    }

    async fn move_shard(&self, request: Request<v1::MoveShardRequest>) -> RpcResult<v1::MoveShardResponse> {
        let request = log_and_open("move_shard", request);
        let shard_move = ShardMove::try_from(required("move", request.r#move)?);
        let shard_move = shard_move.map_err(|e| RegistryError::from(e.within("move")))?;
        self.registry.move_shard(&service(&request.service)?, &shard_move).await?;
        Ok(Response::new(v1::MoveShardResponse {}))
    }

    async fn list_moves(&self, request: Request<v1::ListMovesRequest>) -> RpcResult<v1::ListMovesResponse> {
        let moves = self.registry.list_moves(&service(&request.into_inner().service)?)?;
        let moves = moves.into_iter().map(|status| v1::MoveStatus {
            r#move: Some(status.shard_move.into()),
            phase: status.phase.to_string(),
        });
        Ok(Response::new(v1::ListMovesResponse { moves: moves.collect() }))
    }

    async fn report_shards(
        &self,
        request: Request<v1::ReportShardsRequest>,
    ) -> RpcResult<v1::ReportShardsResponse> {
        let v1::ReportShardsRequest { instance, ready } = log_and_open("report_shards", request);
        let instance =
            claim(required("instance", instance)?).map_err(|e| RegistryError::from(e.within("instance")))?;
        self.registry.report_shards(&instance, ready.into_iter().map(ShardId))?;
        Ok(Response::new(v1::ReportShardsResponse {}))
    }

    async fn report_shard_load(
        &self,
        request: Request<v1::ReportShardLoadRequest>,
    ) -> RpcResult<v1::ReportShardLoadResponse> {
        let mut request = request.into_inner();
        let instance = required("instance", request.instance.take())?;
        let instance = claim(instance).map_err(|e| RegistryError::from(e.within("instance")))?;
        let report = load_messages::report(request).map_err(RegistryError::from)?;
        let outcome = self.registry.report_load(&instance, &report).as_str().into();
        Ok(Response::new(v1::ReportShardLoadResponse { outcome }))
    }

    async fn read_shard_loads(
        &self,
        request: Request<v1::ReadShardLoadsRequest>,
    ) -> RpcResult<v1::ReadShardLoadsResponse> {
        let loads = self.registry.loads(&service(&request.into_inner().service)?)?;
        Ok(Response::new(v1::ReadShardLoadsResponse {
            servers: loads.into_iter().map(load_messages::server).collect(),
        }))
    }

    async fn propose_moves(
        &self,
        request: Request<v1::ProposeMovesRequest>,
    ) -> RpcResult<v1::ProposeMovesResponse> {
        let request = log_and_open("propose_moves", request);
        let service = service(&request.service)?;
        let options = load_messages::options(request).map_err(RegistryError::from)?;
        let registry = self.registry.clone();
        // Planning takes seconds for a map with millions of shards.
        let plan = spawn_blocking(move || registry.propose(&service, &options)).await;
        let plan = plan.map_err(|stopped| Status::internal(stopped.to_string()))??;
        Ok(Response::new(load_messages::plan(plan)))
    }
}

/// Decodes every message of a list. An error names the list entry.
fn each<M, T>(
    field: &str,
    messages: Vec<M>,
    read: impl Fn(M) -> Result<T, Invalid>,
) -> Result<Vec<T>, RegistryError> {
    let read = |(i, message)| read(message).map_err(|e| e.within(format!("{field}[{i}]")));
    Ok(messages.into_iter().enumerate().map(read).collect::<Result<_, _>>()?)
}

fn required<T>(field: &str, message: Option<T>) -> Result<T, RegistryError> {
    message.ok_or_else(|| Invalid::new(field, "is missing", "send it").into())
}

fn service(text: &str) -> Result<ServiceName, RegistryError> {
    ServiceName::new(text).map_err(|e| e.within("service").into())
}

fn claim(message: v1::InstanceRef) -> Result<InstanceClaim, Invalid> {
    let instance = InstanceRef {
        service: message.service.try_into().map_err(|e: Invalid| e.within("service"))?,
        instance: message.instance.try_into().map_err(|e: Invalid| e.within("instance"))?,
    };
    Ok(InstanceClaim { instance, incarnation: message.incarnation })
}

fn registration(message: v1::Registration) -> Result<Registration, Invalid> {
    let endpoint = message.endpoint.ok_or_else(|| Invalid::new("endpoint", "is missing", "send it"))?;
    let declaration = message.declaration.map(TryInto::try_into).transpose();
    let explicit_state = endpoint.state() != v1::endpoint::State::Unspecified;
    Ok(Registration {
        service: message.service.try_into().map_err(|e: Invalid| e.within("service"))?,
        endpoint: endpoint.try_into().map_err(|e: Invalid| e.within("endpoint"))?,
        explicit_state,
        declaration: declaration.map_err(|e: Invalid| e.within("declaration"))?,
    })
}

fn state_report(message: v1::StateReport) -> Result<StateReport, Invalid> {
    let state = message.state();
    if i32::from(state) != message.state || state == v1::endpoint::State::Unspecified {
        let problem = format!("{} is not a state", message.state);
        return Err(Invalid::new("state", problem, "send a state of fairmesh.v1.Endpoint"));
    }
    let instance = message.instance.ok_or_else(|| Invalid::new("instance", "is missing", "send it"))?;
    Ok(StateReport { claim: claim(instance).map_err(|e| e.within("instance"))?, state: state.into() })
}

#[cfg(test)]
mod tests {
    use fairmesh_model::Endpoint;
    use tonic::Code;
    use v1::registry_server::Registry as _;

    use super::*;
    use crate::testing::{TestRegistry, cart, endpoint};

    fn message(endpoint: Endpoint) -> v1::Registration {
        v1::Registration { service: cart().to_string(), endpoint: Some(endpoint.into()), declaration: None }
    }

    #[tokio::test]
    async fn registry_refusals_carry_grpc_code_field_and_hint() {
        let test = TestRegistry::new();
        let service = RegistryService::new(test.registry.clone());
        let mut wrong = message(endpoint("a").endpoint);
        wrong.service = "cart".into();
        let registrations = vec![message(endpoint("b").endpoint), wrong];
        let status = service.register(Request::new(v1::RegisterRequest { registrations })).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with("registrations[1].service: "), "{status}");
        assert!(status.message().contains("shop/cart"), "{status}");

        let unknown = v1::InstanceRef { service: cart().to_string(), instance: "a".into(), incarnation: 0 };
        let drain = v1::DrainRequest { instances: vec![unknown.clone()], ..Default::default() };
        assert_eq!(service.drain(Request::new(drain)).await.unwrap_err().code(), Code::NotFound);
        let report = v1::StateReport { instance: Some(unknown.clone()), state: 99 };
        let report = v1::ReportRequest { reports: vec![report], by_operator: true };
        assert_eq!(service.report(Request::new(report)).await.unwrap_err().code(), Code::InvalidArgument);
        let deregister = v1::DeregisterRequest { instances: vec![unknown], only_lost: true };
        assert_eq!(service.deregister(Request::new(deregister)).await.unwrap_err().code(), Code::NotFound);
    }

    #[tokio::test]
    async fn registration_with_state_sets_it_and_without_state_keeps_drain() {
        use fairmesh_model::EndpointState::{Draining, Serving};
        let test = TestRegistry::new();
        let service = RegistryService::new(test.registry.clone());
        let register = |state: v1::endpoint::State| {
            let mut one = message(endpoint("a").endpoint);
            one.endpoint.as_mut().unwrap().state = state.into();
            service.register(Request::new(v1::RegisterRequest { registrations: vec![one] }))
        };
        register(v1::endpoint::State::Unspecified).await.unwrap();
        assert_eq!(test.state("a"), Some(Serving));
        test.registry.drain(&[crate::testing::any_process("a")], Duration::ZERO).await.unwrap();
        register(v1::endpoint::State::Unspecified).await.unwrap();
        assert_eq!(test.state("a"), Some(Draining));
        register(v1::endpoint::State::Serving).await.unwrap();
        assert_eq!(test.state("a"), Some(Serving));
    }
}
