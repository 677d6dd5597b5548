//! Gateway backends, the services that use them, and the placement of services on backends.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
};

use crate::{Invalid, Label, Zone, endpoint::check_address};

/// Maximum number of replicas of a backend.
const MAX_REPLICAS: usize = 64;
/// Maximum number of services that a backend serves.
const MAX_CAPACITY: u32 = 1_000_000;
/// The longest reason of an operator, in bytes: as long as that of a change of records.
const MAX_REASON: usize = 1024;
/// Maximum number of services that a tenant's pods may call, as in the replica's option: each takes memory there.
const MAX_CALLED_SERVICES: u32 = 65_536;

/// A backend of a gateway: replicas with one configuration, in one zone (Canal Mesh, section 4.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayBackend {
    /// The zone, which is one failure domain. Zone names are unique over all regions.
    pub zone: Zone,
    /// Maximum number of services that the backend serves.
    pub capacity: u32,
    /// The addresses at which nodes connect to the backend's replicas. None: a launcher is starting them.
    pub replicas: BTreeSet<SocketAddr>,
    /// Whether the backend accepts no further services. Services placed on it stay.
    pub is_closed: bool,
    /// Whether it serves only services that were moved away from others, since their calls harm backends.
    pub is_sandbox: bool,
}

/// Limits for a tenant at the gateway. A limit that is `None` leaves the replica's option or the built-in one in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayQuota {
    /// Maximum number of connections, at each replica.
    pub connections: Option<u32>,
    /// Maximum number of new connections per second, at each replica, after their TLS handshake, which names the
    /// tenant. Handshakes themselves have one limit for all tenants together.
    pub handshakes_per_second: Option<u32>,
    /// Maximum number of requests in flight, HTTP/2 streams and upgraded connections included, at each replica.
    pub requests: Option<u32>,
    /// Maximum number of services that the tenant's pods call, at each replica.
    pub services: Option<u32>,
    /// Maximum number of routes in all of the tenant's policies together.
    pub routes: Option<u32>,
    /// Maximum number of backends for all services of the tenant together. A backend counts once per service.
    pub backends: Option<u32>,
}

/// A service whose pods are called through a gateway with backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayService {
    /// The zone of most callers. At least two of the service's backends are in this zone, and at least one elsewhere.
    pub home_zone: Zone,
    /// Number of backends that serve the service.
    pub backends: u32,
    /// Whether further backends are added while its calls grow.
    pub grows: bool,
    /// Whether its new connections are limited while they overload a backend.
    pub throttle: Throttle,
}

/// Who may limit a service's new connections while they overload a backend, and its requests do not grow (Canal Mesh, 4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Throttle {
    /// The controller: the tenant has agreed.
    Agreed,
    /// An operator, whom `gateway status` shows the command.
    #[default]
    Ask,
    /// The controller sets no limit, and `gateway status` proposes none.
    Never,
}

/// The backends that serve a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The zone whose backends come first for nodes that know no zone of their own.
    pub home_zone: Zone,
    /// Names of the backends by zone.
    pub zones: BTreeMap<Zone, BTreeSet<Label>>,
    /// Number of backends beyond the requested number, added because calls have grown.
    pub added: u32,
    /// Present if the controller keeps the backends.
    pub pinned: Option<PlacementPin>,
    /// The limit of new connections to its virtual address; `None`: any number.
    pub connection_limit: Option<ConnectionLimit>,
}

/// Why and when the backends of a service were chosen by an operator, or in the sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementPin {
    /// At most 1024 bytes; may be empty.
    pub reason: String,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Whether connections of the service at other backends end.
    pub ends_connections: bool,
    /// Whether the backends are sandboxes, which the controller chose.
    pub is_sandbox: bool,
}

/// A limit of the connections that begin, at each replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimit {
    /// Connections a second; 1 or more.
    pub per_second: u32,
    /// At most 1024 bytes; may be empty.
    pub reason: String,
    /// When it was set or changed, in milliseconds since 1970.
    pub at_ms: u64,
    /// Whether the controller set the limit, and so lifts it in steps. It leaves limits of operators unchanged.
    pub is_automatic: bool,
    /// The `per_second` before any step; 0 in records of releases without it.
    pub first_per_second: u32,
}

impl GatewayBackend {
    /// Capacity of a backend that declares none.
    pub const DEFAULT_CAPACITY: u32 = 1_000;

    /// Checks the capacity and the addresses.
    ///
    /// # Errors
    /// [`Invalid`] with the field.
    pub fn validate(&self) -> Result<(), Invalid> {
        if !(1..=MAX_CAPACITY).contains(&self.capacity) {
            let problem = format!("{} is out of range", self.capacity);
            return Err(Invalid::new("capacity", problem, format!("write 1 to {MAX_CAPACITY}")));
        }
        self.check_count(0)?;
        self.replicas.iter().try_for_each(|address| check_address("replicas", *address))
    }

    /// Checks that there are at least `least` replicas, and not too many.
    pub(crate) fn check_count(&self, least: usize) -> Result<(), Invalid> {
        let count = self.replicas.len();
        let hint = format!("give the address of each replica, 1 to {MAX_REPLICAS}");
        let invalid = || Invalid::new("replicas", format!("has {count}"), hint);
        (least..=MAX_REPLICAS).contains(&count).then_some(()).ok_or_else(invalid)
    }
}

