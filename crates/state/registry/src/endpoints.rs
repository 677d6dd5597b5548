//! Registration, renewal, drain, expiry and removal of endpoints (ServiceRouter §3.1, §3.2).

mod expiry;
mod instance_claim;
mod register;
mod states;

use std::collections::{BTreeMap, HashMap, HashSet};

use fairmesh_model::{Endpoint, EndpointState, Invalid, Label, Prefix, Service, ServiceName};

pub use states::DrainOutcome;

use crate::{InstanceClaim, InstanceRef, Registry, RegistryError, stored_records::StoredEndpoint};

/// Maximum number of registrations, reports or instances in one call.
pub const MAX_BATCH: usize = 1000;

/// The registration of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The service that the endpoint belongs to.
    pub service: ServiceName,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Whether the program gave the state explicitly. Otherwise, a repeated registration leaves a draining endpoint
    /// draining.
    pub explicit_state: bool,
    /// The declaration for an undeclared service. Without one, the service is declared as replicated, with the
    /// protocol in the endpoint's label `fairmesh.protocol`.
    pub declaration: Option<Service>,
}

impl Registration {
    /// Records the agent that registers the endpoint. Replaces any value that the program sent.
    pub(crate) fn owned_by(&mut self, agent: Option<&Label>) {
        let labels = &mut self.endpoint.labels;
        match agent {
            Some(agent) => drop(labels.insert(Endpoint::AGENT.into(), agent.to_string())),
            None => drop(labels.remove(Endpoint::AGENT)),
        }
    }
}

/// A new state for an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateReport {
    /// The instance, and the process that reports the state.
    pub claim: InstanceClaim,
    /// The state.
    pub state: EndpointState,
}

impl Registry {
    /// Returns the registered endpoints of `instances` in the same order; `None` for missing endpoints. Reads each
    /// service once.
    fn find(&self, instances: &[InstanceRef]) -> Vec<Option<StoredEndpoint>> {
        let mut wanted: BTreeMap<&ServiceName, HashSet<&str>> = BTreeMap::new();
        for instance in instances {
            wanted.entry(&instance.service).or_default().insert(instance.instance.as_str());
        }
        let held = wanted.into_iter().flat_map(|(service, names)| {
            self.endpoints_of(service, move |instance| names.contains(instance))
        });
        let found: HashMap<_, _> = held.map(|held| (held.instance_ref(), held)).collect();
        instances.iter().map(|instance| found.get(instance).cloned()).collect()
    }

    /// Returns the registered endpoints of `claims`; `None` for a missing endpoint or one registered by another
    /// process.
    fn find_claimed(&self, claims: &[InstanceClaim]) -> Vec<Option<StoredEndpoint>> {
        let instances: Vec<_> = claims.iter().map(|claim| claim.instance.clone()).collect();
        let found = self.find(&instances).into_iter().zip(claims);
        found.map(|(held, claim)| held.filter(|held| claim.matches(held.endpoint.incarnation()))).collect()
    }

    /// Returns the registered endpoints of `claims`, or an error if any is not registered.
    fn find_all(&self, field: &str, claims: &[InstanceClaim]) -> Result<Vec<StoredEndpoint>, RegistryError> {
        let missing = |i: usize| {
            let InstanceRef { service, instance } = &claims[i].instance;
            RegistryError::not_found(
                &format!("{field}[{i}]"),
                match claims[i].incarnation {
                    0 => format!("'{instance}' of {service} is not registered"),
                    _ => format!("this process is not, or no longer, '{instance}' of {service}"),
                },
                "check the name with 'fairmesh get endpoints', or register it first",
            )
        };
        let found = self.find_claimed(claims).into_iter().enumerate();
        found.map(|(i, held)| held.ok_or_else(|| missing(i))).collect()
    }
}

impl StoredEndpoint {
    /// Returns the narrowest prefix with which watchers subscribe to this endpoint.
    fn region_prefix(&self) -> Prefix {
        Prefix::endpoints(&self.service, Some(&self.endpoint.location.region))
    }
}

/// Refuses batches with too many entries or with duplicates.
fn check_batch<'a>(
    field: &str,
    instances: impl ExactSizeIterator<Item = InstanceRef> + 'a,
) -> Result<(), Invalid> {
    if instances.len() > MAX_BATCH {
        let problem = format!("there are {}", instances.len());
        return Err(Invalid::new(field, problem, format!("send at most {MAX_BATCH} in one call")));
    }
    let mut seen = BTreeMap::new();
    for (i, instance) in instances.enumerate() {
        let problem = format!("'{}' of {} is listed twice", instance.instance, instance.service);
        if seen.insert(instance, i).is_some() {
            return Err(Invalid::new(format!("{field}[{i}]"), problem, "send each instance once"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
