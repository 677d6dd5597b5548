//! What a person writes: a fleet, its load, what happens to it, and what is expected.
//!
//! The scenario is data; [`Scenario::validate`] says what no type can, and [`crate::run`] plays it.

mod action;
mod draw;
mod expect;
mod span;

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{
    Invalid, Policy, Region, RoundTrips,
    spec::{BalancingSpec, LocalitySpec, PolicySpec, RetriesSpec, RoundTripSpec, TopologySpec},
};
use serde::{Deserialize, Serialize};

pub use action::{Action, Answer, Happening, Reports};
pub use draw::Draw;
pub use expect::Expect;
pub use span::Span;

/// The most servers or callers of a scenario.
const MOST: u32 = 100_000;

/// A fleet and what it lives through.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scenario {
    /// What it is called.
    pub name: String,
    /// What it shows.
    #[serde(default)]
    pub about: String,
    /// Where chance starts; the same seed gives the same result.
    #[serde(default = "one")]
    pub seed: u64,
    /// Another number makes other random choices for the same requests.
    #[serde(skip)]
    pub salt: u64,
    /// Time simulated, warm-up included.
    pub duration: Span,
    /// Time at the beginning that no figure counts.
    #[serde(default)]
    pub warmup: Span,
    /// Utilisation is averaged over windows of this length.
    #[serde(default = "minute")]
    pub window: Span,
    /// The policy under test.
    #[serde(default)]
    pub policy: PolicyUnderTest,
    /// Kinds of hardware by name.
    #[serde(default)]
    pub hosts: BTreeMap<String, Host>,
    /// The servers of the one service.
    pub servers: Vec<Servers>,
    /// Those that call it.
    pub callers: Vec<Callers>,
    /// How far regions are from each other, and how fast news travels.
    #[serde(default)]
    pub network: Network,
    /// What happens when.
    #[serde(default)]
    pub events: Vec<Happening>,
    /// What must hold in the end.
    #[serde(default)]
    pub expect: Expect,
}

/// The parts of a policy document that a simulated service can have; each as in a `Policy`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyUnderTest {
    /// How an endpoint is chosen.
    #[serde(default)]
    pub balancing: BalancingSpec,
    /// Which regions a call may go to.
    #[serde(default)]
    pub locality: LocalitySpec,
    /// The whole call; 15 s when left out, since somebody who simulates an overload wants to see it end.
    #[serde(default)]
    pub timeout: Option<String>,
    /// When a failed try is made again.
    #[serde(default)]
    pub retries: RetriesSpec,
}

/// A kind of hardware.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Host {
    /// Work that a core does in a second, relative to an ordinary core.
    pub speed: f64,
    /// The weight that the mesh is told, in thousandths; left out, what speed and cores make of it. 1000 for every kind
    /// is a fleet that nobody calibrated.
    #[serde(default)]
    pub weight: Option<u32>,
}

/// Servers that are alike.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Servers {
    /// What events call them.
    pub name: String,
    /// How many.
    pub count: u32,
    /// Cores of each.
    #[serde(default = "one_core")]
    pub cores: f64,
    /// Their hardware; left out, ordinary.
    #[serde(default)]
    pub host: Option<String>,
    /// Their region.
    #[serde(default = "home")]
    pub region: String,
    /// What each machine's speed is really multiplied by, drawn between the two; the mesh does not know it (Uber, findings).
    #[serde(default)]
    pub drift: Option<[f64; 2]>,
    /// What requests cost a process that has just started.
    #[serde(default)]
    pub warm_up: Option<WarmUp>,
    /// What others on the same machine take.
    #[serde(default)]
    pub neighbours: Option<Neighbours>,
    /// How many requests one works on at once.
    #[serde(default)]
    pub limit: Option<Limit>,
    /// From a start to the readiness for calls.
    #[serde(default = "five_seconds")]
    pub starts_in: Span,
    /// Whether they do not run until an event starts them.
    #[serde(default)]
    pub standby: bool,
}

/// A cold process: code not compiled yet, caches empty.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WarmUp {
    /// What the first request costs, as a multiple of its usual cost.
    pub factor: f64,
    /// After how many requests the cost is the usual one; it falls in a straight line.
    pub requests: u32,
}

/// Noisy neighbours: now and then they slow a machine down.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Neighbours {
    /// The share of its speed that a machine loses meanwhile.
    pub share: f64,
    /// How long that lasts on average.
    pub noisy: Span,
    /// How long it is quiet on average.
    pub quiet: Span,
}

