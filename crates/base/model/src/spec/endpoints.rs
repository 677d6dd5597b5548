use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::value_text::{read, read_address, read_duration_option, read_option, write_duration};
use crate::{Endpoint, EndpointState, FULL_WEIGHT, Invalid, Location, ServiceName};

/// Endpoints of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndpointsSpec {
    /// The service, as `tenant/service`.
    pub service: String,
    /// The service's instances.
    pub endpoints: Vec<EndpointSpec>,
}

/// One running instance of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndpointSpec {
    /// The stable instance id, unique within the service.
    pub instance: String,
    /// The address on which the instance listens, as `ip:port`.
    pub address: String,
    /// The region.
    pub region: String,
    /// The failure domain within the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The cluster to which the machine belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The hardware type of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_type: Option<String>,
    /// `serving`, `starting`, `draining` or `lost`. By default a new endpoint is serving, and a known one keeps its
    /// state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<EndpointState>,
    /// Relative compute power in thousandths. An ordinary host has 1000, which is the default.
    #[serde(default = "full_weight", skip_serializing_if = "is_full")]
    pub weight: u32,
    /// Time for which the endpoint stays live without renewal, such as `10s`. Without a lease it stays until it is
    /// removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// Whether the endpoint accepts only mutual TLS. By default it uses plaintext.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mtls: bool,
    /// Labels set by the owner.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

fn full_weight() -> u32 {
    FULL_WEIGHT
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_full(weight: &u32) -> bool {
    *weight == FULL_WEIGHT
}

impl EndpointsSpec {
    /// Validates the document. Instances must be unique.
    pub fn validate(&self) -> Result<(ServiceName, Vec<Endpoint>), Invalid> {
        let service = read("service", &self.service)?;
        let mut instances = BTreeSet::new();
        let mut endpoints = Vec::with_capacity(self.endpoints.len());
        for (i, spec) in self.endpoints.iter().enumerate() {
            let at = |e: Invalid| e.within(format!("endpoints[{i}]"));
            let endpoint = spec.validate().map_err(at)?;
            if !instances.insert(endpoint.instance.clone()) {
                let problem = format!("'{}' is listed twice", endpoint.instance);
                return Err(at(Invalid::new("instance", problem, "give every endpoint its own instance id")));
            }
            endpoints.push(endpoint);
        }
        Ok((service, endpoints))
    }

    /// The inverse of [`validate`](Self::validate).
    pub fn of(service: &ServiceName, endpoints: &[Endpoint]) -> Self {
        Self { service: service.to_string(), endpoints: endpoints.iter().map(EndpointSpec::of).collect() }
    }
}

impl EndpointSpec {
    /// Validates the endpoint.
    pub fn validate(&self) -> Result<Endpoint, Invalid> {
        let endpoint = Endpoint {
            instance: read("instance", &self.instance)?,
            address: read_address("address", &self.address)?,
            location: Location {
                region: read("region", &self.region)?,
                zone: read_option("zone", self.zone.as_ref())?,
                cluster: read_option("cluster", self.cluster.as_ref())?,
                host_type: read_option("hostType", self.host_type.as_ref())?,
            },
            state: self.state.unwrap_or_default(),
            weight: self.weight,
            lease: read_duration_option("lease", self.lease.as_ref())?,
            mtls: self.mtls,
            labels: self.labels.clone(),
        };
        endpoint.validate()?;
        Ok(endpoint)
    }

    /// The inverse of [`validate`](Self::validate).
    pub fn of(endpoint: &Endpoint) -> Self {
        let Location { region, zone, cluster, host_type } = &endpoint.location;
        Self {
            instance: endpoint.instance.to_string(),
            address: endpoint.address.to_string(),
            region: region.to_string(),
            zone: zone.as_ref().map(ToString::to_string),
            cluster: cluster.as_ref().map(ToString::to_string),
            host_type: host_type.as_ref().map(ToString::to_string),
            state: Some(endpoint.state).filter(|state| *state != EndpointState::Serving),
            weight: endpoint.weight,
            lease: endpoint.lease.map(write_duration),
            mtls: endpoint.mtls,
            labels: endpoint.labels.clone(),
        }
    }
}
