//! `fairmesh.lookaside.v1.Lookaside`.

use std::sync::Arc;

use bytes::Bytes;
use fairmesh_model::{InstanceId, Invalid, Protocol, Role, ServiceName, ShardKey};
use fairmesh_router::LoadReport;
use fairmesh_wire::{
    lookaside::v1::{
        Lease, Load, PickRequest, PickResponse, ReportRequest, ReportResponse, lookaside_server::Lookaside,
    },
    v1,
};
use tonic::{Request, Response, Status};

use crate::{
    metrics::add,
    picker::{Given, MOST_ENDPOINTS, Picker, Told, Wanted},
};

/// The most results of one report.
const MOST_RESULTS: usize = 1024;

/// Answers callers.
#[derive(Clone, Debug)]
pub(crate) struct Service(pub(crate) Arc<Picker>);

#[tonic::async_trait]
impl Lookaside for Service {
    async fn pick(&self, request: Request<PickRequest>) -> Result<Response<PickResponse>, Status> {
        let wanted = wanted(request.into_inner()).map_err(|problem| refused(&problem))?;
        let given = self.0.pick(&wanted).await.map_err(|fault| Status::from_error(Box::new(fault)))?;
        add(&self.0.metrics.picks, 1);
        Ok(Response::new(self.answer(given)))
    }

    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        let results = request.into_inner().results;
        if results.len() > MOST_RESULTS {
            let message = format!("{} results at once; send {MOST_RESULTS} at most", results.len());
            return Err(Status::invalid_argument(message));
        }
        let mut unknown = 0;
        for result in results {
            let load = result.load.map(read_load);
            let told = Told { calls: result.calls, failures: result.failures, load, done: result.done };
            unknown += u32::from(!self.0.learn(result.lease, told));
        }
        Ok(Response::new(ReportResponse { unknown }))
    }
}

impl Service {
    fn answer(&self, given: Given) -> PickResponse {
        let lease = |(id, target): (u64, Arc<fairmesh_router::EndpointTarget>)| Lease {
            id,
            instance: target.instance.to_string(),
            address: target.address.to_string(),
            location: Some(target.location.clone().into()),
            power: target.power,
        };
        let terms = self.0.terms;
        PickResponse {
            service: given.service.to_string(),
            leases: given.leases.into_iter().map(lease).collect(),
            ttl_ms: u32::try_from(terms.ttl.as_millis()).unwrap_or(u32::MAX),
            calls: terms.calls,
            revision: given.revision,
            first_key: key_bytes(given.keys.first),
            last_key: key_bytes(given.keys.last),
            protocol: spoken(given.protocol).into(),
            policy: Some(given.policy.into()),
        }
    }
}

fn wanted(request: PickRequest) -> Result<Wanted, Invalid> {
    let avoid = request.avoid.into_iter().take(MOST_ENDPOINTS).map(InstanceId::new);
    Ok(Wanted {
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
        Invalid::new(
            "key",
            format!("{} bytes are no key", bytes.len()),
            "send 16 bytes, the first the greatest",
        )
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
        // Nobody uses 65 times the CPU that it may.
        cpu: load.cpu.map(|cpu| u16::try_from(cpu).unwrap_or(u16::MAX - 1)),
        metric: load.metric,
    }
}

fn spoken(protocol: Protocol) -> v1::service::Protocol {
    match protocol {
        Protocol::Http1 => v1::service::Protocol::Http1,
        Protocol::Http2 => v1::service::Protocol::Http2,
        Protocol::Grpc => v1::service::Protocol::Grpc,
    }
}

/// What a caller is told of a request that makes no sense.
pub(crate) fn refused(problem: &Invalid) -> Status {
    Status::invalid_argument(problem.to_string())
}
