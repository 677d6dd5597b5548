use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use fairmesh_connections::EndpointPool;
use fairmesh_model::{
    Endpoint, EndpointState, Hosts, InstanceId, Invalid, KeyRange, Location, MAX_WEIGHT, Policy, Protocol,
    Region, Regions, RoundTrips, Service, ServiceKind, ShardKey, Verdicts, arith::hash_text,
};
use fairmesh_router::{CompileInput, ServiceTable};
use fairmesh_wire::{
    lookaside::v1::{Lease, PickResponse},
    v1,
};

use crate::discovery::{ReadyService, ServiceState, Subscription};

/// The leases of one response, as endpoints.
#[derive(Debug)]
pub(super) struct LeaseTable {
    /// Lease id of each endpoint, for reports.
    pub(super) leases: BTreeMap<InstanceId, u64>,
    /// The keys that the endpoints serve.
    pub(super) keys: KeyRange,
    endpoints: Vec<Endpoint>,
    policy: Policy,
    protocol: Protocol,
    revision: u64,
}

impl LeaseTable {
    /// Reads a response. One invalid part makes the whole response invalid.
    pub(super) fn read(response: PickResponse) -> Result<Self, Invalid> {
        let endpoints: Vec<_> = response.leases.iter().map(endpoint).collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(Invalid::new(
                "leases",
                "there is none",
                "report this to the operator of the lookaside",
            ));
        }
        let ids = response.leases.iter().map(|lease| lease.id);
        Ok(Self {
            leases: endpoints.iter().map(|endpoint| endpoint.instance.clone()).zip(ids).collect(),
            keys: KeyRange { first: key(&response.first_key)?, last: key(&response.last_key)? },
            endpoints,
            protocol: match response.protocol() {
                v1::service::Protocol::Unspecified | v1::service::Protocol::Http1 => Protocol::Http1,
                v1::service::Protocol::Http2 => Protocol::Http2,
                v1::service::Protocol::Grpc => Protocol::Grpc,
            },
            // The lookaside has applied its own policy.
            policy: Policy {
                lookaside: None,
                traffic: None,
                ..response.policy.map(Policy::try_from).transpose()?.unwrap_or_default()
            },
            revision: response.revision,
        })
    }

    /// Publishes the leases as the state of the service. Connections to unchanged endpoints are kept. A lease is
    /// trusted no more than a record: where mutual TLS is required, a plaintext lease is used only if the policy
    /// permits plaintext.
    pub(super) fn publish(
        &self,
        subscription: &Arc<Subscription<Arc<EndpointPool>>>,
        client_id: &str,
        requires_mtls: bool,
    ) {
        let before = subscription.state();
        let before = match &*before {
            ServiceState::Ready(ready) => Some(ready),
            _ => None,
        };
        let service = Service {
            kind: ServiceKind::Replicated,
            protocol: self.protocol,
            virtual_address: None,
            identity: None,
        };
        let facts = CompileInput {
            name: subscription.name(),
            service: &service,
            policy: &self.policy,
            endpoints: &self.endpoints,
            shards: None,
            location: &unknown_location(),
            regions: &Regions::default(),
            round_trips: &RoundTrips::default(),
            table: None,
            hosts: &Hosts::default(),
            health: &Verdicts::default(),
            now: 0,
            client_id,
            client: hash_text(client_id),
            requires_mtls,
            authorizes_callers: false,
        };
        let upstream =
            ServiceTable::compile(&facts, subscription.endpoint_stats(), before.map(|ready| &ready.upstream));
        subscription.publish(ServiceState::Ready(ReadyService::new(
            upstream,
            Vec::new(),
            self.revision,
            before,
        )));
    }
}

/// Returns a placeholder location. This program's location does not matter, because every leased endpoint may be
/// called.
fn unknown_location() -> Location {
    Location::in_region(Region::new("nowhere").unwrap_or_else(|_| unreachable!("a valid name")))
}

fn endpoint(lease: &Lease) -> Result<Endpoint, Invalid> {
    let address: SocketAddr = lease.address.parse().map_err(|_| {
        let problem = format!("'{}' is not an address", lease.address);
        Invalid::new("address", problem, "report this to the operator of the lookaside")
    })?;
    Ok(Endpoint {
        instance: InstanceId::new(&lease.instance)?,
        address,
        location: match &lease.location {
            Some(location) => location.clone().try_into()?,
            None => unknown_location(),
        },
        state: EndpointState::Serving,
        weight: lease.power.clamp(1, MAX_WEIGHT),
        lease: None,
        mtls: lease.mtls,
        labels: BTreeMap::new(),
    })
}

fn key(bytes: &[u8]) -> Result<ShardKey, Invalid> {
    let bytes = <[u8; 16]>::try_from(bytes);
    let bytes = bytes.map_err(|_| {
        Invalid::new("keys", "they are not 16 bytes", "report this to the operator of the lookaside")
    })?;
    Ok(ShardKey(u128::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(address: &str) -> PickResponse {
        let key = |byte| bytes::Bytes::copy_from_slice(&[byte; 16]);
        let lease = |id: u64| Lease {
            id,
            instance: format!("one-{id}"),
            address: address.into(),
            ..Lease::default()
        };
        PickResponse {
            leases: vec![lease(1), lease(2)],
            first_key: key(0),
            last_key: key(255),
            ..PickResponse::default()
        }
    }

    #[test]
    fn invalid_lease_makes_lookaside_response_invalid() {
        let table = LeaseTable::read(response("127.0.0.1:80")).unwrap();
        assert_eq!((table.leases.len(), table.keys), (2, KeyRange::ALL));
        let truncated =
            PickResponse { first_key: bytes::Bytes::from_static(b"1"), ..response("127.0.0.1:80") };
        let none = PickResponse { leases: Vec::new(), ..response("127.0.0.1:80") };
        for wrong in [response("nowhere"), truncated, none] {
            assert!(LeaseTable::read(wrong).is_err());
        }
    }
}
