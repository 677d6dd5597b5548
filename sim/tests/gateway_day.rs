//! Days of a gateway, with labels: which alerts are taken for what, and what scattering services by their peaks is worth.
//!
//! Nothing was chosen with the seeds of these tests; the rules were looked at with seeds up to 1,011. `GATEWAY_DAYS=100` runs that many days.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates are small and not negative"
)]
#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    f64::consts::TAU,
    time::Duration,
};

use fairmesh_backend_loads::{ALERT_LEVEL, Cause, LoadBoard, Report, ServiceCounts};
use fairmesh_model::{Label, ServiceName, Zone, arith::Generator};
use fairmesh_placement::{Backend, DayLoads, MIN_BACKENDS, PlacedService, PlanInput, plan, scatter};

/// The first seed that was not looked at before.
const HELD_OUT: u64 = 5_000;
const DAY_S: u64 = 86_400;
/// Time between reports. Replicas of a large fleet report that often.
const STEP_S: u64 = 10;
/// Cores of a backend, and the cost of a request and of a connection without requests.
const CORES: f64 = 2.0;
const REQUEST: f64 = 0.001;
const CONNECTION: f64 = 0.002;
const BACKENDS: usize = 4;
const SERVICES: usize = 6;

/// Number of days: those of the variable, or a few.
fn days(few: u64) -> u64 {
    env::var("GATEWAY_DAYS").ok().and_then(|days| days.parse().ok()).unwrap_or(few)
}

/// A number from 0 to 1.
fn unit(random: &mut Generator) -> f64 {
    random.below(1 << 20) as f64 / f64::from(1 << 20)
}

fn between(random: &mut Generator, least: f64, most: f64) -> f64 {
    least + (most - least) * unit(random)
}

/// What happens to one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Connections without requests.
    Attack,
    /// More calls, with or without keep-alive.
    Growth,
    /// More CPU a request.
    Costlier,
    /// Callers connect anew, once.
    Reconnects,
}

#[derive(Clone, Debug)]
struct Event {
    label: Kind,
    service: usize,
    from_s: u64,
    lasts_s: u64,
    /// Time until it is in full force.
    ramp_s: u64,
    /// CPU that it adds to each of its backends, as a share of the limit.
    height: f64,
    /// New connections per request.
    connects: f64,
}

impl Event {
    /// How far it is in force, from 0 to 1.
    fn force(&self, now_s: u64) -> f64 {
        match now_s.checked_sub(self.from_s) {
            Some(since) if since < self.lasts_s => ((since + STEP_S) as f64 / self.ramp_s as f64).min(1.0),
            _ => 0.0,
        }
    }
}

/// A day: services with daily curves, and an event each half hour.
struct Day {
    random: Generator,
    /// Requests a second at noon of each service, its hour of most calls, and the connections per request.
    services: Vec<(f64, f64, f64)>,
    on: Vec<BTreeSet<usize>>,
    events: Vec<Event>,
}

