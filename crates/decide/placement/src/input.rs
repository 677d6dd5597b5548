//! Input of a plan.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{GatewayBackend, GatewayService, Label, ServiceName, Tenant, Zone};

/// Minimum number of backends of a service in its home zone. With only one, each of its failures would send the calls
/// to another zone.
pub(crate) const HOME: usize = 2;
/// Minimum number of backends of a service outside its home zone.
pub(crate) const ELSEWHERE: usize = 1;
/// CPU utilisation, in thousandths of the limit, up to which a backend takes over calls of a growing service. A backend
/// with unknown utilisation takes over none.
pub const MAX_ADDED_PERMILLE: u32 = 400;
/// Minimum number of backends of a service.
pub const MIN_BACKENDS: usize = GatewayService::MIN_BACKENDS as usize;
/// Maximum number of backends of a service.
pub const MAX_BACKENDS: usize = GatewayService::MAX_BACKENDS as usize;

/// Maximum total number of backends of one tenant's services, for any fleet.
pub(crate) const MAX_TENANT_BACKENDS: usize = 16_384;

// The smallest service satisfies both minimums.
const _: () = assert!(HOME + ELSEWHERE == MIN_BACKENDS);

/// A backend: a group of replicas with one configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Name, unique in the fleet.
    pub name: Label,
    /// Zone of all replicas; a zone fails as a whole.
    pub zone: Zone,
    /// Maximum number of services on the backend.
    pub capacity: u32,
    /// Whether the backend accepts further services. A closed backend keeps its services.
    pub is_open: bool,
    /// Whether only services in the sandbox may be on it.
    pub is_sandbox: bool,
    /// CPU utilisation in thousandths of the limit. `None` if unknown.
    pub used_permille: Option<u32>,
}

/// A service that uses the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedService {
    /// Name, unique in the input.
    pub name: ServiceName,
    /// Zone of most of the service's callers.
    pub home: Zone,
    /// Wanted number of backends, [`MIN_BACKENDS`] to [`MAX_BACKENDS`]. Values outside are clamped.
    pub count: usize,
    /// How many of the wanted backends are added because the service's calls have grown. An added backend must be in
    /// the home zone, where most calls arrive, and use at most [`MAX_ADDED_PERMILLE`] of its CPU. A repair may use any
    /// backend.
    pub added: usize,
    /// Current backends; empty for a new service.
    pub present: BTreeSet<Label>,
    /// Whether an operator chose the present backends. They stay as long as one of them exists, whatever their number is and wherever they
    /// are.
    pub is_pinned: bool,
    /// Whether it is on sandbox backends, or on its present ones as long as there is none. No other rule counts then: services in the
    /// sandbox may share all backends, and no service outside has any of them.
    pub is_sandboxed: bool,
}

impl Backend {
    /// A declared backend, of whose load nothing is known. One without replicas, which a launcher starts, gets no services.
    pub fn declared(name: &Label, backend: &GatewayBackend) -> Self {
        Self {
            name: name.clone(),
            zone: backend.zone.clone(),
            capacity: backend.capacity,
            is_open: !backend.is_closed && !backend.replicas.is_empty(),
            is_sandbox: backend.is_sandbox,
            used_permille: None,
        }
    }
}

/// Input of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    /// All backends.
    pub backends: &'a [Backend],
    /// All services that use the gateway. Backends of other services are freed.
    pub services: &'a [PlacedService],
    /// Whether the mesh has several tenants. If so, the services of one tenant get at most half of the total capacity,
    /// and half of the combinations in a home zone. A single tenant may use everything.
    pub is_shared: bool,
    /// Maximum total number of backends of a tenant's services, replacing half of the capacity. A backend counts once
    /// per service.
    pub quotas: &'a BTreeMap<Tenant, usize>,
    /// Seed of all random draws. Equal inputs give equal plans.
    pub seed: u64,
}
