//! A generator of random fleets for tuning and evaluating policies.
//!
//! A fleet is a function of its seed. The range follows the simulations in Uber, assisted balancing: 3 to 3,000 servers
//! and callers, less than one to more than a thousand requests per second and caller, service times from milliseconds
//! to tens of seconds, and hardware speeds that differ up to twofold. Tuning and evaluation use different seeds:
//! [`TUNING`] and [`HELD_OUT`].

use std::{collections::BTreeMap, ops::Range};

use fairmesh_model::arith::{Generator, hash_text, mix_pair};

use crate::{
    sampling::{exp, unit},
    scenario::{
        Action, Callers, Distribution, Expect, Host, Neighbours, Network, PolicyUnderTest, RateAt, Requests,
        Scenario, ScenarioEvent, Servers, SimTime, WarmUp,
    },
};

/// Seeds of the fleets with which constants are chosen.
pub const TUNING: Range<u64> = 0..300;
/// Seeds of the fleets used for evaluation. They must not influence the choice of a constant.
pub const HELD_OUT: Range<u64> = 1000..1100;

/// Maximum number of requests per minute of all servers together, so that a fleet can be simulated in seconds.
const MAX_REQUESTS_PER_MINUTE: f64 = 5.4e6;
/// Minimum number of callers whose subsets contain a given server, if there are enough callers (ServiceRouter
/// §3.4.2).
const SUBSETS_PER_SERVER: u32 = 20;

/// The hardware mix of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mix {
    /// All machines are equal, except for drift.
    Uniform,
    /// Two or three host types, each 1 to 2 times as fast as the slowest.
    Mixed,
    /// The slowest type and one of twice its speed, about half each. This is the worst case for equal shares.
    Worst,
}

impl Mix {
    /// Returns the mix of the fleet with this seed: a fifth of all fleets are uniform, and a fifth are worst.
    pub fn of(seed: u64) -> Self {
        match Generator::new(mix_pair(hash_text("mix"), seed)).below(5) {
            0 => Self::Uniform,
            1 => Self::Worst,
            _ => Self::Mixed,
        }
    }
}

/// Returns the fleet with this seed, under the default policy.
pub fn fleet(seed: u64) -> Scenario {
    let mut sampler = FleetSampler(Generator::new(mix_pair(hash_text("fleet"), seed)));
    let servers = sampler.log_uniform(3.0, 3000.0) as u32;
    let callers = sampler.log_uniform(3.0, 3000.0) as u32;
    let cores = [1.0, 2.0, 4.0, 8.0][sampler.0.below(4) as usize];
    let speeds = sampler.speeds(Mix::of(seed));
    let groups = sampler.split(servers, speeds.len());
    let drift = sampler.uniform(0.0, 0.1);
    let neighbours = sampler.neighbours();
    let capacity: f64 = groups.iter().zip(&speeds).map(|(&n, speed)| f64::from(n) * cores * speed).sum();
    let utilisation = sampler.uniform(0.25, 0.65);
    let per_minute = sampler.log_uniform(1800.0, 20_000.0).min(MAX_REQUESTS_PER_MINUTE / f64::from(servers))
        * f64::from(servers);
    let cpu = SimTime::micros((utilisation * capacity * 60.0 / per_minute * 1e6).max(100.0) as u64);
    let requests = sampler.requests(cpu);
    let callers = sampler.callers(callers, per_minute / 60.0, &requests);
    let mut fleet = Scenario {
        name: format!("fleet-{seed}"),
        about: String::new(),
        seed: seed + 1,
        salt: 0,
        duration: SimTime::seconds(if per_minute > 1e6 { 120 } else { 180 }),
        warmup: SimTime::seconds(60),
        window: SimTime::seconds(60),
        policy: PolicyUnderTest::default(),
        hosts: hosts(&speeds),
        servers: (0..).zip(groups).map(|(i, n)| group(i, n, cores, drift, neighbours)).collect(),
        callers,
        network: Network::default(),
        traffic: None,
        events: Vec::new(),
        expect: Expect::default(),
    };
    fleet.policy.balancing.subset = Some(subset(&fleet));
    fleet
}

