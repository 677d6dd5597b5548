//! Active checks: how an endpoint is probed, and what was found (Uber, assisted balancing; Canal Mesh §6.1).

use std::{collections::BTreeMap, time::Duration};

use crate::{Endpoint, EndpointState, Hosts, InstanceId, Invalid, Region};

/// The longest cause that a verdict carries, in bytes.
pub const MAX_CAUSE: usize = 200;

/// How the endpoints of a service are probed: once an interval each, by one checker of their region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is asked of an endpoint.
    pub probe: Probe,
    /// From one probe to the next; 100 ms to 1 h.
    pub interval: Duration,
    /// By how many percent of the interval each wait is shorter or longer, so that probes do not fall together; 0 to 50.
    pub jitter_percent: u32,
    /// How long an answer may take; 1 ms up to the interval.
    pub timeout: Duration,
    /// Good answers in a row that make an endpoint healthy; 1 to 100.
    pub rise: u32,
    /// Failures in a row that make an endpoint unhealthy; 1 to 100.
    pub fall: u32,
    /// Probes before the first verdict, whatever they say; 1 to 100.
    pub minimum_samples: u32,
}

/// What is asked of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// That it takes connections.
    Tcp,
    /// That it answers a GET over HTTP/1.1.
    Http {
        /// The path, with its query where there is one.
        path: String,
        /// The status that it must answer; `None` takes any from 200 to 399.
        status: Option<u16>,
    },
    /// That `grpc.health.v1.Health/Check` answers `SERVING`.
    Grpc {
        /// The service that is asked about; empty is the server as a whole.
        service: String,
    },
}

impl Probe {
    /// What HTTP probes call themselves in `user-agent`. The mesh's own pages refuse it: a policy could otherwise be used to
    /// read their status.
    pub const USER_AGENT: &str = "fairmesh-health-check";
}

impl HealthCheck {
    /// A check with everything but the probe as usual.
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

    /// Checks ranges.
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
    /// Checks paths, statuses and names.
    ///
    /// # Errors
    /// [`Invalid`] by the field as it is written.
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
                "write 100 to 599, or leave it out to take any from 200 to 399",
            )),
            Self::Grpc { service } if !plain(service) => Err(Invalid::new(
                "grpc.service",
                format!("'{service}' is not a service"),
                "write a full name such as shop.v1.Cart, or leave it out to ask about the server",
            )),
            Self::Http { .. } | Self::Grpc { .. } => Ok(()),
        }
    }
}

/// What the checker of a region found of one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it answered as it should.
    pub healthy: bool,
    /// When it was found so first, in milliseconds since 1970; what it says of age is for people.
    pub since_ms: u64,
    /// How sure that is, in thousandths: n probes in a row that agree make n / (n + 1).
    pub confidence: u32,
    /// Why it is not healthy, in at most [`MAX_CAUSE`] bytes; empty where it is.
    pub cause: String,
    /// Whether nobody has checked the region for long, so that it may be otherwise by now.
    pub stale: bool,
}

/// How much force a verdict has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Force {
    /// None: the endpoint is healthy, or that it is not is long ago or uncertain.
    None,
    /// Others are preferred.
    Penalty,
    /// It is called only by who finds nothing else.
    Exclusion,
}

impl Verdict {
    /// From this confidence on an unhealthy endpoint comes after others: a single probe that failed is enough where the
    /// owner declared that one is.
    pub const PENALTY: u32 = 500;
    /// From this confidence on it is a last resort: nine probes in a row failed.
    pub const EXCLUSION: u32 = 900;

    /// How sure so many probes in a row are that agree, in thousandths.
    pub fn confidence_of(in_a_row: u32) -> u32 {
        let n = u64::from(in_a_row);
        (n * 1000 / (n + 1)) as u32
    }

    /// How much force it has.
    pub fn force(&self) -> Force {
        match self.confidence {
            _ if self.healthy || self.stale => Force::None,
            Self::EXCLUSION.. => Force::Exclusion,
            Self::PENALTY.. => Force::Penalty,
            _ => Force::None,
        }
    }

    /// Checks ranges.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.confidence > 1000 {
            let problem = format!("{} is out of range", self.confidence);
            return Err(Invalid::new("confidence", problem, "send 0 to 1000"));
        }
        if self.cause.len() > MAX_CAUSE {
            let problem = format!("has {} bytes", self.cause.len());
            return Err(Invalid::new("cause", problem, format!("cut it to {MAX_CAUSE}")));
        }
        Ok(())
    }
}

/// The verdicts on the endpoints of one service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// By region, then instance.
    pub by_region: BTreeMap<Region, BTreeMap<InstanceId, Verdict>>,
}

impl Verdicts {
    /// The verdict on an endpoint, where there is one.
    pub fn on(&self, endpoint: &Endpoint) -> Option<&Verdict> {
        self.by_region.get(&endpoint.location.region)?.get(&endpoint.instance)
    }

    /// Takes one in.
    pub fn put(&mut self, region: Region, instance: InstanceId, verdict: Verdict) {
        self.by_region.entry(region).or_default().insert(instance, verdict);
    }

