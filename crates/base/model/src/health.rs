//! Active health checks: how endpoints are probed, and the resulting verdicts (Uber, assisted balancing; Canal Mesh
//! §6.1).

use std::{collections::BTreeMap, time::Duration};

use crate::{Endpoint, InstanceId, Invalid, Label, Region};

mod verdict_judgement;

pub use verdict_judgement::{ALL_CALLS, CallerView, Judgement, ServingPower, Standing, share_calls};

/// Maximum length of a verdict's cause, in bytes.
pub const MAX_CAUSE: usize = 200;

/// How the endpoints of a service are probed. One checker in an endpoint's region probes the endpoint once per
/// interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The kind of probe.
    pub probe: Probe,
    /// Time between probes; 100 ms to 1 h.
    pub interval: Duration,
    /// Random variation of the interval in percent, so that probes spread over time; 0 to 50.
    pub jitter_percent: u32,
    /// Timeout of one probe; 1 ms up to the interval.
    pub timeout: Duration,
    /// Consecutive successes that make an endpoint healthy; 1 to 100.
    pub rise: u32,
    /// Consecutive failures that make an endpoint unhealthy; 1 to 100.
    pub fall: u32,
    /// Probes before the first verdict, regardless of their results; 1 to 100.
    pub minimum_samples: u32,
}

/// The kind of probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Opens a TCP connection.
    Tcp,
    /// Sends an HTTP/1.1 GET request.
    Http {
        /// The path, with its query if any.
        path: String,
        /// The expected status; `None` accepts 200 to 399.
        status: Option<u16>,
    },
    /// Calls `grpc.health.v1.Health/Check`, which must return `SERVING`.
    Grpc {
        /// The service to check; empty means the whole server.
        service: String,
    },
}

impl Probe {
    /// The `user-agent` of HTTP probes. The mesh's own admin pages reject it, because a policy could otherwise probe
    /// those pages to read their status.
    pub const USER_AGENT: &str = "fairmesh-health-check";
    /// The path of gRPC probes.
    pub const GRPC_PATH: &str = "/grpc.health.v1.Health/Check";

    /// The method and the path (with query) of a probe's request; `None` if the probe only connects.
    pub fn request(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::Tcp => None,
            Self::Http { path, .. } => Some(("GET", path)),
            Self::Grpc { .. } => Some(("POST", Self::GRPC_PATH)),
        }
    }
}

impl HealthCheck {
    /// A health check with defaults for everything except the probe.
    pub fn new(probe: Probe) -> Self {
        Self {
            probe,
            interval: Duration::from_secs(5),
            jitter_percent: 10,
            timeout: Duration::from_secs(1),
            rise: 2,
            fall: 3,
            minimum_samples: 3,
        }
    }

    /// Checks that all fields are in range.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.probe.validate()?;
        let refuse = |field: &str, value: String, hint: &str| {
            Err(Invalid::new(field, format!("{value} is out of range"), hint))
        };
        if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&self.interval) {
            return refuse("interval", format!("{:?}", self.interval), "write 100ms to 1h; 5s is usual");
        }
        if !(Duration::from_millis(1)..=self.interval).contains(&self.timeout) {
            return refuse("timeout", format!("{:?}", self.timeout), "write 1ms up to the interval");
        }
        if self.jitter_percent > 50 {
            return refuse("jitterPercent", self.jitter_percent.to_string(), "write 0 to 50; 10 is usual");
        }
        for (field, count) in
            [("rise", self.rise), ("fall", self.fall), ("minimumSamples", self.minimum_samples)]
        {
            if !(1..=100).contains(&count) {
                return refuse(field, count.to_string(), "write 1 to 100");
            }
        }
        Ok(())
    }
}

impl Probe {
    /// Checks the path, status and service name of a probe.
    ///
    /// # Errors
    /// [`Invalid`] for the field as written in documents.
    pub fn validate(&self) -> Result<(), Invalid> {
        let plain = |text: &str| text.len() <= 1024 && text.bytes().all(|byte| byte.is_ascii_graphic());
        match self {
            Self::Tcp => Ok(()),
            Self::Http { path, .. } if !path.starts_with('/') || !plain(path) => Err(Invalid::new(
                "http.path",
                format!("'{path}' is not a path"),
                "write one that starts with '/', such as /healthz",
            )),
            Self::Http { status: Some(status), .. } if !(100..=599).contains(status) => Err(Invalid::new(
                "http.status",
                format!("{status} is not a status"),
                "write 100 to 599, or leave it out to accept 200 to 399",
            )),
            Self::Grpc { service } if !plain(service) => Err(Invalid::new(
                "grpc.service",
                format!("'{service}' is not a service"),
                "write a full name such as shop.v1.Cart, or leave it out to check the whole server",
            )),
            Self::Http { .. } | Self::Grpc { .. } => Ok(()),
        }
    }
}

/// Result of one endpoint's active health checks, recorded by the checker of its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the endpoint's probes succeed.
    pub healthy: bool,
    /// Time of the last change, in milliseconds since 1970; for display only.
    pub since_ms: u64,
    /// Confidence in thousandths: n consecutive consistent probes give n / (n + 1).
    pub confidence: u32,
    /// Why the endpoint is unhealthy, in at most [`MAX_CAUSE`] bytes; empty if healthy.
    pub cause: String,
    /// Whether the verdict may be outdated because the region has had no checker for long.
    pub stale: bool,
}

