use std::fmt;

use crate::{Invalid, Label, Policy, ServiceName, Tenant};

/// Maximum number of route sources of a policy.
const MAX_ROUTE_SOURCES: usize = 256;

/// Services whose routes may send calls to a service of another tenant: `red/api`, or `red/*` for all services of a
/// tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSource {
    tenant: Tenant,
    /// The service; `None` for all services of the tenant.
    service: Option<Label>,
}

impl RouteSource {
    /// Parses `TENANT/SERVICE` or `TENANT/*`.
    ///
    /// # Errors
    /// When the text has neither form.
    pub fn new(text: &str) -> Result<Self, Invalid> {
        let parsed = match text.strip_suffix("/*") {
            Some(tenant) => Tenant::new(tenant).map(|tenant| Self { tenant, service: None }),
            None => {
                ServiceName::new(text).map(|name| Self { tenant: name.tenant, service: Some(name.service) })
            }
        };
        let hint = "write TENANT/SERVICE, or TENANT/* for every service of a tenant";
        parsed.map_err(|_| Invalid::new("", format!("'{text}' names no services"), hint))
    }

    fn covers(&self, from: &ServiceName) -> bool {
        self.tenant == from.tenant && self.service.as_ref().is_none_or(|service| *service == from.service)
    }
}

impl fmt::Display for RouteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.service {
            Some(service) => write!(f, "{}/{service}", self.tenant),
            None => write!(f, "{}/*", self.tenant),
        }
    }
}

impl Policy {
    /// Whether routes of the service `from` may send calls to the service `own`, which has this policy. Services of
    /// the same tenant need no consent.
    pub fn accepts_routes_from(&self, own: &ServiceName, from: &ServiceName) -> bool {
        own.tenant == from.tenant || self.accept_routes_from.iter().any(|source| source.covers(from))
    }

    pub(super) fn validate_route_sources(&self) -> Result<(), Invalid> {
        match self.accept_routes_from.len() {
            0..=MAX_ROUTE_SOURCES => Ok(()),
            length => {
                let hint = format!("give at most {MAX_ROUTE_SOURCES}, or TENANT/*");
                Err(Invalid::new("acceptRoutesFrom", format!("has {length}"), hint))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_from_other_tenants_need_consent_in_policy() {
        let [api, web, vault] =
            ["red/api", "red/web", "blue/vault"].map(|name| ServiceName::new(name).unwrap());
        let accepting = |sources: &[&str]| Policy {
            accept_routes_from: sources.iter().map(|text| RouteSource::new(text).unwrap()).collect(),
            ..Policy::default()
        };
        assert!(accepting(&[]).accepts_routes_from(&api, &web), "one tenant");
        for (sources, accepts) in [
            (&[][..], [false, false]),
            (&["red/api"], [true, false]),
            (&["red/*"], [true, true]),
            (&["green/*", "red/web"], [false, true]),
        ] {
            let policy = accepting(sources);
            let accepted = [&api, &web].map(|from| policy.accepts_routes_from(&vault, from));
            assert_eq!(accepted, accepts, "{sources:?}");
        }
    }

    #[test]
    fn route_source_is_service_or_whole_tenant() {
        for text in ["red/api", "red/*"] {
            assert_eq!(RouteSource::new(text).unwrap().to_string(), text);
        }
        for text in ["", "*", "red", "red/", "red/a*", "*/api", "/*", "red/api/*"] {
            assert!(RouteSource::new(text).is_err(), "{text}");
        }
    }
}