impl Day {
    fn new(seed: u64) -> Self {
        let mut random = Generator::new(seed);
        let services = (0..SERVICES)
            .map(|_| {
                let rate = between(&mut random, 60.0, 260.0);
                let keeps = unit(&mut random) < 0.7;
                (rate, between(&mut random, 0.0, 24.0), if keeps { 0.02 } else { 1.0 })
            })
            .collect();
        // Any two backends, no two services the same.
        let pairs = [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]];
        let on = pairs.map(BTreeSet::from).to_vec();
        let events = (1..47).map(|half_hour| Self::event(&mut random, half_hour * 1_800)).collect();
        Self { random, services, on, events }
    }

    fn event(random: &mut Generator, from_s: u64) -> Event {
        let label = match random.below(10) {
            0..=2 => Kind::Attack,
            3..=6 => Kind::Growth,
            7 | 8 => Kind::Costlier,
            _ => Kind::Reconnects,
        };
        let (ramp_s, lasts_s) = match label {
            Kind::Growth => (10 + random.below(300), 900),
            Kind::Reconnects => (10, 20),
            Kind::Attack | Kind::Costlier => (10 + random.below(120), 900),
        };
        Event {
            label,
            service: random.below(SERVICES as u64) as usize,
            from_s,
            lasts_s,
            ramp_s,
            height: between(random, 0.5, 1.2),
            connects: if unit(random) < 0.5 { 0.0 } else { 1.0 },
        }
    }

    /// Requests, connections, and the cost of a request of a service at one of its backends.
    fn calls(&mut self, service: usize, now_s: u64) -> (f64, f64, f64) {
        let (rate, peak, connects) = self.services[service];
        let hours = now_s as f64 / 3_600.0;
        let daily = 1.0 + 0.5 * ((hours - peak) * TAU / 24.0).cos();
        let mut requests = rate * daily * between(&mut self.random, 0.9, 1.1);
        let mut connections = requests * connects * between(&mut self.random, 0.8, 1.2);
        let mut cost = REQUEST;
        for event in self.events.iter().filter(|event| event.service == service) {
            let cores = event.height * event.force(now_s) * CORES;
            match event.label {
                Kind::Attack => connections += cores / CONNECTION,
                Kind::Growth => {
                    requests += cores / REQUEST;
                    connections += cores / REQUEST * event.connects.max(connects);
                }
                Kind::Costlier => cost += cores / requests,
                Kind::Reconnects if event.force(now_s) > 0.0 => connections += 200.0,
                Kind::Reconnects => {}
            }
        }
        (requests, connections, cost)
    }

    /// The reports of all backends at a time, and whether each is overloaded.
    fn reports(&mut self, now_s: u64) -> Vec<(Report, bool)> {
        let calls: Vec<_> = (0..SERVICES).map(|service| self.calls(service, now_s)).collect();
        (0..BACKENDS).map(|backend| self.report(backend, &calls)).collect()
    }

    fn report(&self, backend: usize, calls: &[(f64, f64, f64)]) -> (Report, bool) {
        let here = || calls.iter().enumerate().filter(|(service, _)| self.on[*service].contains(&backend));
        // A request that comes on a connection of its own costs what it costs.
        let idle = |requests: f64, connections: f64| (connections - requests).max(0.0);
        let asked: f64 = here()
            .map(|(_, (requests, connections, cost))| {
                requests * cost + idle(*requests, *connections) * CONNECTION
            })
            .sum();
        // An overloaded backend serves what it can.
        let served = (CORES / asked).min(1.0);
        let count = |rate: f64| (rate * served * STEP_S as f64) as u64;
        let services = here().map(|(service, (requests, connections, _))| {
            let counts =
                ServiceCounts { requests: count(*requests), errors: 0, connections: count(*connections) };
            (name(service), counts)
        });
        let services: BTreeMap<_, _> = services.collect();
        let sum = |of: fn(&ServiceCounts) -> u64| services.values().map(of).sum::<u64>();
        let connections = sum(|one| one.connections);
        let report = Report {
            entry: None,
            address: ([10, 0, 0, 1], backend as u16 + 1).into(),
            backend: Some(Label::new(format!("gw-{backend}")).unwrap()),
            span: Duration::from_secs(STEP_S),
            cpu: Duration::from_secs_f64(asked.min(CORES) * STEP_S as f64),
            limit_millicores: Some((CORES * 1e3) as u32),
            memory: 1,
            open: 1,
            accepted: connections,
            all: ServiceCounts { requests: sum(|one| one.requests), errors: 0, connections },
            services,
            is_leaving: false,
            is_first: false,
        };
        (report, asked >= ALERT_LEVEL * CORES)
    }
}

fn name(service: usize) -> ServiceName {
    ServiceName::new(format!("t{}/s{service}", service % 3)).unwrap()
}

/// What became of the events that overloaded a backend of their service.
#[derive(Debug, Default)]
struct Outcome {
    attacks: usize,
    missed: Vec<Event>,
    growths: usize,
    taken_for_attack: Vec<Event>,
    /// Growths whose service was named as the cause.
    named: usize,
    /// Costlier requests and reconnects, and how many of them were taken for an attack.
    others: usize,
    false_attacks: usize,
}

/// Lets the day pass, and compares the causes with the labels.
fn judge(seed: u64, outcome: &mut Outcome) {
    let mut day = Day::new(seed);
    let (mut board, events) = (LoadBoard::default(), day.events.clone());
    let mut named = vec![BTreeSet::new(); events.len()];
    let mut overloads = vec![0; events.len()];
    for now_s in (0..DAY_S).step_by(STEP_S as usize) {
        let mut is_overloaded = false;
        for (report, overloaded) in day.reports(now_s) {
            is_overloaded |= overloaded;
            board.exchange(report, now_s * 1_000);
        }
        board.review(now_s * 1_000);
        let Some(at) = events.iter().position(|event| event.force(now_s) > 0.0) else { continue };
        overloads[at] += u64::from(is_overloaded);
        named[at].extend(board.alerts().values().map(|alert| match &alert.cause {
            Cause::Connections(service) => (Kind::Attack, service.clone()),
            Cause::Growth(service) => (Kind::Growth, Some(service.clone())),
            Cause::CostlierRequests => (Kind::Costlier, None),
            Cause::Undetermined => (Kind::Reconnects, None),
        }));
    }
    for ((event, named), overloads) in events.into_iter().zip(named).zip(overloads) {
        // One that overloads a backend now and then, minutes after it began, has become usual before the alert.
        if overloads * STEP_S * 2 < event.lasts_s {
            continue;
        }
        let is_taken_for = |label| named.iter().any(|(cause, _)| *cause == label);
        let is_named = named.contains(&(event.label, Some(name(event.service))));
        match event.label {
            Kind::Attack => {
                outcome.attacks += 1;
                outcome.missed.extend((!is_named).then_some(event));
            }
            Kind::Growth => {
                outcome.growths += 1;
                outcome.named += usize::from(is_named);
                outcome.taken_for_attack.extend(is_taken_for(Kind::Attack).then_some(event));
            }
            Kind::Costlier | Kind::Reconnects => {
                outcome.others += 1;
                outcome.false_attacks += usize::from(is_taken_for(Kind::Attack));
            }
        }
    }
}

