//! The scenario of a fleet as written in YAML: servers, load, events, and expectations.
//!
//! The scenario is data; [`Scenario::validate`] checks what the types cannot express, and [`crate::run`] simulates it.

mod action;
mod distribution;
mod expect;
mod sim_time;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{
    Invalid, Policy, Region, RoundTrips,
    spec::{BalancingSpec, LocalitySpec, PolicySpec, RetriesSpec, RoundTripSpec, TopologySpec},
};
use serde::{Deserialize, Serialize};

pub use action::{Action, FailureResponse, ReportFault, ScenarioEvent};
pub use distribution::Distribution;
pub use expect::Expect;
pub use sim_time::SimTime;
pub use traffic::{
    PlannerKind, RegionDrain, RegionFault, RegionReportFault, ThresholdRing, Traffic, TrafficClass,
};
pub(crate) use traffic::{rings_policy, router_rings};

/// Maximum number of servers or callers in a group.
const MAX_INSTANCES: u32 = 100_000;

/// A fleet, its load and its events.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// Name of the scenario.
    pub name: String,
    /// Purpose of the scenario.
    #[serde(default)]
    pub about: String,
    /// Random seed; the same seed gives the same result.
    #[serde(default = "one")]
    pub seed: u64,
    /// Salt of random choices. Another salt gives other random choices for the same requests.
    #[serde(skip)]
    pub salt: u64,
    /// Simulated time, including the warm-up.
    pub duration: SimTime,
    /// Time at the beginning that is excluded from all figures.
    #[serde(default)]
    pub warmup: SimTime,
    /// Length of the windows over which utilisation is averaged.
    #[serde(default = "minute")]
    pub window: SimTime,
    /// The policy under test.
    #[serde(default)]
    pub policy: PolicyUnderTest,
    /// Host types by name.
    #[serde(default)]
    pub hosts: BTreeMap<String, Host>,
    /// Groups of servers, all of the one simulated service.
    pub servers: Vec<Servers>,
    /// Groups of callers of the service.
    pub callers: Vec<Callers>,
    /// Round trips between regions, and propagation of registry changes.
    #[serde(default)]
    pub network: Network,
    /// How calls are divided among regions. Without it, the router's rings decide and nothing is recorded.
    #[serde(default)]
    pub traffic: Option<Traffic>,
    /// Scenario events.
    #[serde(default)]
    pub events: Vec<ScenarioEvent>,
    /// Expectations on the result of the simulation.
    #[serde(default)]
    pub expect: Expect,
}

/// The parts of a policy document that apply to a simulated service, each as in a `Policy`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyUnderTest {
    /// The balancing policy.
    #[serde(default)]
    pub balancing: BalancingSpec,
    /// Regions to which a call may go.
    #[serde(default)]
    pub locality: LocalitySpec,
    /// Timeout of the whole call. Default: 15 s, so that an overload ends within the simulation.
    #[serde(default)]
    pub timeout: Option<String>,
    /// Conditions for retrying a failed attempt.
    #[serde(default)]
    pub retries: RetriesSpec,
}

/// A host type.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Host {
    /// Work per second that a core does, relative to an ordinary core.
    pub speed: f64,
    /// The weight known to the mesh, in thousandths. By default it is derived from speed and cores. A value of 1000
    /// for every type makes an uncalibrated fleet.
    #[serde(default)]
    pub weight: Option<u32>,
}

/// A group of equal servers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Servers {
    /// Name, referenced by events.
    pub name: String,
    /// Number of servers.
    pub count: u32,
    /// Cores of each server.
    #[serde(default = "one_core")]
    pub cores: f64,
    /// Host type of the servers; ordinary by default.
    #[serde(default)]
    pub host: Option<String>,
    /// Region of the servers.
    #[serde(default = "home")]
    pub region: String,
    /// Range of a random factor on the true speed of each machine. The mesh does not know this factor (Uber,
    /// findings).
    #[serde(default)]
    pub drift: Option<[f64; 2]>,
    /// Cost of requests to a process that has just started.
    #[serde(default)]
    pub warm_up: Option<WarmUp>,
    /// Noisy neighbours on the same machine.
    #[serde(default)]
    pub neighbours: Option<Neighbours>,
    /// Concurrency limit of a server.
    #[serde(default)]
    pub limit: Option<Limit>,
    /// Time from the start of a process to its readiness for calls.
    #[serde(default = "five_seconds")]
    pub starts_in: SimTime,
    /// Whether the servers do not run until an event starts them.
    #[serde(default)]
    pub standby: bool,
}

/// A cold process: code not compiled yet, caches empty.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WarmUp {
    /// Cost of the first request, as a multiple of its usual cost.
    pub factor: f64,
    /// Number of requests until the cost is the usual one; it falls linearly.
    pub requests: u32,
}

