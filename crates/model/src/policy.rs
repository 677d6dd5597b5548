//! The policy of a service, as validation made it (a plan). What a person writes is in [`crate::spec`].

use std::time::Duration;

use crate::{Balancing, HealthCheck, Invalid, Label, ServiceName};

/// How calls to a service are routed and protected. The default is right for a service nobody wrote a policy for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Rules in order; the first that matches wins, and a call that none matches goes to the service itself (X7).
    pub routes: Vec<Route>,
    /// Which regions a call may go to.
    pub locality: Locality,
    /// How an endpoint is chosen.
    pub balancing: Balancing,
    /// The whole call, tries and waits included; a route or the caller's own deadline may shorten it.
    pub timeout: Duration,
    /// When a failed try is made again.
    pub retries: Retries,
    /// How endpoints are probed; `None` leaves that to callers' own experience.
    pub health_check: Option<HealthCheck>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            routes: Vec::new(),
            locality: Locality::default(),
            balancing: Balancing::default(),
            timeout: Duration::from_secs(15),
            retries: Retries::default(),
            health_check: None,
        }
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// What users call it in `explain` and metrics; unique within the policy.
    pub name: Label,
    /// Which calls it is for.
    pub matches: Match,
    /// Where they go, by weight; empty means the service itself.
    pub split: Vec<Target>,
    /// The traffic class, where one is told.
    pub class: Option<Label>,
    /// The whole call, where it differs from the policy's.
    pub timeout: Option<Duration>,
    /// Whether the owner declares that a repeated call does no harm, whatever its method.
    pub idempotent: bool,
}

/// Which calls a route is for: all conditions hold, and an empty condition always holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Any of these hosts.
    pub hosts: Vec<HostMatch>,
    /// The path.
    pub path: Option<PathMatch>,
    /// Any of these methods, upper case.
    pub methods: Vec<String>,
    /// All of these headers.
    pub headers: Vec<HeaderMatch>,
    /// A gRPC method; holds only for gRPC calls.
    pub grpc: Option<GrpcMatch>,
}

/// A host, compared without case and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMatch {
    /// Exactly this one, lower case.
    Exact(String),
    /// Any name below this domain, written `*.example.org`; kept lower case without the star, as `.example.org`.
    Suffix(String),
}

/// A path, compared to the bytes without the query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// Exactly this one.
    Exact(String),
    /// This one or below it: `/a` matches `/a` and `/a/b` and not `/ab`; kept without a final `/`, so `/` is empty.
    Prefix(String),
}

/// A header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    /// Its name, lower case.
    pub name: String,
    /// Its value.
    pub value: TextMatch,
}

/// A text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextMatch {
    /// Any value.
    Present,
    /// Exactly this one.
    Exact(String),
    /// Anything that starts so.
    Prefix(String),
}

/// A gRPC method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcMatch {
    /// The full service name, such as `shop.v1.Cart`.
    pub service: String,
    /// The method, or any.
    pub method: Option<String>,
}

/// One arm of a split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The service that gets the calls.
    pub service: ServiceName,
    /// Its share, relative to the other arms; 0 gets none.
    pub weight: u32,
}

/// Which regions a call may go to, and in which order (S14).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locality {
    /// Rings by ascending round trip; a call goes to the first that holds a candidate. Empty means the default rings.
    pub rings: Vec<Ring>,
    /// Whether a call would rather fail than leave its region; callers then subscribe to their own region only (S6).
    pub local_only: bool,
}

/// One ring of regions around the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// The round trip up to which a region belongs to the ring; `None` is everywhere.
    pub within: Option<Duration>,
}

impl Locality {
    /// The rings when none are written: 5 ms, 35 ms, 80 ms, everywhere (S14).
    pub fn default_rings() -> Vec<Ring> {
        let bounds = [Some(5), Some(35), Some(80), None];
        bounds.map(|ms| Ring { within: ms.map(Duration::from_millis) }).to_vec()
    }
}

impl Default for Locality {
    fn default() -> Self {
        Self { rings: Self::default_rings(), local_only: false }
    }
}

/// When a failed try is made again: only if it provably was not sent, or the call is declared idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Tries in all, the first included; 1 to 10.
    pub attempts: u32,
    /// Retries allowed as a percentage of calls, so that retries cannot multiply an overload.
    pub budget_percent: u32,
    /// Retries a second that are allowed however few calls there are.
    pub budget_floor: u32,
}

impl Default for Retries {
    fn default() -> Self {
        Self { attempts: 3, budget_percent: 20, budget_floor: 10 }
    }
}

impl Policy {
    /// Checks what the types do not: order of rings, unique routes, weights, ranges.
    pub fn validate(&self) -> Result<(), Invalid> {
        let mut names = std::collections::BTreeSet::new();
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
        check_timeout("timeout", self.timeout)?;
        self.retries.validate().map_err(|e| e.within("retries"))?;
        self.health_check.as_ref().map_or(Ok(()), HealthCheck::validate).map_err(|e| e.within("healthCheck"))
    }
}

fn check_timeout(field: &str, timeout: Duration) -> Result<(), Invalid> {
    if (Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&timeout) {
        return Ok(());
    }
    Err(Invalid::new(field, format!("{timeout:?} is out of range"), "write 1ms to 1h"))
}

impl Route {
    fn validate(&self) -> Result<(), Invalid> {
        if let Some(timeout) = self.timeout {
            check_timeout("timeout", timeout)?;
        }
        let total: u64 = self.split.iter().map(|target| u64::from(target.weight)).sum();
        if !self.split.is_empty() && (total == 0 || total > u64::from(u32::MAX)) {
            return Err(Invalid::new(
                "split",
                format!("the weights add up to {total}"),
                "give at least one arm a weight above 0; they need not add up to 100",
            ));
        }
        Ok(())
    }
}

impl Locality {
    fn validate(&self) -> Result<(), Invalid> {
        for (i, pair) in self.rings.windows(2).enumerate() {
            let ascends = match (pair[0].within, pair[1].within) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(inner), Some(outer)) => inner < outer,
            };
            if !ascends {
                return Err(Invalid::new(
                    format!("rings[{}]", i + 1),
                    "does not lie outside the ring before it",
                    "order rings by ascending round trip; one without a bound is last",
                ));
            }
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
