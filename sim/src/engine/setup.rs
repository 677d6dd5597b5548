//! Builds a simulation from a scenario.

use std::{collections::BTreeSet, time::Duration};

use fairmesh_balancer::load_poll::polling_config;
use fairmesh_model::{
    Invalid, Location, Policy, Region, RoundTrips, ServiceName,
    arith::{Generator, hash_text, mix_pair},
};

use super::{Engine, EventKind, Step, StepAction, calls::sweep_interval};
use crate::{
    application::{self, ApplicationRun, Planner},
    caller::{Caller, CallerGroup},
    event_queue::EventQueue,
    in_flight::InFlightRequests,
    metrics::Metrics,
    registry::{DiscoveredService, NewServer, Registry},
    sampling::{exponential, unit},
    scenario::{Action, Scenario, ScenarioEvent, Servers},
    server::Server,
    traffic::Traffic,
};

/// Time until the registry detects a crashed process, in nanoseconds.
const LEASE_DURATION: u64 = 10_000_000_000;
/// Initial time of callers' clocks in nanoseconds: large enough to jump back.
pub(super) const INITIAL_CLOCK: i64 = 3_600_000_000_000;
/// Deadline of a call if the policy under test has no timeout.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(15);
/// Events per request, approximately.
const EVENTS_PER_REQUEST: f64 = 4.5;

/// Builds the simulation.
pub(crate) fn build(scenario: &Scenario) -> Result<Engine, Invalid> {
    scenario.validate()?;
    let draft = Draft::new(scenario, Placement::fleet(scenario)?)?;
    let mut policy = scenario.policy.validate()?;
    let traffic = match &scenario.traffic {
        Some(spec) => {
            policy.locality.rings = spec.router_rings()?;
            Some(Box::new(Traffic::new(spec, (&draft.place.regions, &draft.trips), &policy)?))
        }
        None => None,
    };
    let mut engine = draft.engine(&policy)?;
    engine.traffic = traffic;
    draft.begin(&mut engine);
    Ok(engine)
}

/// Builds the simulation of an application, whose pools are the servers of a fleet and whose clients are its callers.
pub(crate) fn build_application(
    application: &application::Scenario,
    planner: Planner,
) -> Result<Engine, Invalid> {
    let fleet = application.fleet();
    fleet.validate()?;
    let draft = Draft::new(&fleet, application.placement()?)?;
    let mut policy = fleet.policy.validate()?;
    policy.locality.rings = application.router_rings()?;
    let mut engine = draft.engine(&policy)?;
    let mut run = ApplicationRun::new(application, planner, &draft.place)?;
    engine.add_inner_callers(&mut run, application);
    engine.application = Some(Box::new(run));
    draft.begin(&mut engine);
    Ok(engine)
}

impl Engine {
    fn begin_calls(&mut self) {
        for id in 0..self.callers.len() {
            let caller = &mut self.callers[id];
            let group = &self.caller_groups[caller.group as usize];
            if let Some(at) = caller.next_call(group, 0) {
                self.schedule(at, EventKind::Call, id as u32);
            }
        }
    }

    fn begin_neighbours(&mut self) {
        for server_id in 0..self.servers.len() {
            if let Some(neighbours) = self.neighbours[server_id] {
                let quiet = exponential(&mut self.random) * neighbours.quiet.nanos() as f64;
                self.schedule(quiet as u64, EventKind::Neighbours, server_id as u32);
            }
        }
    }

    fn add_step(&mut self, at: u64, action: StepAction, to: &[u32]) -> u32 {
        self.steps.push(Step { action, to: to.to_vec() });
        let id = self.steps.len() as u32 - 1;
        self.schedule(at, EventKind::StepBegins, id);
        id
    }
}

/// The service of each group of servers, and the service called by each group of callers.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) services: Vec<ServiceName>,
    pub(crate) regions: Vec<Region>,
    /// Position of the service, by group of servers.
    pub(crate) of_servers: Vec<u16>,
    /// Position of the called service, by group of callers.
    pub(crate) of_callers: Vec<u16>,
}

impl Placement {
    /// A single service, and the regions in the order of their names.
    fn fleet(scenario: &Scenario) -> Result<Self, Invalid> {
        let servers = scenario.servers.iter().map(|servers| &servers.region);
        let names: BTreeSet<&String> = servers.chain(scenario.callers.iter().map(|c| &c.region)).collect();
        Ok(Self {
            services: vec![ServiceName::new(crate::SERVICE)?],
            regions: names.into_iter().map(Region::new).collect::<Result<_, _>>()?,
            of_servers: vec![0; scenario.servers.len()],
            of_callers: vec![0; scenario.callers.len()],
        })
    }
}