    /// Takes one out.
    pub fn remove(&mut self, region: &Region, instance: &InstanceId) {
        if let Some(verdicts) = self.by_region.get_mut(region) {
            verdicts.remove(instance);
        }
    }
}

/// What verdicts come to for one service's endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Parallel to the endpoints.
    pub forces: Vec<Force>,
    /// The regions whose verdicts are ignored.
    pub panics: Vec<Region>,
}

impl Verdicts {
    /// How much force verdicts have on each of these endpoints.
    ///
    /// Where they speak against more than half of what the serving endpoints of a region can do, they have none there: one
    /// checker may err, and the rest could not bear the calls (the panic floor that Uber considers for assisted balancing). By region, since each has its own
    /// checker, and one that errs must not be believed because others do not.
    pub fn judge(&self, endpoints: &[&Endpoint], hosts: &Hosts) -> Judged {
        let force = |endpoint: &&Endpoint| self.on(endpoint).map_or(Force::None, Verdict::force);
        let mut forces: Vec<Force> = endpoints.iter().map(force).collect();
        if forces.iter().all(|force| *force == Force::None) {
            return Judged { forces, panics: Vec::new() };
        }
        let (mut all, mut against) = (BTreeMap::<&Region, u64>::new(), BTreeMap::<&Region, u64>::new());
        for (endpoint, force) in endpoints.iter().zip(&forces) {
            if endpoint.state == EndpointState::Serving {
                let (region, power) = (&endpoint.location.region, u64::from(hosts.power(endpoint)));
                *all.entry(region).or_default() += power;
                *against.entry(region).or_default() += if *force == Force::None { 0 } else { power };
            }
        }
        let panics =
            against.iter().filter(|(region, power)| 2 * **power > all.get(*region).copied().unwrap_or(0));
        let panics: Vec<Region> = panics.map(|(region, _)| (*region).clone()).collect();
        for (endpoint, force) in endpoints.iter().zip(&mut forces) {
            if panics.contains(&endpoint.location.region) {
                *force = Force::None;
            }
        }
        Judged { forces, panics }
    }
}

/// At most [`MAX_CAUSE`] bytes of a text, cut between characters.
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
    fn more_failures_in_a_row_have_more_force_and_an_old_verdict_has_none() {
        let force = |in_a_row| verdict(in_a_row).force();
        assert_eq!(
            [0, 1, 3, 8, 9, 100].map(force),
            [Force::None, Force::Penalty, Force::Penalty, Force::Penalty, Force::Exclusion, Force::Exclusion]
        );
        assert_eq!(Verdict { stale: true, ..verdict(50) }.force(), Force::None);
        assert_eq!(Verdict { healthy: true, ..verdict(50) }.force(), Force::None);
    }

    /// Endpoints by region, state and how many of their probes failed in a row.
    fn judged(fleet: &[(&str, EndpointState, u32)]) -> (Vec<Force>, Vec<String>) {
        let mut verdicts = Verdicts::default();
        let endpoints: Vec<Endpoint> = fleet
            .iter()
            .enumerate()
            .map(|(i, (region, state, failures))| {
                let endpoint = crate::hosts::tests::endpoint("10.0.0.1:80", None, 1000);
                let (instance, region) =
                    (InstanceId::new(format!("i{i}")).unwrap(), Region::new(region).unwrap());
                verdicts.put(region.clone(), instance.clone(), verdict(*failures));
                let location = crate::Location::in_region(region);
                Endpoint { instance, location, state: *state, ..endpoint }
            })
            .collect();
        let judged = verdicts.judge(&endpoints.iter().collect::<Vec<_>>(), &Hosts::default());
        (judged.forces, judged.panics.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn verdicts_against_more_than_half_of_a_region_are_ignored_there_alone() {
        use EndpointState::{Lost, Serving};
        use Force::{Exclusion, None, Penalty};
        let half = [
            ("eu", Serving, 3),
            ("eu", Serving, 0),
            ("us", Serving, 9),
            ("us", Serving, 0),
            ("us", Serving, 0),
        ];
        assert_eq!(judged(&half), (vec![Penalty, None, Exclusion, None, None], vec![]));
        let more = [
            ("eu", Serving, 3),
            ("eu", Serving, 3),
            ("eu", Serving, 0),
            ("us", Serving, 9),
            ("us", Serving, 0),
        ];
        assert_eq!(judged(&more), (vec![None, None, None, Exclusion, None], vec!["eu".into()]));
        let lost = [("eu", Serving, 3), ("eu", Lost, 0), ("eu", Lost, 9)];
        assert_eq!(judged(&lost).1, ["eu"], "what does not serve is no capacity");
        assert_eq!(judged(&[("eu", Serving, 9)]).0, [None], "the only one is called whatever is said of it");
    }

    #[test]
    fn a_cause_is_cut_between_characters() {
        let cause = bounded_cause(&"ä".repeat(150));
        assert_eq!(cause, "ä".repeat(100));
        assert_eq!(bounded_cause(&format!("a{}", "ä".repeat(150))).len(), 199);
    }

    #[test]
    fn a_check_out_of_range_is_refused_by_field() {
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
