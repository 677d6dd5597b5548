//! The validated policy of a service (a plan). The document as written is in [`crate::spec`].

mod authorization;
mod balancing;
mod conditions;
mod defaults;
mod local_transport;
mod ring_conflict;
mod route_source;
mod timeouts;

use std::{collections::BTreeSet, fmt, time::Duration};

use crate::{
    Endpoint, HealthCheck, Invalid, Label, MAX_TRAFFIC_CLASSES, RateLimit, Role, Route, Service, Traffic,
    duration::write_duration, route::is_token,
};

pub use authorization::{
    Authorization, AuthorizationMode, AuthorizationRule, CallerId, CallerMatch, DefaultAuthorization,
};
pub use balancing::{Balancing, BalancingPolicy, LoadSignal, Outliers, Score};
pub use conditions::{AcceptedTokens, Condition, ConditionSubject, ValueMatch};
pub use defaults::{
    DefaultsByScope, DefaultsScope, FieldOrigin, InheritedDefaults, PolicyDefaults, PolicyField,
};
pub use local_transport::LocalTransport;
pub use route_source::RouteSource;
pub use timeouts::{CallKind, Timeouts};

/// How calls to a service are routed and protected. The default suits a service without a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Routes in order; as in Envoy, the first match wins. A call that matches no route goes to the service itself.
    pub routes: Vec<Route>,
    /// Regions that calls may go to.
    pub locality: Locality,
    /// How an endpoint is picked.
    pub balancing: Balancing,
    /// Timeouts of calls; routes may override them.
    pub timeouts: Timeouts,
    /// When failed attempts are retried.
    pub retries: Retries,
    /// Rate limit for all calls to the service. Routes may set additional limits.
    pub limit: Option<RateLimit>,
    /// Where the key is read for calls without an explicit key, so that sessions stay with their endpoint. The first
    /// source with a value is used; at most [`MAX_KEY_SOURCES`]. For services called by key.
    pub key: Vec<KeySource>,
    /// Sharded services only: role of the copies that receive calls which name no role. `None` permits copies of any
    /// role.
    pub role: Option<Role>,
    /// Active health checks of endpoints; `None` disables them, so that only passive detection remains.
    pub health_check: Option<HealthCheck>,
    /// The address of the service's own lookaside, which leases endpoints to callers: `host:port`, or `unix:/path`.
    pub lookaside: Option<String>,
    /// How calls are divided among regions; `None` lets the rings decide. Boxed, since few policies set it.
    pub traffic: Option<Box<Traffic>>,
    /// Callers that may use the service; `None` applies the mesh default. Boxed, since few policies set it.
    pub authorization: Option<Box<Authorization>>,
    /// Whether endpoints with mutual TLS also accept plaintext.
    pub mtls: MtlsMode,
    /// What carries calls within a machine to endpoints with mutual TLS.
    pub local_transport: LocalTransport,
    /// Services of other tenants whose routes may send calls to this service, in splits and mirrors.
    pub accept_routes_from: Vec<RouteSource>,
    /// Fields that the policy states explicitly with the built-in value. Defaults of tenant or mesh do not replace
    /// these fields.
    pub restated: BTreeSet<PolicyField>,
}

/// What endpoints with mutual TLS accept besides mutual TLS: the modes of Istio's `PeerAuthentication`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MtlsMode {
    /// Accepts only mutual TLS.
    #[default]
    Strict,
    /// Also accepts plaintext from callers without an identity, while a fleet migrates to mutual TLS.
    Permissive,
}

impl MtlsMode {
    /// Whether callers in a mesh with a trust domain refuse a plaintext endpoint. The endpoint's own record cannot
    /// permit plaintext: otherwise the program that registers it would decide whether calls are secured.
    pub fn refuses(self, service: Option<&Service>, endpoint: &Endpoint) -> bool {
        // If a service declares an identity, its endpoints must prove it, whatever their records say.
        let is_plaintext = !endpoint.mtls && service.is_none_or(|service| service.identity.is_none());
        self == Self::Strict && is_plaintext
    }
}