/// Noisy neighbours, which slow a machine down from time to time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Neighbours {
    /// Share of its speed that a machine loses during noise.
    pub share: f64,
    /// Mean duration of noise.
    pub noisy: SimTime,
    /// Mean duration of quiet.
    pub quiet: SimTime,
}

/// The concurrency limit of a server.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limit {
    /// Maximum number of concurrent requests.
    pub concurrent: u32,
    /// Maximum number of waiting requests; others get 503.
    #[serde(default)]
    pub queue: u32,
    /// How long a request may wait before it gets 503.
    #[serde(default = "five_seconds")]
    pub wait: SimTime,
}

/// A group of equal callers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Callers {
    /// Name, referenced by events.
    pub name: String,
    /// Number of callers.
    pub count: u32,
    /// Requests per second of each caller.
    pub rate: f64,
    /// Mean number of requests per arrival; 1 is a Poisson process.
    #[serde(default = "one_at_once")]
    pub burst: f64,
    /// Their region.
    #[serde(default = "home")]
    pub region: String,
    /// Kinds of requests.
    pub requests: Vec<Requests>,
    /// Changing rate: factor at each time, linearly interpolated.
    #[serde(default)]
    pub rate_over_time: Vec<RateAt>,
}

/// One point of a changing rate.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateAt {
    /// The time.
    pub at: SimTime,
    /// The factor of the rate.
    pub times: f64,
}

/// A kind of request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requests {
    /// Its share of all requests, relative to the other kinds.
    #[serde(default = "whole")]
    pub share: f64,
    /// CPU time of one ordinary core.
    pub cpu: Distribution,
    /// Time after the CPU work in which the request waits for another resource, without using a core.
    #[serde(default)]
    pub wait: Option<Distribution>,
    /// Whether its response is a stream that lasts for `wait`, without a deadline.
    #[serde(default)]
    pub stream: bool,
}

/// The network.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Network {
    /// Round trip within a region, and between regions without a declared round trip.
    #[serde(default = "within")]
    pub within: SimTime,
    /// Round trips between regions, which the mesh knows too.
    #[serde(default)]
    pub round_trips: Vec<RoundTripSpec>,
    /// Range of propagation delays of registry changes; the delay of each caller is constant.
    #[serde(default = "propagation")]
    pub propagation: [SimTime; 2],
}

impl Default for Network {
    fn default() -> Self {
        Self { within: within(), round_trips: Vec::new(), propagation: propagation() }
    }
}

fn one() -> u64 {
    1
}

fn one_core() -> f64 {
    1.0
}

fn one_at_once() -> f64 {
    1.0
}

fn whole() -> f64 {
    1.0
}

fn home() -> String {
    "home".into()
}

fn minute() -> SimTime {
    SimTime::seconds(60)
}

fn five_seconds() -> SimTime {
    SimTime::seconds(5)
}

fn within() -> SimTime {
    SimTime::micros(200)
}

/// From half to nearly all of the propagation time measured by ServiceRouter (ServiceRouter §4.1).
fn propagation() -> [SimTime; 2] {
    [SimTime::micros(400_000), SimTime::micros(1_300_000)]
}

impl PolicyUnderTest {
    /// The policy, validated as in production.
    pub fn validate(&self) -> Result<Policy, Invalid> {
        let spec = PolicySpec {
            service: crate::SERVICE.into(),
            locality: self.locality.clone(),
            balancing: self.balancing.clone(),
            timeout: self.timeout.clone(),
            retries: self.retries.clone(),
            ..PolicySpec::default()
        };
        spec.validate().map(|(_, policy)| policy)
    }
}

impl Network {
    /// The round trips known to the mesh.
    pub fn round_trips(&self) -> Result<RoundTrips, Invalid> {
        let names: BTreeSet<&String> = self.round_trips.iter().flat_map(|trip| &trip.between).collect();
        let region =
            |name: &&String| fairmesh_model::spec::RegionSpec { name: (*name).clone(), ..Default::default() };
        let spec = TopologySpec {
            regions: names.iter().map(region).collect(),
            round_trips: self.round_trips.clone(),
            ..TopologySpec::default()
        };
        spec.validate().map(|(_, trips)| trips)
    }
}