impl GatewayQuota {
    /// Checks that the quota sets at least one limit, and that every limit is in range.
    ///
    /// # Errors
    /// [`Invalid`] with the field.
    pub fn validate(&self) -> Result<(), Invalid> {
        let limits = [
            ("connections", self.connections),
            ("handshakesPerSecond", self.handshakes_per_second),
            ("requests", self.requests),
            ("services", self.services),
            ("routes", self.routes),
            ("backends", self.backends),
        ];
        if let Some((field, _)) = limits.iter().find(|(_, limit)| *limit == Some(0)) {
            let hint = "write 1 or more; roles and authorization keep a tenant out";
            return Err(Invalid::new(*field, "is 0", hint));
        }
        if let Some(services) = self.services.filter(|services| *services > MAX_CALLED_SERVICES) {
            let hint = format!("write 1 to {MAX_CALLED_SERVICES}");
            return Err(Invalid::new("services", format!("{services} is out of range"), hint));
        }
        let hint = "give a limit, such as 'requests: 500', or delete the document";
        let has_limit = limits.iter().any(|(_, limit)| limit.is_some());
        has_limit.then_some(()).ok_or_else(|| Invalid::new("", "limits nothing", hint))
    }
}

impl GatewayService {
    /// Minimum number of backends of a service: two in its home zone, and one elsewhere.
    pub const MIN_BACKENDS: u32 = 3;
    /// Maximum number of backends of a service.
    pub const MAX_BACKENDS: u32 = 32;

    /// Checks the number of backends.
    ///
    /// # Errors
    /// [`Invalid`] with the field.
    pub fn validate(&self) -> Result<(), Invalid> {
        if (Self::MIN_BACKENDS..=Self::MAX_BACKENDS).contains(&self.backends) {
            return Ok(());
        }
        let hint = format!("write {} to {}", Self::MIN_BACKENDS, Self::MAX_BACKENDS);
        Err(Invalid::new("backends", format!("{} is out of range", self.backends), hint))
    }
}

impl Placement {
    /// The names of all backends that serve the service.
    pub fn backends(&self) -> impl Iterator<Item = &Label> {
        self.zones.values().flatten()
    }

    /// Whether a backend serves the service.
    pub fn has(&self, backend: &Label) -> bool {
        self.zones.values().any(|backends| backends.contains(backend))
    }

    /// Backends by zone, in the order in which nodes try them: the caller's zone, or else the home zone, then the others.
    pub fn in_order(&self, own_zone: Option<&Zone>) -> Vec<&BTreeSet<Label>> {
        let first = own_zone.filter(|zone| self.zones.contains_key(*zone)).unwrap_or(&self.home_zone);
        let others = self.zones.iter().filter(|(zone, _)| *zone != first).map(|(_, backends)| backends);
        self.zones.get(first).into_iter().chain(others).collect()
    }

    /// Whether a replica of a backend ends the connections of the service that it has.
    pub fn ends_connections_at(&self, backend: &Label) -> bool {
        self.pinned.as_ref().is_some_and(|pin| pin.ends_connections) && !self.has(backend)
    }

    /// Checks the number of backends, that each is in one zone, the reasons and the limit.
    ///
    /// # Errors
    /// [`Invalid`] with the field.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.check_backends()?;
        let reasons = [
            ("pinned.reason", self.pinned.as_ref().map(|pin| &pin.reason)),
            ("connectionLimit.reason", self.connection_limit.as_ref().map(|limit| &limit.reason)),
        ];
        for (field, reason) in reasons {
            if let Some(length) = reason.map(String::len).filter(|length| *length > MAX_REASON) {
                let problem = format!("has {length} bytes");
                return Err(Invalid::new(field, problem, format!("write {MAX_REASON} bytes at most")));
            }
        }
        match &self.connection_limit {
            Some(limit) if limit.per_second == 0 => {
                let hint = "write 1 or more; authorization keeps callers out";
                Err(Invalid::new("connectionLimit.perSecond", "is 0", hint))
            }
            _ => Ok(()),
        }
    }

    fn check_backends(&self) -> Result<(), Invalid> {
        let count = self.backends().count();
        let problem = match self.backends().collect::<BTreeSet<_>>().len() {
            0 => "has no backend".to_owned(),
            distinct if distinct < count => "has a backend in two zones".to_owned(),
            _ if count > GatewayService::MAX_BACKENDS as usize => format!("has {count} backends"),
            _ => return Ok(()),
        };
        let hint = format!("give 1 to {} backends, each in its zone", GatewayService::MAX_BACKENDS);
        Err(Invalid::new("zones", problem, hint))
    }
}

impl fmt::Display for Placement {
    /// Formats the placement as `eu-a: gw-1, gw-2; eu-b: gw-4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (zone, backends)) in self.zones.iter().enumerate() {
            let names: Vec<&str> = backends.iter().map(Label::as_str).collect();
            write!(f, "{}{zone}: {}", if i > 0 { "; " } else { "" }, names.join(", "))?;
        }
        Ok(())
    }
}