/// Regions that calls may go to, in order of preference (ServiceRouter §3.4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locality {
    /// Rings in order of preference. A call goes to the first ring that has a candidate. A region belongs to the
    /// first ring that includes it. Empty means the default rings.
    pub rings: Vec<Ring>,
    /// Whether calls prefer the caller's own zone (the ring `zone`), as far as the region's table allows. Distances
    /// do not distinguish zones, so no other part of the decision uses this ring.
    pub zone_first: bool,
    /// Whether calls fail rather than leave their region. Callers then subscribe to their own region only
    /// (ServiceRouter §3.2).
    pub local_only: bool,
}

/// A ring of regions around the caller. Every ring includes the caller's own region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// Only the caller's region.
    Region,
    /// Regions within this round trip time.
    Within(Duration),
    /// Regions declared as neighbours of the caller's region in the topology.
    Neighbours,
    /// Regions on the same declared continent as the caller's region.
    Continent,
    /// All regions.
    Any,
}

impl fmt::Display for Ring {
    /// Formats the ring as in policies.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region => f.write_str("region"),
            Self::Within(bound) => f.write_str(&write_duration(*bound)),
            Self::Neighbours => f.write_str("neighbours"),
            Self::Continent => f.write_str("continent"),
            Self::Any => f.write_str("any"),
        }
    }
}

impl Locality {
    /// The default rings: 5 ms, 35 ms, 80 ms, unbounded (ServiceRouter §3.4.1).
    pub fn default_rings() -> Vec<Ring> {
        let [near, far, farther] = [5, 35, 80].map(|ms| Ring::Within(Duration::from_millis(ms)));
        vec![near, far, farther, Ring::Any]
    }
}

impl Default for Locality {
    fn default() -> Self {
        Self { rings: Self::default_rings(), zone_first: false, local_only: false }
    }
}

/// Maximum number of key sources.
pub const MAX_KEY_SOURCES: usize = 8;

/// Where the key of a call is read. A numeric value is used as the key itself; other values are hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The header of this name, in lower case.
    Header(String),
    /// The cookie of this name.
    Cookie(String),
    /// The query parameter of this name.
    Query(String),
}

/// When a failed attempt is retried: only if the request was provably not sent or the call is idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Maximum number of attempts including the first; 1 to 10.
    pub attempts: u32,
    /// Maximum number of retries as a percentage of calls, so that retries cannot multiply an overload.
    pub budget_percent: u32,
    /// Number of retries per second that are always allowed.
    pub budget_floor: u32,
}

impl Default for Retries {
    fn default() -> Self {
        Self { attempts: 3, budget_percent: 20, budget_floor: 10 }
    }
}

impl Policy {
    /// Checks constraints beyond the types: order of rings, uniqueness of route names, weights and ranges.
    pub fn validate(&self) -> Result<(), Invalid> {
        let mut names = BTreeSet::new();
        for (i, route) in self.routes.iter().enumerate() {
            let at = |e: Invalid| e.within(format!("routes[{i}]"));
            route.validate().map_err(at)?;
            if !names.insert(&route.name) {
                let problem = format!("'{}' is used twice", route.name);
                return Err(at(Invalid::new("name", problem, "give every route its own name")));
            }
        }
        self.locality.validate().map_err(|e| e.within("locality"))?;
        self.balancing.validate().map_err(|e| e.within("balancing"))?;
        self.timeouts.validate()?;
        self.retries.validate().map_err(|e| e.within("retries"))?;
        self.limit.as_ref().map_or(Ok(()), RateLimit::validate).map_err(|e| e.within("limit"))?;
        KeySource::validate_all(&self.key).map_err(|e| e.within("key"))?;
        self.validate_zone_first()?;
        self.validate_route_sources()?;
        self.health_check
            .as_ref()
            .map_or(Ok(()), HealthCheck::validate)
            .map_err(|e| e.within("healthCheck"))?;
        self.traffic
            .as_ref()
            .map_or(Ok(()), |traffic| traffic.validate())
            .map_err(|e| e.within("traffic"))?;
        self.authorization
            .as_ref()
            .map_or(Ok(()), |authorization| authorization.validate())
            .map_err(|e| e.within("authorization"))?;
        self.lookaside.as_deref().map_or(Ok(()), check_lookaside)
    }
}

