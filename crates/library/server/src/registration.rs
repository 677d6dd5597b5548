//! Registration of an endpoint with the registry.

pub(crate) mod backoff;
pub(crate) mod lease;
pub(crate) mod registry_addresses;
pub(crate) mod registry_client;

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use fairmesh_model::{Endpoint, EndpointState, InstanceId, Invalid, Location, Region, Service, ServiceName};
use fairmesh_wire::v1;

/// The label of a server that reports its loaded shards itself.
pub const SHARDS_LABEL: &str = "fairmesh.shards";
/// The value of [`SHARDS_LABEL`].
pub const SHARDS_AWARE: &str = "aware";

/// The default term of a lease: a server that dies is marked lost after it.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(10);

/// An endpoint as it is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The service.
    pub service: ServiceName,
    /// Its identity, the same after a restart.
    pub instance: InstanceId,
    /// The address for callers.
    pub address: SocketAddr,
    /// Its location; `None` for that of the agent.
    pub location: Option<Location>,
    /// Relative compute capacity in thousandths of an ordinary host.
    pub weight: u32,
    /// How long it stays live without renewal; 1 s to 1 h.
    pub lease: Duration,
    /// Whether it accepts mutual TLS only.
    pub mtls: bool,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// The declaration of the service, used if there is none yet.
    pub declaration: Option<Service>,
}

impl Registration {
    /// Checks what the types do not, such as that callers can use the address.
    ///
    /// # Errors
    /// The first field that is not valid.
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
