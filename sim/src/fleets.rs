//! A generator of fleets: what policies are tuned on and judged by.
//!
//! A fleet is a function of its seed. The range is that of the simulations in Uber, assisted balancing: 3 to 3,000 servers and callers, from under one to over a
//! thousand requests a second for a caller, service times from milliseconds to tens of seconds, hardware up to 2 ×
//! apart. Seeds for tuning and seeds for judging are kept apart: [`TUNING`] and [`HELD_OUT`].

use std::{collections::BTreeMap, ops::Range};

use fairmesh_model::arith::{Generator, hash_text, mix_pair};

use crate::{
    chance::{exp, unit},
    scenario::{
        Action, Callers, Draw, Expect, Happening, Host, Neighbours, Network, PolicyUnderTest, RateAt,
        Requests, Scenario, Servers, Span, WarmUp,
    },
};

/// Fleets to choose constants by.
pub const TUNING: Range<u64> = 0..300;
/// Fleets to judge by; nobody may choose anything by them.
pub const HELD_OUT: Range<u64> = 1000..1100;

/// Requests a minute of all servers together, so that a fleet is simulated in seconds.
const MOST_REQUESTS: f64 = 5.4e6;
/// In how many callers' subsets each server lies at least, as far as there are callers (ServiceRouter §3.4.2).
const COVER: u32 = 20;

/// How hardware is mixed in a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mix {
    /// All machines are alike, but for drift.
    Uniform,
    /// Two or three kinds, each from 1 to 2 times as fast as the slowest.
    Mixed,
    /// The slowest and machines of twice their speed, half and half or so: what equal shares are worst for.
    Worst,
}

impl Mix {
    /// The mix of the fleet of this seed: a fifth of all are uniform, a fifth the worst.
    pub fn of(seed: u64) -> Self {
        match Generator::new(mix_pair(hash_text("mix"), seed)).below(5) {
            0 => Self::Uniform,
            1 => Self::Worst,
            _ => Self::Mixed,
        }
    }
}

/// The fleet of a seed, under the default policy.
pub fn fleet(seed: u64) -> Scenario {
    let mut dice = Dice(Generator::new(mix_pair(hash_text("fleet"), seed)));
    let servers = dice.spread(3.0, 3000.0) as u32;
    let callers = dice.spread(3.0, 3000.0) as u32;
    let cores = [1.0, 2.0, 4.0, 8.0][dice.0.below(4) as usize];
    let speeds = dice.speeds(Mix::of(seed));
    let groups = dice.split(servers, speeds.len());
    let drift = dice.part(0.0, 0.1);
    let neighbours = dice.neighbours();
    let capacity: f64 = groups.iter().zip(&speeds).map(|(&n, speed)| f64::from(n) * cores * speed).sum();
    let utilisation = dice.part(0.25, 0.65);
    let a_minute = dice.spread(1800.0, 20_000.0).min(MOST_REQUESTS / f64::from(servers)) * f64::from(servers);
    let cpu = Span::micros((utilisation * capacity * 60.0 / a_minute * 1e6).max(100.0) as u64);
    let requests = dice.requests(cpu);
    let callers = dice.callers(callers, a_minute / 60.0, &requests);
    let mut fleet = Scenario {
        name: format!("fleet-{seed}"),
        about: String::new(),
        seed: seed + 1,
        salt: 0,
        duration: Span::seconds(if a_minute > 1e6 { 120 } else { 180 }),
        warmup: Span::seconds(60),
        window: Span::seconds(60),
        policy: PolicyUnderTest::default(),
        hosts: hosts(&speeds),
        servers: (0..).zip(groups).map(|(i, n)| group(i, n, cores, drift, neighbours)).collect(),
        callers,
        network: Network::default(),
        events: Vec::new(),
        expect: Expect::default(),
    };
    fleet.policy.balancing.subset = Some(subset(&fleet));
    fleet
}

/// A fleet made smaller, so that it has this many requests a minute at most: fewer servers and callers, in proportion, of the
/// same rates, machines and requests. For sweeps that cannot afford the largest ones.
pub fn within(mut fleet: Scenario, requests_a_minute: f64) -> Scenario {
    let a_minute: f64 = fleet.callers.iter().map(|group| f64::from(group.count) * group.rate * 60.0).sum();
    let part = requests_a_minute / a_minute;
    if part >= 1.0 {
        return fleet;
    }
    let fewer = |count: u32| ((f64::from(count) * part).round() as u32).max(1);
    let before = capacity(&fleet);
    fleet.servers.iter_mut().for_each(|group| group.count = fewer(group.count));
    // Utilisation stays although counts are whole numbers.
    let part = capacity(&fleet) / before;
    for group in &mut fleet.callers {
        let all = f64::from(group.count) * group.rate * part;
        group.count = fewer(group.count);
        group.rate = all / f64::from(group.count);
    }
    fleet.policy.balancing.subset = Some(subset(&fleet));
    fleet
}

