//! Endpoints and declarations of services: `Endpoint` and `Service` of `records.proto`.

use std::{net::SocketAddr, time::Duration};

use fairmesh_model::{
    Endpoint, EndpointState, FULL_WEIGHT, Invalid, Location, Protocol, Service, ServiceKind,
};

use super::{read_enum, required};
use crate::v1;

impl From<Location> for v1::Location {
    fn from(location: Location) -> Self {
        let Location { region, zone, cluster, host_type } = location;
        Self {
            region: region.into(),
            zone: zone.map(Into::into).unwrap_or_default(),
            cluster: cluster.map(Into::into).unwrap_or_default(),
            host_type: host_type.map(Into::into).unwrap_or_default(),
        }
    }
}

impl TryFrom<v1::Location> for Location {
    type Error = Invalid;

    fn try_from(message: v1::Location) -> Result<Self, Invalid> {
        Ok(Self {
            region: message.region.try_into().map_err(|e: Invalid| e.within("region"))?,
            zone: optional("zone", message.zone)?,
            cluster: optional("cluster", message.cluster)?,
            host_type: optional("host_type", message.host_type)?,
        })
    }
}

/// Parses an optional name, which is empty if absent.
fn optional<N: TryFrom<String, Error = Invalid>>(field: &str, text: String) -> Result<Option<N>, Invalid> {
    if text.is_empty() {
        return Ok(None);
    }
    N::try_from(text).map(Some).map_err(|e| e.within(field))
}

pub(super) fn socket_address(field: &str, text: &str) -> Result<SocketAddr, Invalid> {
    text.parse().map_err(|_| {
        Invalid::new(
            field,
            format!("'{text}' is not an address"),
            "write an IP address and a port: 10.0.0.7:8080",
        )
    })
}

impl From<EndpointState> for v1::endpoint::State {
    fn from(state: EndpointState) -> Self {
        match state {
            EndpointState::Starting => Self::Starting,
            EndpointState::Serving => Self::Serving,
            EndpointState::Draining => Self::Draining,
            EndpointState::Lost => Self::Lost,
        }
    }
}

impl From<v1::endpoint::State> for EndpointState {
    fn from(state: v1::endpoint::State) -> Self {
        match state {
            v1::endpoint::State::Starting => Self::Starting,
            // An absent state has the model's default.
            v1::endpoint::State::Unspecified | v1::endpoint::State::Serving => Self::Serving,
            v1::endpoint::State::Draining => Self::Draining,
            v1::endpoint::State::Lost => Self::Lost,
        }
    }
}

impl From<Endpoint> for v1::Endpoint {
    fn from(endpoint: Endpoint) -> Self {
        let Endpoint { instance, address, location, state, weight, lease, mtls, labels } = endpoint;
        Self {
            instance: instance.into(),
            address: address.to_string(),
            location: Some(location.into()),
            state: v1::endpoint::State::from(state).into(),
            weight,
            lease_ms: lease.map_or(0, |lease| u32::try_from(lease.as_millis()).unwrap_or(u32::MAX)),
            labels,
            mtls,
        }
    }
}

impl TryFrom<v1::Endpoint> for Endpoint {
    type Error = Invalid;

    fn try_from(message: v1::Endpoint) -> Result<Self, Invalid> {
        let state: v1::endpoint::State = read_enum("state", message.state)?;
        let location = required("location", message.location)?;
        let endpoint = Self {
            instance: message.instance.try_into().map_err(|e: Invalid| e.within("instance"))?,
            address: socket_address("address", &message.address)?,
            location: location.try_into().map_err(|e: Invalid| e.within("location"))?,
            state: state.into(),
            weight: if message.weight == 0 { FULL_WEIGHT } else { message.weight },
            lease: (message.lease_ms > 0).then(|| Duration::from_millis(message.lease_ms.into())),
            mtls: message.mtls,
            labels: message.labels,
        };
        endpoint.validate()?;
        Ok(endpoint)
    }
}

impl From<Service> for v1::Service {
    fn from(service: Service) -> Self {
        let kind = match service.kind {
            ServiceKind::Replicated => v1::service::Kind::Replicated,
            ServiceKind::Sharded => v1::service::Kind::Sharded,
            ServiceKind::ConsistentHash => v1::service::Kind::ConsistentHash,
        };
        let protocol = match service.protocol {
            Protocol::Http1 => v1::service::Protocol::Http1,
            Protocol::Http2 => v1::service::Protocol::Http2,
            Protocol::Grpc => v1::service::Protocol::Grpc,
        };
        Self {
            kind: kind.into(),
            protocol: protocol.into(),
            virtual_address: service.virtual_address.map(|address| address.to_string()).unwrap_or_default(),
            identity: service.identity.map(|id| id.to_string()).unwrap_or_default(),
        }
    }
}

impl TryFrom<v1::Service> for Service {
    type Error = Invalid;

    fn try_from(message: v1::Service) -> Result<Self, Invalid> {
        let virtual_address = match message.virtual_address.as_str() {
            "" => None,
            text => Some(socket_address("virtual_address", text)?),
        };
        let identity = match message.identity.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|e: Invalid| e.within("identity"))?),
        };
        let service = Self {
            kind: match read_enum("kind", message.kind)? {
                v1::service::Kind::Unspecified | v1::service::Kind::Replicated => ServiceKind::Replicated,
                v1::service::Kind::Sharded => ServiceKind::Sharded,
                v1::service::Kind::ConsistentHash => ServiceKind::ConsistentHash,
            },
            protocol: match read_enum("protocol", message.protocol)? {
                v1::service::Protocol::Unspecified | v1::service::Protocol::Http1 => Protocol::Http1,
                v1::service::Protocol::Http2 => Protocol::Http2,
                v1::service::Protocol::Grpc => Protocol::Grpc,
            },
            virtual_address,
            identity,
        };
        service.validate()?;
        Ok(service)
    }
}
