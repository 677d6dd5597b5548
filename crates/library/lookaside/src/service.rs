//! The gRPC service `fairmesh.lookaside.v1.Lookaside`.

use std::sync::Arc;

use bytes::Bytes;
use fairmesh_model::{Identity, InstanceId, Invalid, Protocol, Role, ServiceName, ShardKey};
use fairmesh_router::LoadReport;
use fairmesh_wire::{
    identity_of,
    lookaside::v1::{
        Lease, Load, PickRequest, PickResponse, ReportRequest, ReportResponse, lookaside_server::Lookaside,
    },
    v1,
};
use tonic::{Request, Response, Status};

use crate::{
    metrics::add,
    picker::{LeaseReport, MAX_ENDPOINTS, PickQuery, PickResult, Picker},
};

/// Maximum number of results per report.
const MAX_RESULTS: usize = 1024;

/// Serves callers.
#[derive(Clone, Debug)]
pub(crate) struct LookasideService(pub(crate) Arc<Picker>);

#[tonic::async_trait]
impl Lookaside for LookasideService {
    async fn pick(&self, request: Request<PickRequest>) -> Result<Response<PickResponse>, Status> {
        let caller = identity_of(&request);
        let query = pick_query(caller, request.into_inner()).map_err(|problem| invalid_argument(&problem))?;
        let picked = self.0.pick(&query).await?;
        add(&self.0.metrics.picks, 1);
        Ok(Response::new(self.response(picked)))
    }

    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        let results = request.into_inner().results;
        if results.len() > MAX_RESULTS {
            let message = format!("{} results in one report; send at most {MAX_RESULTS}", results.len());
            return Err(Status::invalid_argument(message));
        }
        let mut unknown = 0;
        for result in results {
            let load = result.load.map(read_load);
            let report =
                LeaseReport { calls: result.calls, failures: result.failures, load, done: result.done };
            unknown += u32::from(!self.0.record(result.lease, report));
        }
        Ok(Response::new(ReportResponse { unknown }))
    }
}

impl LookasideService {
    fn response(&self, picked: PickResult) -> PickResponse {
        let lease = |(id, target): (u64, Arc<fairmesh_router::EndpointTarget>)| Lease {
            id,
            instance: target.instance.to_string(),
            address: target.address.to_string(),
            location: Some(target.location.clone().into()),
            power: target.power,
            mtls: target.identity.is_some(),
        };
        let lease_terms = self.0.lease_terms;
        PickResponse {
            service: picked.service.to_string(),
            leases: picked.leases.into_iter().map(lease).collect(),
            ttl_ms: u32::try_from(lease_terms.ttl.as_millis()).unwrap_or(u32::MAX),
            calls: lease_terms.calls,
            revision: picked.revision,
            first_key: key_bytes(picked.keys.first),
            last_key: key_bytes(picked.keys.last),
            protocol: protocol(picked.protocol).into(),
            policy: Some(picked.policy.into()),
        }
    }
}

fn pick_query(caller: Identity, request: PickRequest) -> Result<PickQuery, Invalid> {
    let avoid = request.avoid.into_iter().take(MAX_ENDPOINTS).map(InstanceId::new);
    Ok(PickQuery {
        caller,
        service: ServiceName::new(request.service).map_err(|problem| problem.within("service"))?,
        key: read_key(&request.key)?,
        role: match request.role.as_str() {
            "" => None,
            role => Some(Role::new(role).map_err(|problem| problem.within("role"))?),
        },
        endpoints: request.endpoints as usize,
        avoid: avoid.collect::<Result<_, _>>().map_err(|problem: Invalid| problem.within("avoid"))?,
    })
}

fn read_key(bytes: &[u8]) -> Result<Option<ShardKey>, Invalid> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let key = <[u8; 16]>::try_from(bytes).map_err(|_| {
        Invalid::new("key", format!("{} bytes are not a key", bytes.len()), "send 16 bytes, big endian")
    })?;
    Ok(Some(ShardKey(u128::from_be_bytes(key))))
}

fn key_bytes(key: ShardKey) -> Bytes {
    Bytes::copy_from_slice(&key.0.to_be_bytes())
}

fn read_load(load: Load) -> LoadReport {
    LoadReport {
        requests: load.requests,
        streams: load.streams,
        // No server uses 65 times its CPU limit.
        cpu: load.cpu.map(|cpu| u16::try_from(cpu).unwrap_or(u16::MAX - 1)),
        metric: load.metric,
    }
}

fn protocol(protocol: Protocol) -> v1::service::Protocol {
    match protocol {
        Protocol::Http1 => v1::service::Protocol::Http1,
        Protocol::Http2 => v1::service::Protocol::Http2,
        Protocol::Grpc => v1::service::Protocol::Grpc,
    }
}

/// Returns the status for an invalid request.
pub(crate) fn invalid_argument(problem: &Invalid) -> Status {
    Status::invalid_argument(problem.to_string())
}
