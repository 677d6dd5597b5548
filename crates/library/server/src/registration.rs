//! Registration of an endpoint with the registry.

pub(crate) mod backoff;
pub(crate) mod lease;
pub(crate) mod registry_addresses;
pub(crate) mod registry_client;

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use fairmesh_model::{Endpoint, EndpointState, InstanceId, Invalid, Location, Region, Service, ServiceName};
use fairmesh_wire::v1;

/// Label of a server that itself reports its loaded shards.
pub const SHARDS_LABEL: &str = "fairmesh.shards";
/// The value of [`SHARDS_LABEL`].
pub const SHARDS_AWARE: &str = "aware";

/// Default term of a lease. A server that dies is marked lost after this time.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(10);

/// An endpoint as sent to the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Name of the service.
    pub service: ServiceName,
    /// Identity of the endpoint, the same after a restart.
    pub instance: InstanceId,
    /// Address for callers.
    pub address: SocketAddr,
    /// Location of the endpoint; `None` uses the agent's location.
    pub location: Option<Location>,
    /// Relative compute capacity in thousandths of an ordinary host.
    pub weight: u32,
    /// How long the endpoint stays live without renewal, from 1 s to 1 h.
    pub lease: Duration,
    /// Whether the endpoint accepts only mutual TLS.
    pub mtls: bool,
    /// Labels of the endpoint.
    pub labels: BTreeMap<String, String>,
    /// The declaration of the service, used if there is none yet.
    pub declaration: Option<Service>,
}

impl Registration {
    /// Validates what the types do not guarantee, for example that callers can use the address.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.address.ip().is_unspecified() {
            return Err(Invalid::new(
                "address",
                format!("{} is every address of this machine and none that a caller can use", self.address),
                "set the address under which other machines reach it",
            ));
        }
        let anywhere = Location::in_region(Region::new("anywhere")?);
        self.endpoint(anywhere, EndpointState::Starting).validate()
    }

    fn endpoint(&self, location: Location, state: EndpointState) -> Endpoint {
        Endpoint {
            instance: self.instance.clone(),
            address: self.address,
            location,
            state,
            weight: self.weight,
            lease: Some(self.lease),
            mtls: self.mtls,
            labels: self.labels.clone(),
        }
    }

    pub(crate) fn message(&self, location: Location, state: EndpointState) -> v1::Registration {
        v1::Registration {
            service: self.service.to_string(),
            endpoint: Some(self.endpoint(location, state).into()),
            declaration: self.declaration.clone().map(Into::into),
        }
    }
}
