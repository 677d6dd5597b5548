//! A small world of regions on a line, whose servers report what a table would give them.

#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "what a test cannot do without has failed it, and not every test uses all of it"
)]

use std::time::Duration;

use fairmesh_model::{Region, Regions, Ring, RoundTrips};
use fairmesh_te::{
    CallerReport, LoadRing, Observation, Plan, PlanInput, PlannerState, RegionObservation, RingMatrix,
    RingsPolicy, ServerReport, Tables, WHOLE, plan,
};

/// Regions 20 ms apart on a line, with one unit of work per call.
#[derive(Clone, Debug)]
pub struct World {
    /// Rings and thresholds.
    pub policy: RingsPolicy,
    /// Who is how far away.
    pub rings: RingMatrix,
    /// The planner's.
    pub state: PlannerState,
    /// By region.
    pub power: Vec<f64>,
    /// By region, then class.
    pub demand: Vec<Vec<f64>>,
    /// The share of its calls that each region keeps.
    pub keep: Vec<f64>,
    /// The time of the next round.
    pub now_ms: u64,
}

impl World {
    /// Rings of 25 ms at 65 %, 50 ms at 75 % and all at 90 %; own region first, at 65 %.
    pub fn new(power: Vec<f64>, demand: Vec<Vec<f64>>) -> Self {
        let ring = |ms: u64, load| LoadRing { ring: Ring::Within(Duration::from_millis(ms)), load };
        let rings =
            vec![ring(5, 0.65), ring(25, 0.75), ring(50, 0.8), LoadRing { ring: Ring::Any, load: 0.9 }];
        let policy = RingsPolicy::new(rings, demand[0].len());
        let names: Vec<Region> = (0..power.len()).map(|n| Region::new(format!("r{n}")).unwrap()).collect();
        let mut trips = RoundTrips::default();
        for (a, from) in names.iter().enumerate() {
            for (b, to) in names.iter().enumerate().skip(a + 1) {
                trips.set(from.clone(), to.clone(), Duration::from_millis(20 * (b - a) as u64));
            }
        }
        let rings = RingMatrix::new(&policy, &names, &Regions::default(), &trips);
        let state = PlannerState::new(power.len(), policy.classes);
        let keep = vec![1.0; power.len()];
        Self { policy, rings, state, power, demand, keep, now_ms: 1_000_000 }
    }

    /// Calls per second that reach each region by tables, where regions without servers get none.
    pub fn arrivals(&self, tables: &Tables) -> Vec<f64> {
        let mut arrivals = vec![0.0; self.power.len()];
        for (source, demand) in self.demand.iter().enumerate() {
            for (class, rate) in demand.iter().enumerate() {
                for (to, share) in tables.of(source, class).shares.iter().enumerate() {
                    arrivals[to] += rate * f64::from(*share) / f64::from(WHOLE);
                }
            }
        }
        arrivals.iter().zip(&self.power).map(|(rate, power)| if *power > 0.0 { *rate } else { 0.0 }).collect()
    }

    /// True utilisation by region under tables.
    pub fn loads(&self, tables: &Tables) -> Vec<f64> {
        let load = |(rate, power): (f64, &f64)| if *power > 0.0 { rate / power } else { 0.0 };
        self.arrivals(tables).into_iter().zip(&self.power).map(load).collect()
    }

    /// What is observed while the tables of the state are in force.
    pub fn observation(&self) -> Observation {
        let arrivals = self.arrivals(self.state.tables());
        let regions = (0..self.power.len()).map(|at| RegionObservation {
            power: self.power[at],
            keep: self.keep[at],
            servers: Some(ServerReport {
                at_ms: self.now_ms,
                load: if self.power[at] > 0.0 { (arrivals[at] / self.power[at]).min(1.0) } else { 0.0 },
                received: arrivals[at],
                ..ServerReport::default()
            }),
            callers: Some(CallerReport {
                at_ms: self.now_ms,
                offered: self.demand[at].clone(),
                sent: self.sent(at),
                pinned: 0.0,
            }),
        });
        Observation { now_ms: self.now_ms, regions: regions.collect() }
    }

    fn sent(&self, source: usize) -> Vec<f64> {
        let share = |class: usize, to: usize| {
            f64::from(self.state.tables().of(source, class).shares[to]) / f64::from(WHOLE)
        };
        (0..self.power.len())
            .map(|to| {
                self.demand[source].iter().enumerate().map(|(class, rate)| rate * share(class, to)).sum()
            })
            .collect()
    }

    /// What the planner gets.
    pub fn input<'a>(&'a self, observation: &'a Observation) -> PlanInput<'a> {
        PlanInput { policy: &self.policy, rings: &self.rings, observation }
    }

    /// Plans from an observation, five seconds after the round before.
    pub fn plan(&mut self, observation: &Observation) -> Plan {
        let plan = plan(self.input(observation), &self.state);
        self.state = plan.state.clone();
        self.now_ms += 5000;
        plan
    }

    /// One round.
    pub fn round(&mut self) -> Plan {
        let observation = self.observation();
        self.plan(&observation)
    }
}

/// White noise.
#[derive(Clone, Debug)]
pub struct Noise(u64);

impl Noise {
    /// Noise of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from -1 to 1.
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    /// A number with a mean of 0 and a variance of 1: a sum of twelve, which is nearly normal.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() / 2.0
    }
}

/// The noise of a count of calls that arrive at random.
pub fn poisson(rate: f64, random: &mut Noise) -> f64 {
    rate + rate.sqrt() * random.normal()
}

/// What is observed with noise. Callers and servers count in other seconds, and the load is that of calls of different lengths.
pub fn noisy_observation(
    world: &World,
    noise: fn(f64, &mut Noise) -> f64,
    random: &mut Noise,
) -> Observation {
    let mut observation = world.observation();
    for region in &mut observation.regions {
        let callers = region.callers.as_mut().unwrap();
        callers.offered.iter_mut().for_each(|rate| *rate = noise(*rate, random).max(0.0));
        let servers = region.servers.as_mut().unwrap();
        let received = noise(servers.received, random).max(0.0);
        let work = 1.0 + random.normal() / received.max(1.0).sqrt();
        servers.load = (servers.load * work * received / servers.received.max(1.0)).clamp(0.0, 1.0);
        servers.received = received;
    }
    observation
}

/// A round of a second.
pub fn noisy_second(world: &mut World, noise: fn(f64, &mut Noise) -> f64, random: &mut Noise) -> Plan {
    // Counts of few calls differ so much now and then that a round is refused.
    let observation = noisy_observation(world, noise, random);
    let plan = world.plan(&observation);
    world.now_ms -= 4_000;
    plan
}

/// Rounds of a second until so many were planned; returns in how many of these tables changed. A refused round changes nothing,
/// which is no rest.
///
/// # Panics
/// If more than one in twenty is refused.
pub fn planned_seconds(
    world: &mut World,
    rounds: usize,
    noise: fn(f64, &mut Noise) -> f64,
    random: &mut Noise,
) -> usize {
    let (mut planned, mut refused, mut changed) = (0, Vec::new(), 0);
    while planned < rounds {
        let plan = noisy_second(world, noise, random);
        match plan.refusal {
            None => {
                planned += 1;
                changed += usize::from(!plan.shifts.is_empty());
            }
            Some(refusal) => refused.push(refusal),
        }
        assert!(refused.len() <= 1 + rounds / 20, "{refused:?} besides {planned} of {rounds} rounds");
    }
    changed
}
