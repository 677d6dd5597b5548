use serde::{Deserialize, Serialize};

use super::value_text::{read, read_address};
use crate::{GatewayBackend, GatewayQuota, GatewayService, Invalid, Label, ServiceName, Tenant, Throttle};

/// A gateway backend: replicas with one configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayBackendSpec {
    /// The name of the backend.
    pub name: String,
    /// The zone, which is one failure domain.
    pub zone: String,
    /// Maximum number of services that the backend serves; 1000 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// The addresses at which nodes connect to the backend's replicas, as `ip:port`.
    pub replicas: Vec<String>,
    /// Whether the backend is closed to further services.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
    /// Whether the backend serves only services that are moved away from others, since their calls harm backends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sandbox: bool,
}

/// A service whose pods are called through a gateway with backends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayServiceSpec {
    /// The service, as `tenant/service`.
    pub service: String,
    /// The zone of most callers.
    pub home_zone: String,
    /// Number of backends that serve the service; 3 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backends: Option<u32>,
    /// Whether further backends are added while its calls grow: `on` or `off`; by default `on`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<String>,
    /// Whether its new connections are limited while they overload a backend: `agreed`, `ask` or `never`; by default `ask`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle: Option<String>,
}

/// Limits of a tenant at a gateway. Limits that are not given come from the options of each replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayQuotaSpec {
    /// The tenant.
    pub tenant: String,
    /// Maximum number of connections, at each replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// Maximum number of new connections per second, at each replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshakes_per_second: Option<u32>,
    /// Maximum number of requests in flight, at each replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    /// Maximum number of services that the tenant's pods call, at each replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<u32>,
    /// Maximum number of routes in all of the tenant's policies together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routes: Option<u32>,
    /// Maximum number of backends for all services of the tenant together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backends: Option<u32>,
}

impl GatewayQuotaSpec {
    /// Validates the quota.
    pub fn validate(&self) -> Result<(Tenant, GatewayQuota), Invalid> {
        let Self { tenant, connections, handshakes_per_second, requests, services, routes, backends } = self;
        let quota = GatewayQuota {
            connections: *connections,
            handshakes_per_second: *handshakes_per_second,
            requests: *requests,
            services: *services,
            routes: *routes,
            backends: *backends,
        };
        quota.validate()?;
        Ok((read("tenant", tenant)?, quota))
    }

    /// The inverse of [`validate`](Self::validate).
    pub fn of(tenant: &Tenant, quota: &GatewayQuota) -> Self {
        let GatewayQuota { connections, handshakes_per_second, requests, services, routes, backends } =
            *quota;
        let tenant = tenant.to_string();
        Self { tenant, connections, handshakes_per_second, requests, services, routes, backends }
    }
}

impl GatewayBackendSpec {
    /// Validates the backend.
    pub fn validate(&self) -> Result<(Label, GatewayBackend), Invalid> {
        let address = |(i, text): (usize, &String)| read_address(&format!("replicas[{i}]"), text);
        let backend = GatewayBackend {
            zone: read("zone", &self.zone)?,
            capacity: self.capacity.unwrap_or(GatewayBackend::DEFAULT_CAPACITY),
            replicas: self.replicas.iter().enumerate().map(address).collect::<Result<_, _>>()?,
            is_closed: self.closed,
            is_sandbox: self.sandbox,
        };
        backend.check_count(1)?;
        backend.validate()?;
        Ok((read("name", &self.name)?, backend))
    }

    /// The inverse of [`validate`](Self::validate).
    pub fn of(name: &Label, backend: &GatewayBackend) -> Self {
        let capacity = backend.capacity;
        Self {
            name: name.to_string(),
            zone: backend.zone.to_string(),
            capacity: (capacity != GatewayBackend::DEFAULT_CAPACITY).then_some(capacity),
            replicas: backend.replicas.iter().map(ToString::to_string).collect(),
            closed: backend.is_closed,
            sandbox: backend.is_sandbox,
        }
    }
}

impl GatewayServiceSpec {
    /// Validates the use of the gateway.
    pub fn validate(&self) -> Result<(ServiceName, GatewayService), Invalid> {
        let backends = self.backends.unwrap_or(GatewayService::MIN_BACKENDS);
        let service = GatewayService {
            home_zone: read("homeZone", &self.home_zone)?,
            backends,
            grows: read_growth(self.growth.as_deref())?,
            throttle: read_throttle(self.throttle.as_deref())?,
        };
        service.validate()?;
        Ok((read("service", &self.service)?, service))
    }

    /// The inverse of [`validate`](Self::validate).
    pub fn of(name: &ServiceName, service: &GatewayService) -> Self {
        Self {
            service: name.to_string(),
            home_zone: service.home_zone.to_string(),
            backends: (service.backends != GatewayService::MIN_BACKENDS).then_some(service.backends),
            growth: (!service.grows).then(|| "off".to_owned()),
            throttle: match service.throttle {
                Throttle::Ask => None,
                Throttle::Agreed => Some("agreed".to_owned()),
                Throttle::Never => Some("never".to_owned()),
            },
        }
    }
}

fn read_growth(text: Option<&str>) -> Result<bool, Invalid> {
    match text {
        None | Some("on") => Ok(true),
        Some("off") => Ok(false),
        Some(other) => Err(Invalid::new("growth", format!("'{other}' is unknown"), "write 'on' or 'off'")),
    }
}

fn read_throttle(text: Option<&str>) -> Result<Throttle, Invalid> {
    match text {
        Some("agreed") => Ok(Throttle::Agreed),
        None | Some("ask") => Ok(Throttle::Ask),
        Some("never") => Ok(Throttle::Never),
        Some(other) => {
            let hint = "write 'agreed', 'ask' or 'never'";
            Err(Invalid::new("throttle", format!("'{other}' is unknown"), hint))
        }
    }
}