/// Scales a fleet down to this many requests per minute: proportionally fewer servers and callers, with the same
/// rates, machines and requests. For sweeps that cannot afford the largest fleets.
pub fn limit_requests(mut fleet: Scenario, requests_a_minute: f64) -> Scenario {
    let per_minute: f64 = fleet.callers.iter().map(|group| f64::from(group.count) * group.rate * 60.0).sum();
    let part = requests_a_minute / per_minute;
    if part >= 1.0 {
        return fleet;
    }
    let fewer = |count: u32| ((f64::from(count) * part).round() as u32).max(1);
    let before = capacity(&fleet);
    fleet.servers.iter_mut().for_each(|group| group.count = fewer(group.count));
    // Keeps the utilisation although counts are integers.
    let part = capacity(&fleet) / before;
    for group in &mut fleet.callers {
        let all = f64::from(group.count) * group.rate * part;
        group.count = fewer(group.count);
        group.rate = all / f64::from(group.count);
    }
    fleet.policy.balancing.subset = Some(subset(&fleet));
    fleet
}

/// Adds a rollout: all servers are replaced by new processes, a fifteenth of them every six seconds, and a new process
/// initially has four times the usual cost.
pub fn with_rollout(mut fleet: Scenario) -> Scenario {
    let servers: u32 = fleet.servers.iter().map(|group| group.count).sum();
    for group in &mut fleet.servers {
        group.warm_up = Some(WarmUp { factor: 4.0, requests: 300 });
    }
    let batch = servers.div_ceil(15);
    let action = Action::Rollout { batch, every: SimTime::seconds(6), drain: SimTime::seconds(3) };
    fleet.events = vec![ScenarioEvent { at: SimTime::seconds(75), to: None, count: None, action }];
    fleet.duration = SimTime::seconds(180);
    fleet.warmup = SimTime::seconds(30);
    fleet
}

/// Capacity of a fleet, in ordinary cores.
fn capacity(fleet: &Scenario) -> f64 {
    let speed = |host: &Option<String>| {
        host.as_ref().and_then(|host| fleet.hosts.get(host)).map_or(1.0, |host| host.speed)
    };
    fleet.servers.iter().map(|group| f64::from(group.count) * group.cores * speed(&group.host)).sum()
}

/// Returns the subset size of callers for which each server is in enough subsets; 0 means that there are no subsets.
fn subset(fleet: &Scenario) -> u32 {
    let servers: u32 = fleet.servers.iter().map(|group| group.count).sum();
    let callers: u32 = fleet.callers.iter().map(|group| group.count).sum();
    let wanted = (SUBSETS_PER_SERVER * servers).div_ceil(callers).max(20);
    if wanted >= servers { 0 } else { wanted }
}

fn hosts(speeds: &[f64]) -> BTreeMap<String, Host> {
    let host = |(i, &speed): (usize, &f64)| (format!("h{i}"), Host { speed, weight: None });
    speeds.iter().enumerate().map(host).collect()
}

fn group(i: usize, count: u32, cores: f64, drift: f64, neighbours: Option<Neighbours>) -> Servers {
    Servers {
        name: format!("s{i}"),
        count,
        cores,
        host: Some(format!("h{i}")),
        region: "home".into(),
        drift: Some([1.0 - drift, 1.0 + drift]),
        warm_up: None,
        neighbours,
        limit: None,
        starts_in: SimTime::seconds(5),
        standby: false,
    }
}

struct FleetSampler(Generator);

