//! From a scenario to a simulation that has not begun.

use std::collections::BTreeSet;

use fairmesh_balancer::poll::polling_config;
use fairmesh_model::{
    Invalid, Location, Region, RoundTrips,
    arith::{Generator, hash_text, mix_pair},
};

use super::{Act, Engine, Step, What, calls::sweep_every};
use crate::{
    caller::{Caller, Kind},
    chance::{exponential, unit},
    directory::{Directory, Knowledge, NewServer},
    flights::Flights,
    metrics::Metrics,
    queue::Queue,
    scenario::{Action, Happening, Scenario, Servers},
    server::Server,
};

/// After how long the registry finds out that a process has died, in nanoseconds.
const LEASE: u64 = 10_000_000_000;
/// What callers' clocks show when the simulation begins, in nanoseconds: enough to jump back.
const CLOCK: i64 = 3_600_000_000_000;
/// Events that one request makes, about.
const EVENTS_PER_REQUEST: f64 = 4.5;

/// Sets everything up.
pub(crate) fn build(scenario: &Scenario) -> Result<Engine, Invalid> {
    scenario.validate()?;
    let draft = Draft::new(scenario)?;
    let mut directory = Directory::new(scenario.policy.plan()?, scenario.network.round_trips()?)?;
    let servers = draft.servers(&mut directory)?;
    directory.publish();
    let kinds = draft.kinds();
    let callers = draft.callers(&kinds, &directory)?;
    let deadline = u64::try_from(directory.policy().timeout.as_nanos()).unwrap_or(u64::MAX);
    let attempts = directory.policy().retries.attempts as usize;
    let polled = polling_config(&directory.policy().balancing);
    let mut engine = Engine {
        now: 0,
        end: scenario.duration.nanos(),
        queue: Queue::new(draft.requests_per_second() * EVENTS_PER_REQUEST),
        flights: Flights::default(),
        metrics: Metrics::new(scenario, servers.len(), draft.server_groups()),
        servers,
        kinds: kinds.into(),
        callers,
        directory,
        ways: draft.ways(),
        steps: Vec::new(),
        deadline,
        attempts,
        polled,
        neighbours: draft.neighbours(),
        chance: Generator::new(mix_pair(scenario.seed, 1)),
    };
    engine.begin_calls();
    engine.begin_neighbours();
    for happening in &scenario.events {
        draft.plan(happening, &mut engine);
    }
    engine.schedule(1_000_000_000, What::Second, 0);
    engine.schedule(sweep_every(deadline), What::Sweep, 0);
    Ok(engine)
}

impl Engine {
    fn begin_calls(&mut self) {
        for number in 0..self.callers.len() {
            let caller = &mut self.callers[number];
            let kind = &self.kinds[caller.kind as usize];
            if let Some(at) = caller.next_call(kind, 0) {
                self.schedule(at, What::Call, number as u32);
            }
        }
    }

    fn begin_neighbours(&mut self) {
        for place in 0..self.servers.len() {
            if let Some(neighbours) = self.neighbours[place] {
                let quiet = exponential(&mut self.chance) * neighbours.quiet.nanos() as f64;
                self.schedule(quiet as u64, What::Neighbours, place as u32);
            }
        }
    }

    fn step(&mut self, at: u64, action: Act, to: &[u32]) -> u32 {
        self.steps.push(Step { action, to: to.to_vec() });
        let number = self.steps.len() as u32 - 1;
        self.schedule(at, What::Happen, number);
        number
    }
}

/// What is read off a scenario while a simulation is set up.
struct Draft<'a> {
    scenario: &'a Scenario,
    regions: Vec<Region>,
    trips: RoundTrips,
}

impl<'a> Draft<'a> {
    fn new(scenario: &'a Scenario) -> Result<Self, Invalid> {
        let servers = scenario.servers.iter().map(|servers| &servers.region);
        let names: BTreeSet<&String> = servers.chain(scenario.callers.iter().map(|c| &c.region)).collect();
        let regions = names.into_iter().map(Region::new).collect::<Result<_, _>>()?;
        Ok(Self { scenario, regions, trips: scenario.network.round_trips()? })
    }

    fn region(&self, name: &str) -> (u16, Region) {
        // Every name was collected.
        let place = self.regions.iter().position(|region| region.as_str() == name).unwrap_or_default();
        (place as u16, self.regions[place].clone())
    }

    fn ways(&self) -> Vec<Vec<u64>> {
        let within = self.scenario.network.within.nanos() / 2;
        let way = |from: &Region, to: &Region| {
            let trip = self.trips.get(from, to).map_or(0, |trip| trip.as_nanos() as u64 / 2);
            trip.max(within)
        };
        self.regions.iter().map(|from| self.regions.iter().map(|to| way(from, to)).collect()).collect()
    }

    fn speed(&self, servers: &Servers) -> f64 {
        let host = servers.host.as_ref().and_then(|host| self.scenario.hosts.get(host));
        host.map_or(1.0, |host| host.speed)
    }

    /// What the mesh is told of a server's power: relative to the smallest servers, or what the host type says.
    fn weight(&self, servers: &Servers) -> u32 {
        let host = servers.host.as_ref().and_then(|host| self.scenario.hosts.get(host));
        if let Some(weight) = host.and_then(|host| host.weight) {
            return weight;
        }
        let least = self.scenario.servers.iter().map(|servers| servers.cores).fold(f64::MAX, f64::min);
        (1000.0 * self.speed(servers) * servers.cores / least).round().clamp(1.0, 100_000.0) as u32
    }

