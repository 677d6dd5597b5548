//! Reasons why a service cannot be placed as it asks.

use std::fmt;

use fairmesh_model::{Tenant, Zone};

use crate::input::{ELSEWHERE, HOME, MAX_ADDED_PERMILLE, MIN_BACKENDS};

/// What is missing to place a service. The displayed text says what to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// Too few open backends with room in the home zone.
    HomeBackends(Zone),
    /// Too few open backends with room in other zones.
    OtherBackends(Zone),
    /// Too few open backends with room in the whole fleet.
    Backends {
        /// Number of backends the service asks for.
        wanted: usize,
        /// Number of backends with room.
        found: usize,
    },
    /// Too few open backends: one service has at most half of them.
    Share {
        /// Number of backends the service asks for.
        wanted: usize,
        /// Maximum number it may have.
        most: usize,
    },
    /// The quota of the tenant is used up.
    Quota {
        /// The tenant.
        tenant: Tenant,
        /// Maximum total number of backends of the tenant's services.
        quota: usize,
    },
    /// The tenant has used its half of the combinations in the home zone; the rest is for other tenants.
    TenantCombinations {
        /// The tenant.
        tenant: Tenant,
        /// The home zone.
        zone: Zone,
    },
    /// No free combination in the home zone: each one contains another service or lies within one.
    Combination(Zone),
    /// No backend in the home zone has enough spare CPU to take over calls of a growing service.
    Relief(Zone),
    /// No sandbox has room for a service that is to be in one.
    Sandbox,
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
            Self::Sandbox => f.write_str(
                "its calls harm backends, and no sandbox is open with room; add a backend with 'sandbox: true', or raise the capacity of one",
            ),
        }
    }
}