impl Policy {
    /// Traffic classes that reports distinguish, at most [`MAX_TRAFFIC_CLASSES`]: first the planner's classes, then
    /// the routes' classes in route order.
    pub fn traffic_classes(&self) -> Vec<Label> {
        let planned = self.traffic.iter().flat_map(|traffic| &traffic.classes);
        let routed = self.routes.iter().filter_map(|route| route.class.as_ref());
        let mut classes = Vec::<Label>::new();
        for class in planned.chain(routed) {
            if classes.len() < MAX_TRAFFIC_CLASSES && !classes.contains(class) {
                classes.push(class.clone());
            }
        }
        classes
    }

    /// Rejects the zone ring without a planner, since only a planner knows how many calls a zone can serve.
    fn validate_zone_first(&self) -> Result<(), Invalid> {
        let is_planned = self.traffic.as_ref().is_some_and(|traffic| traffic.is_planned());
        if !self.locality.zone_first || is_planned {
            return Ok(());
        }
        let problem = "has the ring 'zone', but no planner bounds what a zone keeps";
        Err(Invalid::new("locality.rings", problem, "add 'traffic: {planner: rings}'"))
    }
}

fn check_lookaside(text: &str) -> Result<(), Invalid> {
    let is_host = |host: &str| !host.is_empty() && !host.contains(['/', ' ', '@']);
    let fits = match text.strip_prefix("unix:") {
        Some(path) => path.starts_with('/') && !path.ends_with('/'),
        None => text
            .rsplit_once(':')
            .is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok_and(|port| port > 0)),
    };
    // The longest host name with a port has 260 bytes.
    match fits && text.len() <= 260 {
        true => Ok(()),
        false => {
            let problem = format!("'{text}' is not an address");
            Err(Invalid::new("lookaside", problem, "write host:port, such as picks.shop:7420, or unix:/path"))
        }
    }
}

pub(crate) fn check_timeout(field: &str, timeout: Duration) -> Result<(), Invalid> {
    if (Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&timeout) {
        return Ok(());
    }
    let problem = format!("{} is out of range", crate::write_duration(timeout));
    Err(Invalid::new(field, problem, "write 1ms to 1h"))
}

impl KeySource {
    /// Checks the sources of a key.
    pub(crate) fn validate_all(sources: &[Self]) -> Result<(), Invalid> {
        if sources.len() > MAX_KEY_SOURCES {
            let problem = format!("has {} sources", sources.len());
            return Err(Invalid::new("", problem, format!("write at most {MAX_KEY_SOURCES}")));
        }
        sources.iter().try_for_each(Self::validate)
    }

    fn validate(&self) -> Result<(), Invalid> {
        let (Self::Header(name) | Self::Cookie(name)) = self else { return Ok(()) };
        match is_token(name) {
            true => Ok(()),
            false => Err(Invalid::new("", format!("'{name}' is not a name"), "write a name without blanks")),
        }
    }
}

impl Locality {
    fn validate(&self) -> Result<(), Invalid> {
        for (i, ring) in self.rings.iter().enumerate() {
            let before = &self.rings[..i];
            let (problem, hint) = match ring {
                Ring::Region if i > 0 => ("is not the first ring", "write 'region' first"),
                _ if before.contains(&Ring::Any) => {
                    ("follows 'any', which includes all regions", "write 'any' last")
                }
                Ring::Within(outer)
                    if before.iter().any(|ring| matches!(ring, Ring::Within(inner) if inner >= outer)) =>
                {
                    ("is not greater than the bound before it", "order round trips ascending")
                }
                ring if before.contains(ring) => ("is repeated", "write every ring once"),
                _ => continue,
            };
            return Err(Invalid::new(format!("rings[{i}]"), problem, hint));
        }
        Ok(())
    }
}

impl Retries {
    fn validate(&self) -> Result<(), Invalid> {
        if !(1..=10).contains(&self.attempts) {
            return Err(Invalid::new(
                "attempts",
                format!("{} is out of range", self.attempts),
                "write 1 (never retry) to 10",
            ));
        }
        if self.budget_percent > 100 {
            let problem = format!("{} is out of range", self.budget_percent);
            return Err(Invalid::new("budgetPercent", problem, "write 0 to 100; 20 is usual"));
        }
        Ok(())
    }
}