/// How much a server lets in.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limit {
    /// Requests worked on at once.
    pub concurrent: u32,
    /// Requests that may wait; one more is answered 503.
    #[serde(default)]
    pub queue: u32,
    /// How long one may wait before it is answered 503.
    #[serde(default = "five_seconds")]
    pub wait: Span,
}

/// Callers that are alike.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Callers {
    /// What events call them.
    pub name: String,
    /// How many.
    pub count: u32,
    /// Requests a second of each.
    pub rate: f64,
    /// Requests that come at once, on average; 1 is a Poisson process.
    #[serde(default = "one_at_once")]
    pub burst: f64,
    /// Their region.
    #[serde(default = "home")]
    pub region: String,
    /// What they ask for.
    pub requests: Vec<Requests>,
    /// How the rate changes: the multiple at each moment, in straight lines between them.
    #[serde(default)]
    pub rate_over_time: Vec<RateAt>,
}

/// One point of a changing rate.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateAt {
    /// When.
    pub at: Span,
    /// What the rate is multiplied by.
    pub times: f64,
}

/// A kind of request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requests {
    /// Its share of all requests, relative to the other kinds.
    #[serde(default = "whole")]
    pub share: f64,
    /// Time of one ordinary core.
    pub cpu: Draw,
    /// Time after that in which it waits for something else, and holds no core.
    #[serde(default)]
    pub wait: Option<Draw>,
    /// Whether its answer is a stream that lasts for `wait`; no deadline applies.
    #[serde(default)]
    pub stream: bool,
}

/// Distances.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Network {
    /// The round trip within a region; regions without a round trip between them are as near.
    #[serde(default = "within")]
    pub within: Span,
    /// Round trips between regions, which the mesh knows too.
    #[serde(default)]
    pub round_trips: Vec<RoundTripSpec>,
    /// Callers learn of changes in the registry after a time between these two, each always after the same.
    #[serde(default = "propagation")]
    pub propagation: [Span; 2],
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

fn minute() -> Span {
    Span::seconds(60)
}

fn five_seconds() -> Span {
    Span::seconds(5)
}

fn within() -> Span {
    Span::micros(200)
}

/// From the half to nearly all of what ServiceRouter measured for a change to reach its callers (ServiceRouter §4.1).
fn propagation() -> [Span; 2] {
    [Span::micros(400_000), Span::micros(1_300_000)]
}

impl PolicyUnderTest {
    /// The policy, as production validates it.
    pub fn plan(&self) -> Result<Policy, Invalid> {
        let spec = PolicySpec {
            service: crate::SERVICE.into(),
            locality: self.locality.clone(),
            balancing: self.balancing.clone(),
            timeout: self.timeout.clone(),
            retries: self.retries.clone(),
            ..PolicySpec::default()
        };
        spec.plan().map(|(_, policy)| policy)
    }
}

impl Network {
    /// The round trips as the mesh knows them.
    pub fn round_trips(&self) -> Result<RoundTrips, Invalid> {
        let names: BTreeSet<&String> = self.round_trips.iter().flat_map(|trip| &trip.between).collect();
        let region =
            |name: &&String| fairmesh_model::spec::RegionSpec { name: (*name).clone(), ..Default::default() };
        let spec = TopologySpec {
            regions: names.iter().map(region).collect(),
            round_trips: self.round_trips.clone(),
        };
        spec.plan().map(|(_, trips)| trips)
    }
}

impl Scenario {
    /// Checks what the types do not; the error's field is a path such as `servers[0].cores`.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.duration.nanos() == 0 || self.warmup >= self.duration {
            return Err(Invalid::new(
                "duration",
                format!("{} leaves nothing to measure after a warm-up of {}", self.duration, self.warmup),
                "let it last longer than the warm-up",
            ));
        }
        if self.window < Span::seconds(1) {
            return Err(Invalid::new("window", format!("{} is short", self.window), "write 1s or more"));
        }
        self.policy.plan().map_err(|e| e.within("policy"))?;
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
        for (i, event) in self.events.iter().enumerate() {
            event.validate(self).map_err(|e| e.within(format!("events[{i}]")))?;
        }
        self.expect.validate(self).map_err(|e| e.within("expect"))
    }
}

impl Servers {
    fn validate(&self, hosts: &BTreeMap<String, Host>) -> Result<(), Invalid> {
        within_range("count", f64::from(self.count), 1.0, f64::from(MOST))?;
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
        within_range("count", f64::from(self.count), 1.0, f64::from(MOST))?;
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

/// Refuses what lies outside, and what is no number.
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
