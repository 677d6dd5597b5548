//! What a program announces of itself.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use fairmesh_model::{Endpoint, EndpointState, InstanceId, Invalid, Location, Region, Service, ServiceName};
use fairmesh_wire::v1;

/// The label that a server carries when it says itself which shards it has loaded.
pub const SHARDS_LABEL: &str = "fairmesh.shards";
/// The value of [`SHARDS_LABEL`].
pub const SHARDS_AWARE: &str = "aware";

/// The term of a lease unless said otherwise: a server that dies without a word is marked lost after it.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(10);

/// One endpoint as its program announces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The service it belongs to.
    pub service: ServiceName,
    /// Its identity, the same after a restart.
    pub instance: InstanceId,
    /// Where callers reach it.
    pub address: SocketAddr,
    /// Where it runs; `None` lets the agent say.
    pub location: Option<Location>,
    /// Relative compute power in thousandths of an ordinary host.
    pub weight: u32,
    /// How long it is believed without a renewal; 1 s to 1 h.
    pub lease: Duration,
    /// What the owner writes about it.
    pub labels: BTreeMap<String, String>,
    /// What the service is, in case nobody has declared it.
    pub declaration: Option<Service>,
}

impl Registration {
    /// Checks what the types do not, such as that the address can be called.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.address.ip().is_unspecified() {
            return Err(Invalid::new(
                "address",
                format!("{} is every address of this machine and none that a caller can use", self.address),
                "write the address that other machines reach it at",
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
            labels: self.labels.clone(),
        }
    }

    pub(super) fn message(&self, location: Location, state: EndpointState) -> v1::Registration {
        v1::Registration {
            service: self.service.to_string(),
            endpoint: Some(self.endpoint(location, state).into()),
            declaration: self.declaration.clone().map(Into::into),
        }
    }
}