/// Data derived from a scenario during setup.
struct Draft<'a> {
    scenario: &'a Scenario,
    place: Placement,
    trips: RoundTrips,
}

impl<'a> Draft<'a> {
    fn new(scenario: &'a Scenario, place: Placement) -> Result<Self, Invalid> {
        Ok(Self { scenario, place, trips: scenario.network.round_trips()? })
    }

    /// The engine before its first event.
    fn engine(&self, policy: &Policy) -> Result<Engine, Invalid> {
        let scenario = self.scenario;
        let mut registry = Registry::new(&self.place.services, policy.clone(), self.trips.clone());
        let servers = self.servers(&mut registry)?;
        registry.publish();
        let caller_groups = self.caller_groups();
        let callers = self.callers(&caller_groups, &registry);
        let deadline = policy.timeouts.total.unwrap_or(DEFAULT_TIMEOUT);
        Ok(Engine {
            now: 0,
            end: scenario.duration.nanos(),
            queue: EventQueue::new(self.requests_per_second() * EVENTS_PER_REQUEST),
            in_flight: InFlightRequests::default(),
            metrics: Metrics::new(scenario, servers.len(), self.servers_by_group()),
            servers,
            caller_groups: caller_groups.into(),
            callers,
            registry,
            one_way_delays: self.one_way_delays(),
            regions: self.place.regions.clone(),
            steps: Vec::new(),
            deadline: u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX),
            attempts: policy.retries.attempts as usize,
            polling: polling_config(&policy.balancing),
            neighbours: self.neighbours(),
            traffic: None,
            application: None,
            random: Generator::new(mix_pair(scenario.seed, 1)),
        })
    }

    /// Schedules the first events.
    fn begin(&self, engine: &mut Engine) {
        engine.begin_calls();
        engine.begin_neighbours();
        engine.begin_traffic();
        engine.begin_application();
        for event in &self.scenario.events {
            self.schedule_event(event, engine);
        }
        engine.schedule(1_000_000_000, EventKind::Second, 0);
        engine.schedule(sweep_interval(engine.deadline), EventKind::DeadlineSweep, 0);
    }

    fn region(&self, name: &str) -> (u16, Region) {
        // All names were collected above.
        let regions = &self.place.regions;
        let position = regions.iter().position(|region| region.as_str() == name).unwrap_or_default();
        (position as u16, regions[position].clone())
    }

    fn one_way_delays(&self) -> Vec<Vec<u64>> {
        let within = self.scenario.network.within.nanos() / 2;
        let delay = |from: &Region, to: &Region| {
            let trip = self.trips.get(from, to).map_or(0, |trip| trip.as_nanos() as u64 / 2);
            trip.max(within)
        };
        let regions = &self.place.regions;
        regions.iter().map(|from| regions.iter().map(|to| delay(from, to)).collect()).collect()
    }

    fn speed(&self, servers: &Servers) -> f64 {
        let host = servers.host.as_ref().and_then(|host| self.scenario.hosts.get(host));
        host.map_or(1.0, |host| host.speed)
    }

    /// The weight of a server known to the mesh: relative to the smallest servers, or that of the host type.
    fn weight(&self, servers: &Servers) -> u32 {
        let host = servers.host.as_ref().and_then(|host| self.scenario.hosts.get(host));
        if let Some(weight) = host.and_then(|host| host.weight) {
            return weight;
        }
        let least = self.scenario.servers.iter().map(|servers| servers.cores).fold(f64::MAX, f64::min);
        (1000.0 * self.speed(servers) * servers.cores / least).round().clamp(1.0, 100_000.0) as u32
    }

    fn servers(&self, registry: &mut Registry) -> Result<Vec<Server>, Invalid> {
        let mut random = Generator::new(mix_pair(self.scenario.seed, 2));
        let mut all = Vec::new();
        for (group, service) in self.scenario.servers.iter().zip(&self.place.of_servers) {
            let (region, location) = self.region(&group.region);
            let new = NewServer {
                group: &group.name,
                service: *service,
                region,
                location,
                host: group.host.as_deref(),
                weight: self.weight(group),
                listed: !group.standby,
            };
            for _ in 0..group.count {
                registry.add(&new)?;
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
    fn servers_by_group(&self) -> Vec<(String, Vec<u32>)> {
        numbered(self.scenario.servers.iter().map(|group| (&group.name, group.count)))
    }

    fn callers_by_group(&self) -> Vec<(String, Vec<u32>)> {
        numbered(self.scenario.callers.iter().map(|group| (&group.name, group.count)))
    }

    fn caller_groups(&self) -> Vec<CallerGroup> {
        let duration = self.scenario.duration.nanos();
        let group = |callers| {
            let callers: &crate::scenario::Callers = callers;
            let (region, location) = self.region(&callers.region);
            CallerGroup::new(callers, Location::in_region(location), region, duration)
        };
        self.scenario.callers.iter().map(group).collect()
    }

    fn callers(&self, caller_groups: &[CallerGroup], registry: &Registry) -> Vec<Caller> {
        let seed = self.scenario.seed;
        let [from, to] = self.scenario.network.propagation.map(|time| time.nanos());
        let mut random = Generator::new(mix_pair(seed, 3));
        let mut all = Vec::new();
        for ((number, callers), group) in (0..).zip(&self.scenario.callers).zip(caller_groups) {
            let called = self.place.of_callers[usize::from(number)];
            for i in 0..callers.count {
                let client = mix_pair(hash_text(&format!("{}-{i}", callers.name)), seed);
                let service = DiscoveredService::subscribe(registry, called, &group.location, client);
                let mut caller =
                    Caller::new(number, client, service, (mix_pair(client, 4), self.scenario.salt));
                caller.clock_offset = INITIAL_CLOCK;
                caller.propagation_delay = from + random.below(to - from + 1);
                all.push(caller);
            }
        }
        all
    }

    fn requests_per_second(&self) -> f64 {
        self.scenario.callers.iter().map(|group| f64::from(group.count) * group.rate).sum()
    }

    /// Schedules the steps of a scenario event, group by group, because start-up times differ by group.
    fn schedule_event(&self, event: &ScenarioEvent, engine: &mut Engine) {
        let callers = event.action.is_about_callers();
        let groups = if callers { self.callers_by_group() } else { self.servers_by_group() };
        let mut left = event.count.unwrap_or(u32::MAX) as usize;
        for (position, (name, mut members)) in groups.into_iter().enumerate() {
            if event.to.as_ref().is_some_and(|to| *to != name) {
                continue;
            }
            members.truncate(left);
            left -= members.len();
            let starts_in = match callers {
                true => 0,
                false => self.scenario.servers[position].starts_in.nanos(),
            };
            schedule_action(&event.action, event.at.nanos(), &members, starts_in, engine);
        }
    }
}

fn schedule_action(action: &Action, at: u64, to: &[u32], starts_in: u64, engine: &mut Engine) {
    match *action {
        Action::Start => {
            engine.add_step(at + starts_in, StepAction::Ready { as_new_instances: true }, to);
        }
        Action::Stop { drain } => {
            engine.add_step(at, StepAction::Drain, to);
            engine.add_step(at + drain.nanos(), StepAction::Terminate, to);
        }
        Action::Rollout { batch, every, drain } => {
            for (i, batch) in (0..).zip(to.chunks(batch as usize)) {
                let at = at + i * every.nanos();
                engine.add_step(at, StepAction::Drain, batch);
                engine.add_step(at + drain.nanos(), StepAction::Terminate, batch);
                engine.add_step(
                    at + drain.nanos() + starts_in,
                    StepAction::Ready { as_new_instances: true },
                    batch,
                );
            }
        }
        Action::Crash { back, times, lives } => {
            let mut at = at;
            for _ in 0..times {
                engine.add_step(at, StepAction::Crash, to);
                engine.add_step(at + LEASE_DURATION, StepAction::Expire, to);
                let Some(back) = back else { return };
                let ready = at + back.nanos() + starts_in;
                engine.add_step(ready, StepAction::Ready { as_new_instances: false }, to);
                at = ready + lives.nanos();
            }
        }
        ref action_with_duration => {
            let id = engine.add_step(at, StepAction::Apply(action_with_duration.clone()), to);
            if let Some(duration) = action_with_duration.duration() {
                engine.schedule(at + duration.nanos(), EventKind::StepEnds, id);
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
