use serde::{Deserialize, Serialize};

use super::value_text::{read, read_address};
use crate::{Invalid, Protocol, Service, ServiceKind, ServiceName};

/// The declaration of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceSpec {
    /// The name, as `tenant/service`.
    pub name: String,
    /// How candidates for calls are found: `replicated` (default), `sharded` or `consistent-hash`.
    #[serde(default, rename = "type")]
    pub kind: ServiceKind,
    /// The protocol of endpoints: `http1` (default), `http2` or `grpc`.
    #[serde(default)]
    pub protocol: Protocol,
    /// The virtual address, `ip:port`, that unmodified programs connect to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_address: Option<String>,
    /// The id that endpoints prove instead of the service's own id, such as `spiffe://partner/shop/cart` of a
    /// federated trust domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

impl ServiceSpec {
    /// Validates the declaration.
    pub fn validate(&self) -> Result<(ServiceName, Service), Invalid> {
        let virtual_address =
            self.virtual_address.as_ref().map(|text| read_address("virtualAddress", text)).transpose()?;
        let identity = self.identity.as_ref().map(|text| read("identity", text)).transpose()?;
        let service = Service { kind: self.kind, protocol: self.protocol, virtual_address, identity };
        service.validate()?;
        Ok((read("name", &self.name)?, service))
    }

    /// The inverse of [`validate`](Self::validate).
    pub fn of(name: &ServiceName, service: &Service) -> Self {
        Self {
            name: name.to_string(),
            kind: service.kind,
            protocol: service.protocol,
            virtual_address: service.virtual_address.map(|address| address.to_string()),
            identity: service.identity.as_ref().map(|id| id.to_string()),
        }
    }
}
