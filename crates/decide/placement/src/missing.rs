//! Why a service is not placed as it asks.

use std::fmt;

use fairmesh_model::{Tenant, Zone};

use crate::input::{ELSEWHERE, HOME, MAX_ADDED_PERMILLE, MIN_BACKENDS};

/// What is missing to place a service. The text says what to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// Open backends with room in the home zone.
    HomeBackends(Zone),
    /// Open backends with room in another zone.
    OtherBackends(Zone),
    /// Open backends with room, to have as many as the service asks for.
    Backends {
        /// How many it asks for.
        wanted: usize,
        /// How many it could have.
        found: usize,
    },
    /// Further open backends. One service has at most half of them.
    Share {
        /// How many it asks for.
        wanted: usize,
        /// How many it may have.
        most: usize,
    },
    /// Quota of the tenant.
    Quota {
        /// The tenant.
        tenant: Tenant,
        /// The most backends of its services together.
        quota: usize,
    },
    /// Combinations for the tenant: it has half of those in the home zone, and other tenants need the rest.
    TenantCombinations {
        /// The tenant.
        tenant: Tenant,
        /// The home zone.
        zone: Zone,
    },
    /// A combination of backends that is not among those of another service, and has none of another service within it.
    Combination(Zone),
    /// A backend in the home zone that takes over calls of a service that grows.
    Relief(Zone),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HomeBackends(zone) => write!(
                f,
                "zone {zone} has fewer than {HOME} open backends with room; add a backend there, or raise the capacity of one"
            ),
            Self::OtherBackends(zone) => write!(
                f,
                "no zone but {zone} has {ELSEWHERE} open backend with room; add a backend in another zone, or raise the capacity of one"
            ),
            Self::Backends { wanted, found } => write!(
                f,
                "{wanted} backends are asked for, and {found} are open with room; add backends, or ask for {MIN_BACKENDS} or more that are there"
            ),
            Self::Share { wanted, most } => write!(
                f,
                "{wanted} backends are asked for, and a service has half of the open ones at most; add backends, or ask for {most}"
            ),
            Self::Quota { tenant, quota } => write!(
                f,
                "the services of tenant {tenant} have {quota} backends together at most; ask for fewer backends, or remove a service from the gateway"
            ),
            Self::TenantCombinations { tenant, zone } => write!(
                f,
                "the services of tenant {tenant} have half of the combinations of backends in zone {zone}, and other tenants get the rest; add a backend there, or remove a service from the gateway"
            ),
            Self::Combination(zone) => write!(
                f,
                "no combination was found that shares not all of its backends with another service; add a backend in zone {zone}"
            ),
            Self::Relief(zone) => write!(
                f,
                "its calls have grown, and no further backend in zone {zone} has room and uses less than {}% of its CPU; add a backend there",
                MAX_ADDED_PERMILLE / 10
            ),
        }
    }
}