#[test]
fn no_attack_is_missed_and_little_growth_is_taken_for_one() {
    let mut outcome = Outcome::default();
    (0..days(3)).for_each(|day| judge(HELD_OUT + day, &mut outcome));
    let Outcome { attacks, missed, growths, taken_for_attack, named, others, false_attacks } = outcome;
    println!(
        "{attacks} attacks, {} missed; {growths} times growth, {named} named, {} taken for an attack; {false_attacks} of {others} others taken for one",
        missed.len(),
        taken_for_attack.len()
    );
    assert!(attacks >= 10 && growths >= 10 && others >= 10, "{attacks} {growths} {others}");
    assert!(missed.is_empty(), "{missed:?}");
    assert!(taken_for_attack.len() * 20 <= growths, "{taken_for_attack:?}");
    assert!(named * 10 >= growths * 9, "{named} of {growths}");
    assert!(false_attacks * 20 <= others, "{false_attacks} of {others}");
}

/// Half hours of a day.
const SLOTS: usize = 48;

/// Services with peaks in one of four hours, on backends by shuffle sharding.
fn fleet(seed: u64) -> (Vec<Backend>, Vec<PlacedService>, BTreeMap<ServiceName, Vec<f64>>) {
    let mut random = Generator::new(seed);
    let backend = |number: usize| Backend {
        name: Label::new(format!("gw-{number}")).unwrap(),
        zone: Zone::new(if number < 16 { "a" } else { "b" }).unwrap(),
        capacity: 100,
        is_open: true,
        is_sandbox: false,
        used_permille: Some(100),
    };
    let backends: Vec<Backend> = (0..24).map(backend).collect();
    let (mut services, mut loads) = (Vec::new(), BTreeMap::new());
    for number in 0..96 {
        let name = ServiceName::new(format!("t{}/s{number}", number % 7)).unwrap();
        let hour = [8.0, 13.0, 19.0, 2.0][random.below(4) as usize] + between(&mut random, -1.0, 1.0);
        // A few services have most of the calls.
        let (height, width) = (10.0 / between(&mut random, 0.05, 1.0), between(&mut random, 1.0, 2.5));
        let load = (0..SLOTS).map(|slot| {
            let apart = (slot as f64 / 2.0 - hour).rem_euclid(24.0);
            let apart = apart.min(24.0 - apart);
            height * (0.1 + (-apart * apart / (2.0 * width * width)).exp())
        });
        loads.insert(name.clone(), load.collect());
        services.push(PlacedService {
            name,
            home: Zone::new("a").unwrap(),
            count: MIN_BACKENDS,
            added: 0,
            present: BTreeSet::new(),
            is_pinned: false,
            is_sandboxed: false,
            given_back: 0,
        });
    }
    let quotas = BTreeMap::new();
    let made =
        plan(PlanInput { backends: &backends, services: &services, is_shared: false, quotas: &quotas, seed });
    for service in &mut services {
        service.present = made.changes[&service.name].clone();
    }
    (backends, services, loads)
}

/// The highest load of the busiest backend at home.
fn peak(services: &[PlacedService], loads: &BTreeMap<ServiceName, Vec<f64>>) -> f64 {
    let mut all = BTreeMap::<&Label, [f64; SLOTS]>::new();
    for service in services {
        let number = |name: &Label| name.as_str()[3..].parse::<usize>().unwrap();
        let home: Vec<&Label> = service.present.iter().filter(|name| number(name) < 16).collect();
        for name in &home {
            let load = all.entry(name).or_insert([0.0; SLOTS]);
            load.iter_mut().zip(&loads[&service.name]).for_each(|(sum, one)| *sum += one / home.len() as f64);
        }
    }
    all.values().flatten().copied().fold(0.0, f64::max)
}

#[test]
fn scattered_services_have_peaks_lower_by_a_quarter() {
    let (mut before, mut after, mut moves) = (0.0, 0.0, 0);
    let fleets = days(3).min(30);
    for seed in HELD_OUT..HELD_OUT + fleets {
        let (backends, mut services, loads) = fleet(seed);
        before += peak(&services, &loads);
        let most = services.len() * 2;
        for _ in 0..most {
            let input = DayLoads { backends: &backends, services: &services, loads: &loads };
            let Some(moved) = scatter(input) else { break };
            let service = services.iter_mut().find(|one| one.name == moved.service).unwrap();
            assert!(service.present.remove(&moved.from) && service.present.insert(moved.to));
            moves += 1;
        }
        after += peak(&services, &loads);
        for (number, service) in services.iter().enumerate() {
            let within = |other: &PlacedService| service.present.is_subset(&other.present);
            assert!(!services[number + 1..].iter().any(within), "{service:?}");
        }
    }
    println!("peaks: {before:.0}, scattered {after:.0}, {moves} moves in {fleets} fleets");
    assert!(after <= 0.75 * before, "{after} of {before}");
}