/// The agent elected as checker of a region. Servers accept probes from elected checkers only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectedChecker {
    /// The agent's name, under which it joined.
    pub agent: Label,
    /// Time of the election, in milliseconds since 1970; for display only.
    pub elected_at_ms: u64,
}

/// Effect of a verdict on picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VerdictEffect {
    /// No effect: the endpoint is healthy, or the unhealthy verdict is stale or has low confidence.
    None,
    /// Other endpoints are preferred.
    Penalty,
    /// The endpoint is called only if there is no other.
    Exclusion,
}

impl Verdict {
    /// Minimum confidence at which an unhealthy verdict makes other endpoints preferred. One failed probe suffices if
    /// the policy's minimum number of samples allows.
    pub const PENALTY: u32 = 500;
    /// Minimum confidence at which an unhealthy endpoint becomes a last resort. Nine consecutive failed probes
    /// suffice.
    pub const EXCLUSION: u32 = 900;

    /// The confidence after `in_a_row` consecutive consistent probes, in thousandths.
    pub fn confidence_of(in_a_row: u32) -> u32 {
        let n = u64::from(in_a_row);
        (n * 1000 / (n + 1)) as u32
    }

    /// The verdict's effect on picks.
    pub fn effect(&self) -> VerdictEffect {
        match self.confidence {
            _ if self.healthy || self.stale => VerdictEffect::None,
            Self::EXCLUSION.. => VerdictEffect::Exclusion,
            Self::PENALTY.. => VerdictEffect::Penalty,
            _ => VerdictEffect::None,
        }
    }

    /// Checks that all fields are in range.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.confidence > 1000 {
            let problem = format!("{} is out of range", self.confidence);
            return Err(Invalid::new("confidence", problem, "send 0 to 1000"));
        }
        if self.cause.len() > MAX_CAUSE {
            let problem = format!("has {} bytes", self.cause.len());
            return Err(Invalid::new("cause", problem, format!("shorten it to {MAX_CAUSE}")));
        }
        Ok(())
    }
}

/// The verdicts on the endpoints of one service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// Verdicts by region, then by instance.
    pub by_region: BTreeMap<Region, BTreeMap<InstanceId, Verdict>>,
}

impl Verdicts {
    /// The verdict on an endpoint, if any.
    pub fn on(&self, endpoint: &Endpoint) -> Option<&Verdict> {
        self.by_region.get(&endpoint.location.region)?.get(&endpoint.instance)
    }

    /// Adds or replaces a verdict.
    pub fn put(&mut self, region: Region, instance: InstanceId, verdict: Verdict) {
        self.by_region.entry(region).or_default().insert(instance, verdict);
    }

    /// Removes a verdict.
    pub fn remove(&mut self, region: &Region, instance: &InstanceId) {
        if let Some(verdicts) = self.by_region.get_mut(region) {
            verdicts.remove(instance);
        }
    }
}

/// The first [`MAX_CAUSE`] bytes of a text, cut at a character boundary.
pub fn bounded_cause(text: &str) -> String {
    let mut end = text.len().min(MAX_CAUSE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(in_a_row: u32) -> Verdict {
        let confidence = Verdict::confidence_of(in_a_row);
        Verdict { healthy: false, since_ms: 0, confidence, cause: String::new(), stale: false }
    }

    #[test]
    fn effect_of_health_verdict_grows_with_failures_and_ends_when_stale() {
        let effect = |in_a_row| verdict(in_a_row).effect();
        assert_eq!(
            [0, 1, 3, 8, 9, 100].map(effect),
            [
                VerdictEffect::None,
                VerdictEffect::Penalty,
                VerdictEffect::Penalty,
                VerdictEffect::Penalty,
                VerdictEffect::Exclusion,
                VerdictEffect::Exclusion
            ]
        );
        assert_eq!(Verdict { stale: true, ..verdict(50) }.effect(), VerdictEffect::None);
        assert_eq!(Verdict { healthy: true, ..verdict(50) }.effect(), VerdictEffect::None);
    }

    #[test]
    fn long_verdict_cause_is_cut_at_character_boundary() {
        let cause = bounded_cause(&"ä".repeat(150));
        assert_eq!(cause, "ä".repeat(100));
        assert_eq!(bounded_cause(&format!("a{}", "ä".repeat(150))).len(), 199);
    }

    #[test]
    fn health_check_out_of_range_is_rejected_with_field() {
        let usual = || HealthCheck::new(Probe::Tcp);
        assert_eq!(usual().validate(), Ok(()));
        let field = |check: HealthCheck| check.validate().unwrap_err().field;
        assert_eq!(field(HealthCheck { interval: Duration::from_millis(99), ..usual() }), "interval");
        assert_eq!(field(HealthCheck { timeout: Duration::from_secs(6), ..usual() }), "timeout");
        assert_eq!(field(HealthCheck { fall: 0, ..usual() }), "fall");
        let http = |path: &str, status| HealthCheck::new(Probe::Http { path: path.into(), status });
        assert_eq!(field(http("healthz", None)), "http.path");
        assert_eq!(field(http("/a b", None)), "http.path");
        assert_eq!(field(http("/", Some(99))), "http.status");
    }
}