/// A fleet in which all servers are replaced by new processes, a fifteenth of them every six seconds, and a process pays
/// four times the usual cost at first.
pub fn deploying(mut fleet: Scenario) -> Scenario {
    let servers: u32 = fleet.servers.iter().map(|group| group.count).sum();
    for group in &mut fleet.servers {
        group.warm_up = Some(WarmUp { factor: 4.0, requests: 300 });
    }
    let batch = servers.div_ceil(15);
    let action = Action::Rollout { batch, every: Span::seconds(6), drain: Span::seconds(3) };
    fleet.events = vec![Happening { at: Span::seconds(75), to: None, count: None, action }];
    fleet.duration = Span::seconds(180);
    fleet.warmup = Span::seconds(30);
    fleet
}

/// Work that a fleet can do, in ordinary cores.
fn capacity(fleet: &Scenario) -> f64 {
    let speed = |host: &Option<String>| {
        host.as_ref().and_then(|host| fleet.hosts.get(host)).map_or(1.0, |host| host.speed)
    };
    fleet.servers.iter().map(|group| f64::from(group.count) * group.cores * speed(&group.host)).sum()
}

/// How many servers a caller keeps to, so that each lies in enough subsets; 0 is all.
fn subset(fleet: &Scenario) -> u32 {
    let servers: u32 = fleet.servers.iter().map(|group| group.count).sum();
    let callers: u32 = fleet.callers.iter().map(|group| group.count).sum();
    let wanted = (COVER * servers).div_ceil(callers).max(20);
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
        starts_in: Span::seconds(5),
        standby: false,
    }
}

struct Dice(Generator);

impl Dice {
    /// A number between the two, evenly.
    fn part(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * unit(&mut self.0)
    }

    /// A number between the two, its logarithm evenly.
    fn spread(&mut self, low: f64, high: f64) -> f64 {
        let part = unit(&mut self.0);
        low * exp(part * natural_log(high / low))
    }

    /// Whether something of this chance is so.
    fn is(&mut self, chance: f64) -> bool {
        unit(&mut self.0) < chance
    }

    fn speeds(&mut self, mix: Mix) -> Vec<f64> {
        match mix {
            Mix::Uniform => vec![1.0],
            Mix::Worst => vec![1.0, 2.0],
            Mix::Mixed if self.is(0.5) => vec![1.0, self.part(1.1, 2.0)],
            Mix::Mixed => vec![1.0, self.part(1.1, 1.5), self.part(1.5, 2.0)],
        }
    }

    /// Parts of a number, each at least a sixth of an even one, and 1.
    fn split(&mut self, whole: u32, parts: usize) -> Vec<u32> {
        let shares: Vec<f64> = (0..parts).map(|_| self.part(0.2, 1.0)).collect();
        let total: f64 = shares.iter().sum();
        let mut sizes: Vec<u32> =
            shares.iter().map(|share| ((f64::from(whole) * share / total) as u32).max(1)).collect();
        let given: u32 = sizes.iter().skip(1).sum();
        sizes[0] = whole.saturating_sub(given).max(1);
        sizes
    }

    fn neighbours(&mut self) -> Option<Neighbours> {
        self.is(0.3).then(|| Neighbours {
            share: self.part(0.05, 0.3),
            noisy: Span::seconds(5 + self.0.below(30)),
            quiet: Span::seconds(20 + self.0.below(100)),
        })
    }

    fn requests(&mut self, mean: Span) -> Vec<Requests> {
        let cpu = match self.0.below(4) {
            0 => Draw::Fixed(mean),
            1 => Draw::Exponential(mean),
            2 => Draw::Lognormal { mean, sigma: self.part(0.5, 1.5) },
            _ => {
                let usual = Span::micros(mean.nanos() / 2000);
                // 0.95 of a half and 0.05 of ten and a half make one.
                Draw::Bimodal { usual, rare: Span::micros(mean.nanos() / 2000 * 21), share: 0.05 }
            }
        };
        let wait = self.is(0.5).then(|| {
            let longest = (20e9 / mean.nanos() as f64).clamp(0.1, 20.0);
            Draw::Exponential(Span::micros((mean.nanos() as f64 * self.spread(0.05, longest) / 1e3) as u64))
        });
        vec![Requests { share: 1.0, cpu, wait, stream: false }]
    }