    fn servers(&self, directory: &mut Directory) -> Result<Vec<Server>, Invalid> {
        let mut random = Generator::new(mix_pair(self.scenario.seed, 2));
        let mut all = Vec::new();
        for group in &self.scenario.servers {
            let (region, location) = self.region(&group.region);
            let new = NewServer {
                group: &group.name,
                region,
                location,
                host: group.host.as_deref(),
                weight: self.weight(group),
                listed: !group.standby,
            };
            for _ in 0..group.count {
                directory.add(&new)?;
                let drift = group.drift.map_or(1.0, |[low, high]| low + (high - low) * unit(&mut random));
                let mut server = Server::new(group.cores, self.speed(group) * drift, region)
                    .with(group.limit, group.warm_up);
                server.up = !group.standby;
                all.push(server);
            }
        }
        Ok(all)
    }

    fn neighbours(&self) -> Vec<Option<crate::scenario::Neighbours>> {
        let groups = self.scenario.servers.iter();
        groups.flat_map(|group| std::iter::repeat_n(group.neighbours, group.count as usize)).collect()
    }

    /// The servers of each group, by name.
    fn server_groups(&self) -> Vec<(String, Vec<u32>)> {
        numbered(self.scenario.servers.iter().map(|group| (&group.name, group.count)))
    }

    fn caller_groups(&self) -> Vec<(String, Vec<u32>)> {
        numbered(self.scenario.callers.iter().map(|group| (&group.name, group.count)))
    }

    fn kinds(&self) -> Vec<Kind> {
        let duration = self.scenario.duration.nanos();
        let kind = |callers| {
            let callers: &crate::scenario::Callers = callers;
            let (region, location) = self.region(&callers.region);
            Kind::new(callers, Location::in_region(location), region, duration)
        };
        self.scenario.callers.iter().map(kind).collect()
    }

    fn callers(&self, kinds: &[Kind], directory: &Directory) -> Result<Vec<Caller>, Invalid> {
        let seed = self.scenario.seed;
        let [from, to] = self.scenario.network.propagation.map(|span| span.nanos());
        let mut random = Generator::new(mix_pair(seed, 3));
        let mut all = Vec::new();
        for ((place, group), kind) in (0..).zip(&self.scenario.callers).zip(kinds) {
            for i in 0..group.count {
                let client = mix_pair(hash_text(&format!("{}-{i}", group.name)), seed);
                let known = Knowledge::first(directory, &kind.location, client);
                let mut caller = Caller::new(place, client, known, (mix_pair(client, 4), self.scenario.salt));
                caller.clock = CLOCK;
                caller.hears_after = from + random.below(to - from + 1);
                all.push(caller);
            }
        }
        Ok(all)
    }

    fn requests_per_second(&self) -> f64 {
        self.scenario.callers.iter().map(|group| f64::from(group.count) * group.rate).sum()
    }

    /// Schedules what a happening does, group by group, since groups differ in how long they take to start.
    fn plan(&self, happening: &Happening, engine: &mut Engine) {
        let callers = happening.action.is_about_callers();
        let groups = if callers { self.caller_groups() } else { self.server_groups() };
        let mut left = happening.count.unwrap_or(u32::MAX) as usize;
        for (place, (name, mut members)) in groups.into_iter().enumerate() {
            if happening.to.as_ref().is_some_and(|to| *to != name) {
                continue;
            }
            members.truncate(left);
            left -= members.len();
            let starts_in = match callers {
                true => 0,
                false => self.scenario.servers[place].starts_in.nanos(),
            };
            plan_for(&happening.action, happening.at.nanos(), &members, starts_in, engine);
        }
    }
}

fn plan_for(action: &Action, at: u64, to: &[u32], starts_in: u64, engine: &mut Engine) {
    match *action {
        Action::Start => drop(engine.step(at + starts_in, Act::Ready { renewed: true }, to)),
        Action::Stop { drain } => {
            engine.step(at, Act::Drain, to);
            engine.step(at + drain.nanos(), Act::Halt, to);
        }
        Action::Rollout { batch, every, drain } => {
            for (i, batch) in (0..).zip(to.chunks(batch as usize)) {
                let at = at + i * every.nanos();
                engine.step(at, Act::Drain, batch);
                engine.step(at + drain.nanos(), Act::Halt, batch);
                engine.step(at + drain.nanos() + starts_in, Act::Ready { renewed: true }, batch);
            }
        }
        Action::Crash { back, times, lives } => {
            let mut at = at;
            for _ in 0..times {
                engine.step(at, Act::Die, to);
                engine.step(at + LEASE, Act::Expire, to);
                let Some(back) = back else { return };
                let ready = at + back.nanos() + starts_in;
                engine.step(ready, Act::Ready { renewed: false }, to);
                at = ready + lives.nanos();
            }
        }
        ref lasting => {
            let number = engine.step(at, Act::Written(lasting.clone()), to);
            if let Some(lasts) = lasting.lasts() {
                engine.schedule(at + lasts.nanos(), What::End, number);
            }
        }
    }
}

fn numbered<'a>(groups: impl Iterator<Item = (&'a String, u32)>) -> Vec<(String, Vec<u32>)> {
    let mut first = 0;
    let number = |(name, count): (&String, u32)| {
        let members = (first..first + count).collect();
        first += count;
        (name.clone(), members)
    };
    groups.map(number).collect()
}
