//! The policy of a service, as validation made it (a plan). What a person writes is in [`crate::spec`].

use std::time::Duration;

use crate::{Balancing, HealthCheck, Invalid, RateLimit, Route, Timeouts, route::is_token};

/// How calls to a service are routed and protected. The default is right for a service nobody wrote a policy for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Rules in order; the first that matches wins, and a call that none matches goes to the service itself, as in Envoy.
    pub routes: Vec<Route>,
    /// Which regions a call may go to.
    pub locality: Locality,
    /// How an endpoint is chosen.
    pub balancing: Balancing,
    /// How long calls may take; routes may have others.
    pub timeouts: Timeouts,
    /// When a failed try is made again.
    pub retries: Retries,
    /// How many calls each caller may make to the service in all; rules may have limits of their own besides.
    pub limit: Option<RateLimit>,
    /// Where the key of a call is read that names none, for services called by key: sessions stay with their endpoint.
    pub key: Option<KeySource>,
    /// How endpoints are probed; `None` leaves that to callers' own experience.
    pub health_check: Option<HealthCheck>,
    /// Where a lookaside of the service's own is asked which endpoints to call: `host:port`, or `unix:/path`.
    pub lookaside: Option<String>,
}

/// Which regions a call may go to, and in which order (ServiceRouter §3.4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locality {
    /// Rings by ascending round trip; a call goes to the first that holds a candidate. Empty means the default rings.
    pub rings: Vec<Ring>,
    /// Whether a call would rather fail than leave its region; callers then subscribe to their own region only (ServiceRouter §3.2).
    pub local_only: bool,
}

/// One ring of regions around the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// The round trip up to which a region belongs to the ring; `None` is everywhere.
    pub within: Option<Duration>,
}

impl Locality {
    /// The rings when none are written: 5 ms, 35 ms, 80 ms, everywhere (ServiceRouter §3.4.1).
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

/// Where the key of a call is read. A value that is a number is that key; any other is hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// In the header of this name, in lower case.
    Header(String),
    /// In the cookie of this name.
    Cookie(String),
    /// In the parameter of the query of this name.
    Query(String),
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
        self.timeouts.validate()?;
        self.retries.validate().map_err(|e| e.within("retries"))?;
        self.limit.as_ref().map_or(Ok(()), RateLimit::validate).map_err(|e| e.within("limit"))?;
        self.key.as_ref().map_or(Ok(()), KeySource::validate).map_err(|e| e.within("key"))?;
        self.health_check
            .as_ref()
            .map_or(Ok(()), HealthCheck::validate)
            .map_err(|e| e.within("healthCheck"))?;
        self.lookaside.as_deref().map_or(Ok(()), check_lookaside)
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
    // As long as names of hosts may be, with a port.
    match fits && text.len() <= 260 {
        true => Ok(()),
        false => {
            let problem = format!("'{text}' is no address");
            Err(Invalid::new("lookaside", problem, "write host:port, such as picks.shop:7420, or unix:/path"))
        }
    }
}

pub(crate) fn check_timeout(field: &str, timeout: Duration) -> Result<(), Invalid> {
    if (Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&timeout) {
        return Ok(());
    }
    Err(Invalid::new(field, format!("{timeout:?} is out of range"), "write 1ms to 1h"))
}

impl KeySource {
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