impl FleetSampler {
    /// A uniform number between `low` and `high`.
    fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * unit(&mut self.0)
    }

    /// A log-uniform number between `low` and `high`.
    fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
        let part = unit(&mut self.0);
        low * exp(part * natural_log(high / low))
    }

    /// Returns true with this probability.
    fn has(&mut self, probability: f64) -> bool {
        unit(&mut self.0) < probability
    }

    fn speeds(&mut self, mix: Mix) -> Vec<f64> {
        match mix {
            Mix::Uniform => vec![1.0],
            Mix::Worst => vec![1.0, 2.0],
            Mix::Mixed if self.has(0.5) => vec![1.0, self.uniform(1.1, 2.0)],
            Mix::Mixed => vec![1.0, self.uniform(1.1, 1.5), self.uniform(1.5, 2.0)],
        }
    }

    /// Splits a number into parts. Each part is at least 1 and at least a sixth of an equal part.
    fn split(&mut self, whole: u32, parts: usize) -> Vec<u32> {
        let shares: Vec<f64> = (0..parts).map(|_| self.uniform(0.2, 1.0)).collect();
        let total: f64 = shares.iter().sum();
        let mut sizes: Vec<u32> =
            shares.iter().map(|share| ((f64::from(whole) * share / total) as u32).max(1)).collect();
        let given: u32 = sizes.iter().skip(1).sum();
        sizes[0] = whole.saturating_sub(given).max(1);
        sizes
    }

    fn neighbours(&mut self) -> Option<Neighbours> {
        self.has(0.3).then(|| Neighbours {
            share: self.uniform(0.05, 0.3),
            noisy: SimTime::seconds(5 + self.0.below(30)),
            quiet: SimTime::seconds(20 + self.0.below(100)),
        })
    }

    fn requests(&mut self, mean: SimTime) -> Vec<Requests> {
        let cpu = match self.0.below(4) {
            0 => Distribution::Fixed(mean),
            1 => Distribution::Exponential(mean),
            2 => Distribution::Lognormal { mean, sigma: self.uniform(0.5, 1.5) },
            _ => {
                let usual = SimTime::micros(mean.nanos() / 2000);
                // 0.95 times a half plus 0.05 times ten and a half is one.
                Distribution::Bimodal { usual, rare: SimTime::micros(mean.nanos() / 2000 * 21), share: 0.05 }
            }
        };
        let wait = self.has(0.5).then(|| {
            let longest = (20e9 / mean.nanos() as f64).clamp(0.1, 20.0);
            Distribution::Exponential(SimTime::micros(
                (mean.nanos() as f64 * self.log_uniform(0.05, longest) / 1e3) as u64,
            ))
        });
        vec![Requests { share: 1.0, cpu, wait, stream: false }]
    }

    fn callers(&mut self, count: u32, rate: f64, requests: &[Requests]) -> Vec<Callers> {
        let burst = if self.has(0.3) { self.uniform(1.5, 5.0) } else { 1.0 };
        let change = if self.has(0.3) { self.uniform(0.7, 1.2) } else { 1.0 };
        let rate_over_time = match change == 1.0 {
            true => Vec::new(),
            false => {
                let at = |seconds, times| RateAt { at: SimTime::seconds(seconds), times };
                vec![at(30, 1.0), at(150, change)]
            }
        };
        let callers = |name: &str, count: u32, rate: f64| Callers {
            name: name.into(),
            count,
            rate: rate / f64::from(count),
            burst,
            region: "home".into(),
            requests: requests.to_vec(),
            rate_over_time: rate_over_time.clone(),
        };
        let fifth = count / 5;
        if fifth == 0 || self.has(0.5) {
            return vec![callers("all", count, rate)];
        }
        // A fifth of the callers make more than half of the calls.
        let heavy = self.uniform(0.5, 0.8);
        vec![callers("heavy", fifth, rate * heavy), callers("light", count - fifth, rate * (1.0 - heavy))]
    }
}

/// Moves callers to a distance that matters to polling (ServiceRouter §3.4.3): the round trip is 1/500 to twice the
/// time of a request, within the bounds of real networks.
pub fn with_distance(mut fleet: Scenario) -> Scenario {
    let mut sampler = FleetSampler(Generator::new(mix_pair(hash_text("distance"), fleet.seed)));
    let requests = fleet.callers.iter().flat_map(|group| &group.requests);
    let time = |requests: &Requests| requests.cpu.mean() + requests.wait.map_or(0.0, |wait| wait.mean());
    let longest = requests.map(time).fold(0.0, f64::max);
    let round_trip = (longest * sampler.log_uniform(0.002, 2.0) / 1e3) as u64;
    fleet.network.within = SimTime::micros(round_trip.clamp(100, 300_000));
    fleet
}