impl Scenario {
    /// Checks what the types cannot express; the error's field is a path such as `servers[0].cores`.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.duration.nanos() == 0 || self.warmup >= self.duration {
            return Err(Invalid::new(
                "duration",
                format!("{} leaves nothing to measure after a warm-up of {}", self.duration, self.warmup),
                "make it longer than the warm-up",
            ));
        }
        if self.window < SimTime::seconds(1) {
            return Err(Invalid::new("window", format!("{} is short", self.window), "write 1s or more"));
        }
        self.policy.validate().map_err(|e| e.within("policy"))?;
        self.network.validate().map_err(|e| e.within("network"))?;
        for (name, host) in &self.hosts {
            within_range("speed", host.speed, 0.01, 100.0).map_err(|e| e.within(format!("hosts.{name}")))?;
        }
        not_empty("servers", self.servers.len())?;
        not_empty("callers", self.callers.len())?;
        for (i, servers) in self.servers.iter().enumerate() {
            servers.validate(&self.hosts).map_err(|e| e.within(format!("servers[{i}]")))?;
            if self.servers[..i].iter().any(|other| other.name == servers.name) {
                let problem = format!("there is another group called '{}'", servers.name);
                return Err(Invalid::new(
                    format!("servers[{i}].name"),
                    problem,
                    "give each a name of its own",
                ));
            }
        }
        for (i, callers) in self.callers.iter().enumerate() {
            callers.validate().map_err(|e| e.within(format!("callers[{i}]")))?;
        }
        if let Some(traffic) = &self.traffic {
            traffic.validate(self).map_err(|e| e.within("traffic"))?;
        }
        for (i, event) in self.events.iter().enumerate() {
            event.validate(self).map_err(|e| e.within(format!("events[{i}]")))?;
        }
        self.expect.validate(self).map_err(|e| e.within("expect"))
    }
}

impl Servers {
    fn validate(&self, hosts: &BTreeMap<String, Host>) -> Result<(), Invalid> {
        within_range("count", f64::from(self.count), 1.0, f64::from(MAX_INSTANCES))?;
        within_range("cores", self.cores, 0.01, 1024.0)?;
        self.region.parse::<Region>().map_err(|e| e.within("region"))?;
        if let Some(host) = self.host.as_ref().filter(|host| !hosts.contains_key(*host)) {
            let hint = "declare it under 'hosts', or leave it out for ordinary hardware";
            return Err(Invalid::new("host", format!("there is no host type '{host}'"), hint));
        }
        if let Some([low, high]) = self.drift {
            within_range("drift[0]", low, 0.01, high)?;
            within_range("drift[1]", high, low, 100.0)?;
        }
        if let Some(warm_up) = &self.warm_up {
            within_range("warmUp.factor", warm_up.factor, 1.0, 1000.0)?;
        }
        if let Some(neighbours) = &self.neighbours {
            within_range("neighbours.share", neighbours.share, 0.0, 0.99)?;
        }
        match &self.limit {
            Some(limit) => within_range("limit.concurrent", f64::from(limit.concurrent), 1.0, 1e6),
            None => Ok(()),
        }
    }
}

impl Callers {
    fn validate(&self) -> Result<(), Invalid> {
        within_range("count", f64::from(self.count), 1.0, f64::from(MAX_INSTANCES))?;
        within_range("rate", self.rate, 1e-6, 1e7)?;
        within_range("burst", self.burst, 1.0, 1e5)?;
        self.region.parse::<Region>().map_err(|e| e.within("region"))?;
        not_empty("requests", self.requests.len())?;
        for (i, requests) in self.requests.iter().enumerate() {
            requests.validate().map_err(|e| e.within(format!("requests[{i}]")))?;
        }
        for (i, pair) in self.rate_over_time.windows(2).enumerate() {
            if pair[0].at >= pair[1].at {
                let field = format!("rateOverTime[{}].at", i + 1);
                return Err(Invalid::new(field, "is not later than the one before it", "order them by time"));
            }
        }
        for (i, point) in self.rate_over_time.iter().enumerate() {
            within_range(&format!("rateOverTime[{i}].times"), point.times, 0.0, 1e4)?;
        }
        Ok(())
    }
}

impl Requests {
    fn validate(&self) -> Result<(), Invalid> {
        within_range("share", self.share, 1e-9, 1e9)?;
        self.cpu.validate().map_err(|e| e.within("cpu"))?;
        match &self.wait {
            Some(wait) => wait.validate().map_err(|e| e.within("wait")),
            None if self.stream => {
                Err(Invalid::new("stream", "a stream without 'wait' has no length", "add 'wait'"))
            }
            None => Ok(()),
        }
    }
}

impl Network {
    fn validate(&self) -> Result<(), Invalid> {
        self.round_trips()?;
        let [from, to] = self.propagation;
        if from > to {
            return Err(Invalid::new(
                "propagation",
                format!("{from} comes after {to}"),
                "write the shorter time first",
            ));
        }
        Ok(())
    }
}

/// Rejects values out of range, and NaN.
pub(crate) fn within_range(field: &str, value: f64, least: f64, most: f64) -> Result<(), Invalid> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Invalid::new(field, format!("{value} is out of range"), format!("write {least} to {most}")))
}

fn not_empty(field: &str, len: usize) -> Result<(), Invalid> {
    if len > 0 {
        return Ok(());
    }
    Err(Invalid::new(field, "the list is empty", "write at least one entry"))
}
