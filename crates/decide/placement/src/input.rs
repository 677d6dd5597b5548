//! What a plan is made from.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{GatewayBackend, GatewayService, Label, ServiceName, Tenant, Zone};

/// Backends of a service in its home zone, at least: with one, each of its failures would send the calls to another zone.
pub(crate) const HOME: usize = 2;
/// Backends of a service in other zones, at least.
pub(crate) const ELSEWHERE: usize = 1;
/// The share of its CPU limit up to which a backend takes over calls of a service that grows, in thousandths. Where nothing is known of a
/// backend's CPU, it takes none.
pub const MAX_ADDED_PERMILLE: u32 = 400;
/// The fewest backends of a service.
pub const MIN_BACKENDS: usize = GatewayService::MIN_BACKENDS as usize;
/// The most backends of a service.
pub const MAX_BACKENDS: usize = GatewayService::MAX_BACKENDS as usize;

/// The most backends of all services of one tenant together, in any fleet.
pub(crate) const MAX_TENANT_BACKENDS: usize = 16_384;

// Both zones have their least numbers.
const _: () = assert!(HOME + ELSEWHERE == MIN_BACKENDS);

/// A group of replicas with one configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Its name, unique in the fleet.
    pub name: Label,
    /// Its zone, which fails as a whole.
    pub zone: Zone,
    /// How many services it serves, at most.
    pub capacity: u32,
    /// Whether it gets further services. A closed backend keeps its services.
    pub is_open: bool,
    /// The share of its CPU limit in use, in thousandths; `None`: unknown.
    pub used_permille: Option<u32>,
}

/// A service that uses the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedService {
    /// Its name, unique in the input.
    pub name: ServiceName,
    /// The zone of most of its callers.
    pub home: Zone,
    /// How many backends it is to have; [`MIN_BACKENDS`] to [`MAX_BACKENDS`], values outside count as the nearest.
    pub count: usize,
    /// How many of these it gets since its calls have grown. One that is added is in the home zone, where most calls arrive, and uses
    /// [`MAX_ADDED_PERMILLE`] of its CPU at most. Where a service is repaired, any backend replaces one that is lost.
    pub added: usize,
    /// Where it is at present; empty for a new service.
    pub present: BTreeSet<Label>,
    /// Whether an operator chose the present backends. They stay as long as one of them exists, whatever their number is and wherever they
    /// are.
    pub is_pinned: bool,
}

impl Backend {
    /// A declared backend, of whose load nothing is known.
    pub fn declared(name: &Label, backend: &GatewayBackend) -> Self {
        Self {
            name: name.clone(),
            zone: backend.zone.clone(),
            capacity: backend.capacity,
            is_open: !backend.is_closed,
            used_permille: None,
        }
    }
}

/// What a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// All backends.
    pub backends: &'a [Backend],
    /// All services that use the gateway. What others have is free.
    pub services: &'a [PlacedService],
    /// Whether the mesh has several tenants. Then the services of one of them get half of the capacity of all backends, and half of the
    /// combinations of backends in a home zone. A tenant that is alone may take all.
    pub is_shared: bool,
    /// The most backends of all services of a tenant together, each counted once for each service, in place of half of the capacity.
    pub quotas: &'a BTreeMap<Tenant, usize>,
    /// The seed of all draws: equal inputs give equal plans.
    pub seed: u64,
}