/// Natural logarithm by the integer logarithm, so that it is the same on every machine.
fn natural_log(x: f64) -> f64 {
    let scaled = fairmesh_model::arith::log2((x * 1e6) as u64) as f64 / (1_u64 << 32) as f64;
    let unit = fairmesh_model::arith::log2(1_000_000) as f64 / (1_u64 << 32) as f64;
    (scaled - unit) * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fleet_is_valid_and_within_request_bound() {
        for seed in TUNING.chain(HELD_OUT) {
            let fleet = fleet(seed);
            fleet.validate().unwrap();
            let rate: f64 = fleet.callers.iter().map(|group| f64::from(group.count) * group.rate).sum();
            assert!(rate * 60.0 <= MAX_REQUESTS_PER_MINUTE * 1.01, "{seed}: {rate}");
        }
    }

    #[test]
    fn generated_fleets_cover_documented_range() {
        let fleets: Vec<Scenario> = TUNING.map(fleet).collect();
        let count = |of: fn(&Scenario) -> u32| {
            let counts: Vec<u32> = fleets.iter().map(of).collect();
            (*counts.iter().min().unwrap(), *counts.iter().max().unwrap())
        };
        let servers = count(|fleet| fleet.servers.iter().map(|group| group.count).sum());
        let callers = count(|fleet| fleet.callers.iter().map(|group| group.count).sum());
        assert!(servers.0 < 5 && servers.1 > 2500, "{servers:?}");
        assert!(callers.0 < 5 && callers.1 > 2500, "{callers:?}");
        let rates = || fleets.iter().flat_map(|fleet| &fleet.callers).map(|group| group.rate);
        assert!(rates().any(|rate| rate < 1.0) && rates().any(|rate| rate > 1000.0));
        for mix in [Mix::Uniform, Mix::Mixed, Mix::Worst] {
            assert!(TUNING.filter(|&seed| Mix::of(seed) == mix).count() > 40, "{mix:?}");
        }
    }

    #[test]
    fn fleet_utilisation_is_in_range() {
        for seed in 0..20 {
            let fleet = fleet(seed);
            let utilisation = load(&fleet) / capacity(&fleet);
            assert!((0.24..0.66).contains(&utilisation), "{seed}: {utilisation}");
        }
    }

    fn load(fleet: &Scenario) -> f64 {
        let load = |group: &Callers| f64::from(group.count) * group.rate * group.requests[0].cpu.mean() / 1e9;
        fleet.callers.iter().map(load).sum()
    }

    #[test]
    fn scaled_down_fleet_keeps_rates_and_utilisation() {
        for seed in TUNING {
            let (whole, part) = (fleet(seed), limit_requests(fleet(seed), 300_000.0));
            part.validate().unwrap();
            let of = |fleet: &Scenario| {
                let rate: f64 = fleet.callers.iter().map(|group| f64::from(group.count) * group.rate).sum();
                (rate * 60.0, load(fleet) / capacity(fleet))
            };
            let ((per_minute, was), (fewer, is)) = (of(&whole), of(&part));
            assert!((was - is).abs() < 1e-9, "{seed}: {was} {is}");
            if per_minute < 300_000.0 {
                assert_eq!(serde_json::to_value(&whole).unwrap(), serde_json::to_value(&part).unwrap());
            } else {
                assert!((200_000.0..420_000.0).contains(&fewer), "{seed}: {fewer}");
            }
        }
    }

    #[test]
    fn every_fleet_with_rollout_is_valid() {
        TUNING.for_each(|seed| with_rollout(fleet(seed)).validate().unwrap());
    }

    #[test]
    fn distant_fleets_include_near_and_far_servers() {
        let far = |seed| {
            let fleet = with_distance(fleet(seed));
            fleet.validate().unwrap();
            let requests = &fleet.callers[0].requests[0];
            let time = requests.cpu.mean() + requests.wait.map_or(0.0, |wait| wait.mean());
            fleet.network.within.nanos() as f64 / time
        };
        let near = TUNING.map(far).filter(|&ratio| ratio < 0.5).count();
        assert!((150..280).contains(&near), "{near} of 300 are near enough for polls");
    }
}