    fn callers(&mut self, count: u32, rate: f64, requests: &[Requests]) -> Vec<Callers> {
        let burst = if self.is(0.3) { self.part(1.5, 5.0) } else { 1.0 };
        let change = if self.is(0.3) { self.part(0.7, 1.2) } else { 1.0 };
        let rate_over_time = match change == 1.0 {
            true => Vec::new(),
            false => {
                let at = |seconds, times| RateAt { at: Span::seconds(seconds), times };
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
        let few = count / 5;
        if few == 0 || self.is(0.5) {
            return vec![callers("all", count, rate)];
        }
        // A fifth of the callers make more than half of the calls.
        let heavy = self.part(0.5, 0.8);
        vec![callers("heavy", few, rate * heavy), callers("light", count - few, rate * (1.0 - heavy))]
    }
}

/// A fleet whose callers are as far from its servers as makes a difference to questions for load (ServiceRouter §3.4.3): the round trip takes from
/// a five-hundredth of a request's time to twice that, within the bounds of real networks.
pub fn distant(mut fleet: Scenario) -> Scenario {
    let mut dice = Dice(Generator::new(mix_pair(hash_text("distance"), fleet.seed)));
    let requests = fleet.callers.iter().flat_map(|group| &group.requests);
    let time = |requests: &Requests| requests.cpu.mean() + requests.wait.map_or(0.0, |wait| wait.mean());
    let longest = requests.map(time).fold(0.0, f64::max);
    let round_trip = (longest * dice.spread(0.002, 2.0) / 1e3) as u64;
    fleet.network.within = Span::micros(round_trip.clamp(100, 300_000));
    fleet
}

/// By the integer logarithm, so that it is the same everywhere.
fn natural_log(x: f64) -> f64 {
    let scaled = fairmesh_model::arith::log2((x * 1e6) as u64) as f64 / (1_u64 << 32) as f64;
    let unit = fairmesh_model::arith::log2(1_000_000) as f64 / (1_u64 << 32) as f64;
    (scaled - unit) * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fleet_is_valid_and_fits_into_the_time_there_is() {
        for seed in TUNING.chain(HELD_OUT) {
            let fleet = fleet(seed);
            fleet.validate().unwrap();
            let rate: f64 = fleet.callers.iter().map(|group| f64::from(group.count) * group.rate).sum();
            assert!(rate * 60.0 <= MOST_REQUESTS * 1.01, "{seed}: {rate}");
        }
    }

    #[test]
    fn fleets_cover_the_range() {
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
    fn the_load_of_a_fleet_is_what_was_meant() {
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
    fn a_fleet_made_smaller_keeps_its_rates_and_utilisation() {
        for seed in TUNING {
            let (whole, part) = (fleet(seed), within(fleet(seed), 300_000.0));
            part.validate().unwrap();
            let of = |fleet: &Scenario| {
                let rate: f64 = fleet.callers.iter().map(|group| f64::from(group.count) * group.rate).sum();
                (rate * 60.0, load(fleet) / capacity(fleet))
            };
            let ((a_minute, was), (fewer, is)) = (of(&whole), of(&part));
            assert!((was - is).abs() < 1e-9, "{seed}: {was} {is}");
            if a_minute < 300_000.0 {
                assert_eq!(serde_json::to_value(&whole).unwrap(), serde_json::to_value(&part).unwrap());
            } else {
                assert!((200_000.0..420_000.0).contains(&fewer), "{seed}: {fewer}");
            }
        }
    }

    #[test]
    fn every_fleet_can_be_deployed() {
        TUNING.for_each(|seed| deploying(fleet(seed)).validate().unwrap());
    }

    #[test]
    fn distant_fleets_are_near_and_far_for_what_they_do() {
        let far = |seed| {
            let fleet = distant(fleet(seed));
            fleet.validate().unwrap();
            let requests = &fleet.callers[0].requests[0];
            let time = requests.cpu.mean() + requests.wait.map_or(0.0, |wait| wait.mean());
            fleet.network.within.nanos() as f64 / time
        };
        let near = TUNING.map(far).filter(|&ratio| ratio < 0.5).count();
        assert!((150..280).contains(&near), "{near} of 300 are near enough to be asked");
    }
}
