//! Endpoints: announced, renewed, drained, lost and taken out (ServiceRouter §3.1, §3.2).

mod claim;
mod expiry;
mod register;
mod states;

use std::collections::{BTreeMap, HashMap, HashSet};

use fairmesh_model::{Endpoint, EndpointState, Invalid, Prefix, Service, ServiceName};

pub use claim::{Claim, InstanceRef};
pub use states::Drained;

use crate::{Registry, RegistryError, view::Held};

/// The most registrations, reports or instances in one call.
pub const MAX_BATCH: usize = 1000;

/// What is announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The service that the endpoint is a copy of.
    pub service: ServiceName,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Whether the state is meant: a registration that only repeats itself leaves a draining endpoint draining.
    pub state_meant: bool,
    /// What to declare the service as where nobody has declared it yet; otherwise it is declared as replicated, with
    /// the protocol of the endpoint's label `fairmesh.protocol`.
    pub declaration: Option<Service>,
}

/// A new state for an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateReport {
    /// Whose, and who says so.
    pub who: Claim,
    /// The state.
    pub state: EndpointState,
}

impl Registry {
    /// The endpoints that `instances` name, in that order, `None` where one is not registered. Reads each service once.
    fn find(&self, instances: &[InstanceRef]) -> Vec<Option<Held>> {
        let mut wanted: BTreeMap<&ServiceName, HashSet<&str>> = BTreeMap::new();
        for who in instances {
            wanted.entry(&who.service).or_default().insert(who.instance.as_str());
        }
        let held = wanted.into_iter().flat_map(|(service, names)| {
            self.endpoints_of(service, move |instance| names.contains(instance))
        });
        let found: HashMap<_, _> = held.map(|held| (held.who(), held)).collect();
        instances.iter().map(|who| found.get(who).cloned()).collect()
    }

    /// The same of those who speak for them; `None` also where another process is registered.
    fn find_claimed(&self, claims: &[Claim]) -> Vec<Option<Held>> {
        let instances: Vec<_> = claims.iter().map(|claim| claim.instance.clone()).collect();
        let found = self.find(&instances).into_iter().zip(claims);
        found.map(|(held, claim)| held.filter(|held| claim.fits(held.endpoint.incarnation()))).collect()
    }

    /// The same where every one has to be registered.
    fn find_all(&self, field: &str, claims: &[Claim]) -> Result<Vec<Held>, RegistryError> {
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

impl Held {
    /// What watchers of just this endpoint's neighbourhood subscribe to at the least.
    fn folder(&self) -> Prefix {
        Prefix::endpoints(&self.service, Some(&self.endpoint.location.region))
    }
}

/// Refuses batches that are too large or name somebody twice.
fn check_batch<'a>(field: &str, who: impl ExactSizeIterator<Item = InstanceRef> + 'a) -> Result<(), Invalid> {
    if who.len() > MAX_BATCH {
        let problem = format!("there are {}", who.len());
        return Err(Invalid::new(field, problem, format!("send at most {MAX_BATCH} in one call")));
    }
    let mut seen = BTreeMap::new();
    for (i, who) in who.enumerate() {
        let problem = format!("'{}' of {} stands here twice", who.instance, who.service);
        if seen.insert(who, i).is_some() {
            return Err(Invalid::new(format!("{field}[{i}]"), problem, "send each instance once"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
