//! Gateway backends, the services that use them, and the placement of services on backends.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{
    ConnectionLimit, GatewayBackend, GatewayQuota, GatewayService, Invalid, Label, Placement, PlacementPin,
    Throttle, Zone,
};

use super::endpoint::socket_address;
use crate::v1;

impl From<GatewayBackend> for v1::GatewayBackend {
    fn from(backend: GatewayBackend) -> Self {
        let GatewayBackend { zone, capacity, replicas, is_closed, is_sandbox } = backend;
        let replicas = replicas.iter().map(ToString::to_string).collect();
        Self { zone: zone.into(), capacity, replicas, closed: is_closed, sandbox: is_sandbox }
    }
}

impl TryFrom<v1::GatewayBackend> for GatewayBackend {
    type Error = Invalid;

    fn try_from(message: v1::GatewayBackend) -> Result<Self, Invalid> {
        let v1::GatewayBackend { zone, capacity, replicas, closed, sandbox } = message;
        let backend = Self {
            zone: read_zone("zone", zone)?,
            capacity,
            replicas: replicas
                .iter()
                .map(|text| socket_address("replicas", text))
                .collect::<Result<_, _>>()?,
            is_closed: closed,
            is_sandbox: sandbox,
        };
        backend.validate()?;
        Ok(backend)
    }
}

impl From<GatewayQuota> for v1::GatewayQuota {
    fn from(quota: GatewayQuota) -> Self {
        let GatewayQuota { connections, handshakes_per_second, requests, services, routes, backends } = quota;
        Self { connections, handshakes_per_second, requests, services, routes, backends }
    }
}

impl TryFrom<v1::GatewayQuota> for GatewayQuota {
    type Error = Invalid;

    fn try_from(message: v1::GatewayQuota) -> Result<Self, Invalid> {
        let v1::GatewayQuota { connections, handshakes_per_second, requests, services, routes, backends } =
            message;
        let quota = Self { connections, handshakes_per_second, requests, services, routes, backends };
        quota.validate()?;
        Ok(quota)
    }
}

impl From<GatewayService> for v1::GatewayService {
    fn from(service: GatewayService) -> Self {
        let GatewayService { home_zone, backends, grows, throttle } = service;
        let throttle = match throttle {
            Throttle::Ask => v1::gateway_service::Throttle::Ask,
            Throttle::Agreed => v1::gateway_service::Throttle::Agreed,
            Throttle::Never => v1::gateway_service::Throttle::Never,
        };
        Self { home_zone: home_zone.into(), backends, growth_off: !grows, throttle: throttle.into() }
    }
}

impl TryFrom<v1::GatewayService> for GatewayService {
    type Error = Invalid;

    fn try_from(message: v1::GatewayService) -> Result<Self, Invalid> {
        // An unknown value, of a newer release, counts as the default.
        let throttle = match message.throttle() {
            v1::gateway_service::Throttle::Ask => Throttle::Ask,
            v1::gateway_service::Throttle::Agreed => Throttle::Agreed,
            v1::gateway_service::Throttle::Never => Throttle::Never,
        };
        let v1::GatewayService { home_zone, backends, growth_off, .. } = message;
        let home_zone = read_zone("home_zone", home_zone)?;
        let service = Self { home_zone, backends, grows: !growth_off, throttle };
        service.validate()?;
        Ok(service)
    }
}

impl From<Placement> for v1::Placement {
    fn from(placement: Placement) -> Self {
        let zones = placement.zones.into_iter().map(|(zone, backends)| v1::ZoneBackends {
            zone: zone.into(),
            backends: backends.into_iter().map(String::from).collect(),
        });
        Self {
            home_zone: placement.home_zone.into(),
            zones: zones.collect(),
            added: placement.added,
            pinned: placement.pinned.map(v1::PlacementPin::from),
            connection_limit: placement.connection_limit.map(v1::ConnectionLimit::from),
        }
    }
}

impl From<PlacementPin> for v1::PlacementPin {
    fn from(PlacementPin { reason, at_ms, ends_connections, is_sandbox }: PlacementPin) -> Self {
        Self { reason, at_ms, ends_connections, sandbox: is_sandbox }
    }
}

impl From<v1::PlacementPin> for PlacementPin {
    fn from(v1::PlacementPin { reason, at_ms, ends_connections, sandbox }: v1::PlacementPin) -> Self {
        Self { reason, at_ms, ends_connections, is_sandbox: sandbox }
    }
}

impl From<ConnectionLimit> for v1::ConnectionLimit {
    fn from(ConnectionLimit { per_second, reason, at_ms, is_automatic }: ConnectionLimit) -> Self {
        Self { per_second, reason, at_ms, automatic: is_automatic }
    }
}

impl From<v1::ConnectionLimit> for ConnectionLimit {
    fn from(v1::ConnectionLimit { per_second, reason, at_ms, automatic }: v1::ConnectionLimit) -> Self {
        Self { per_second, reason, at_ms, is_automatic: automatic }
    }
}

impl TryFrom<v1::Placement> for Placement {
    type Error = Invalid;

    fn try_from(message: v1::Placement) -> Result<Self, Invalid> {
        let v1::Placement { home_zone, zones, added, pinned, connection_limit } = message;
        let mut by_zone: BTreeMap<Zone, BTreeSet<Label>> = BTreeMap::new();
        for v1::ZoneBackends { zone, backends } in zones {
            let zone = read_zone("zones.zone", zone)?;
            let backends = backends.into_iter().map(Label::try_from).collect::<Result<Vec<_>, _>>();
            by_zone.entry(zone).or_default().extend(backends.map_err(|e| e.within("zones.backends"))?);
        }
        let placement = Self {
            home_zone: read_zone("home_zone", home_zone)?,
            zones: by_zone,
            added,
            pinned: pinned.map(PlacementPin::from),
            connection_limit: connection_limit.map(ConnectionLimit::from),
        };
        placement.validate()?;
        Ok(placement)
    }
}

fn read_zone(field: &str, text: String) -> Result<Zone, Invalid> {
    Zone::try_from(text).map_err(|e| e.within(field))
}
