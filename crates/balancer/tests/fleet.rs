//! A small fleet under load: callers with Poisson arrivals, servers with cores, speeds and a queue. What the score is for is
//! that servers are equally busy; here it has to be better at it than least request, whatever the hardware.

#![allow(clippy::unwrap_used, reason = "a test that panics has found something")]
#![allow(clippy::too_many_lines, reason = "one loop over one kind of events")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a simulation in small numbers")]

use std::{cmp::Reverse, collections::BinaryHeap};

use fairmesh_balancer::{Contest, LoadReport, Members, Outcome, Rule, Slots, pick, rendezvous};
use fairmesh_model::{
    Balancing, BalancingPolicy, InstanceId,
    arith::{Generator, mix_pair, mix64},
};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

#[derive(Clone)]
struct Fleet {
    /// Speed of each server against an ordinary one, in truth and as the weights have it, in thousandths.
    speeds: Vec<(u64, u32)>,
    cores: usize,
    callers: usize,
    subset: usize,
    /// Mean processor time and time of waiting, in nanoseconds.
    work: u64,
    wait: u64,
    /// Utilisation at which the fleet runs, in percent.
    load: u64,
    reports_requests: bool,
    reports_cpu: bool,
    seconds: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive { caller: usize },
    Reach { caller: usize, server: usize },
    Work { server: usize, caller: usize },
    Done { server: usize, caller: usize },
    Answer { server: usize, caller: usize, requests: u32, cpu: u16 },
}

#[derive(Clone, Default)]
struct Server {
    inside: u32,
    running: usize,
    queue: std::collections::VecDeque<usize>,
    busy: u64,
    since: u64,
    /// Smoothed busy share in thousandths with 8 more bits, and when it was taken.
    cpu: u64,
    taken: u64,
    last_busy: u64,
}

impl Server {
    fn account(&mut self, now: u64) {
        self.busy += (now - self.since) * self.running as u64;
        self.since = now;
    }

    /// The share of the last seconds, refreshed every 250 ms.
    fn cpu(&mut self, now: u64, cores: usize) -> u16 {
        self.account(now);
        let span = now - self.taken;
        if span >= 250 * MS {
            let share = (self.busy - self.last_busy) * 1000 * 256 / (span * cores as u64);
            self.cpu = if self.taken == 0 { share } else { (self.cpu * 3 + share) / 4 };
            (self.taken, self.last_busy) = (now, self.busy);
        }
        (self.cpu >> 8) as u16
    }
}

struct Caller {
    slots: Slots,
    members: Members,
}

/// An exponentially distributed time of this mean.
fn exponential(random: &mut Generator, mean: u64) -> u64 {
    let uniform = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
    (-(1.0 - uniform).ln() * mean as f64) as u64
}

/// Utilisation of each server over the second half of the time.
fn run(fleet: &Fleet, policy: BalancingPolicy, seed: u64) -> Vec<f64> {
    let rule = Rule::new(&Balancing { policy, ..Balancing::default() });
    let n = fleet.speeds.len();
    let ids: Vec<_> = (0..n).map(|i| InstanceId::new(format!("i{i}")).unwrap()).collect();
    let weights = |i: usize| if policy == BalancingPolicy::LeastRequest { 1000 } else { fleet.speeds[i].1 };
    let nodes: Vec<_> = (0..n).map(|i| (mix64(i as u64), 1000)).collect();
    let callers: Vec<Caller> = (0..fleet.callers as u64)
        .map(|caller| {
            let slots = Slots::default();
            let _ = slots.assign(&ids);
            let subset = rendezvous::subset(mix_pair(seed, caller), &nodes, fleet.subset);
            let members: Vec<_> = subset.iter().map(|&i| (i as u32, weights(i))).collect();
            slots.admit(&members, &rule);
            Caller { slots, members: Members::new(&members) }
        })
        .collect();
    let mut servers = vec![Server::default(); n];
    let capacity: u64 = fleet.speeds.iter().map(|speed| speed.0).sum::<u64>() * fleet.cores as u64;
    // Between two calls of one caller.
    let pause = fleet.work * 1000 * 100 * fleet.callers as u64 / (capacity * fleet.load);
    let mut random = Generator::new(seed);
    let mut events = BinaryHeap::new();
    let mut number = 0_u64;
    let mut push = |events: &mut BinaryHeap<_>, at: u64, event: Event| {
        number += 1;
        events.push(Reverse((at, number, event)));
    };
    for caller in 0..fleet.callers {
        push(&mut events, exponential(&mut random, pause), Event::Arrive { caller });
    }
    let (end, mut half) = (fleet.seconds * SECOND, None);
    while let Some(Reverse((now, _, event))) = events.pop() {
        if now >= end / 2 && half.is_none() {
            servers.iter_mut().for_each(|server| server.account(now));
            half = Some(servers.iter().map(|server| server.busy).collect::<Vec<_>>());
        }
        if now >= end {
            break;
        }
        match event {
            Event::Arrive { caller } => {
                let Caller { slots, members } = &callers[caller];
                let contest = Contest::new(slots, rule.terms(), &[], now);
                let picked =
                    pick(&members.group(), &contest, &mut Generator::new(random.next()), &mut ()).unwrap();
                slots.begin(picked.index);
                push(&mut events, now + MS / 2, Event::Reach { caller, server: picked.index as usize });
                push(&mut events, now + exponential(&mut random, pause), Event::Arrive { caller });
            }
            Event::Reach { caller, server } => {
                servers[server].inside += 1;
                let wait = if fleet.wait == 0 { 0 } else { exponential(&mut random, fleet.wait) };
                push(&mut events, now + wait, Event::Work { server, caller });
            }
            Event::Work { server, caller } => {
                servers[server].account(now);
                if servers[server].running < fleet.cores {
                    servers[server].running += 1;
                    let time = exponential(&mut random, fleet.work) * 1000 / fleet.speeds[server].0;
                    push(&mut events, now + time, Event::Done { server, caller });
                } else {
                    servers[server].queue.push_back(caller);
                }
            }
            Event::Done { server, caller } => {
                let this = &mut servers[server];
                this.account(now);
                this.inside -= 1;
                let answer =
                    Event::Answer { server, caller, requests: this.inside, cpu: this.cpu(now, fleet.cores) };
                push(&mut events, now + MS / 2, answer);
                match servers[server].queue.pop_front() {
                    None => servers[server].running -= 1,
                    Some(next) => {
                        let time = exponential(&mut random, fleet.work) * 1000 / fleet.speeds[server].0;
                        push(&mut events, now + time, Event::Done { server, caller: next });
                    }
                }
            }
            Event::Answer { server, caller, requests, cpu } => {
                let slots = &callers[caller].slots;
                let report = LoadReport {
                    requests: fleet.reports_requests.then_some(requests),
                    cpu: fleet.reports_cpu.then_some(cpu),
                    ..LoadReport::default()
                };
                slots.report(server as u32, report, now);
                slots.finish(server as u32, Outcome::Ok, now);
            }
        }
    }
    let half = half.unwrap();
    let full = (end / 2 * fleet.cores as u64) as f64;
    servers.iter().zip(half).map(|(server, half)| (server.busy - half) as f64 / full).collect()
}

/// Mean, coefficient of variation and 99th percentile.
fn describe(mut utilisation: Vec<f64>) -> (f64, f64, f64) {
    utilisation.sort_by(f64::total_cmp);
    let n = utilisation.len() as f64;
    let mean = utilisation.iter().sum::<f64>() / n;
    let variance = utilisation.iter().map(|u| (u - mean).powi(2)).sum::<f64>() / n;
    (mean, variance.sqrt() / mean, utilisation[(utilisation.len() * 99).div_ceil(100) - 1])
}

fn mixed(n: usize, speed: impl Fn(usize) -> (u64, u32)) -> Vec<(u64, u32)> {
    (0..n).map(speed).collect()
}

fn base() -> Fleet {
    Fleet {
        speeds: mixed(40, |i| if i % 4 == 0 { (2000, 2000) } else { (1000, 1000) }),
        cores: 8,
        callers: 30,
        subset: 20,
        work: 10 * MS,
        wait: 0,
        load: 50,
        reports_requests: true,
        reports_cpu: true,
        seconds: 120,
    }
}

/// Fleets by name.
fn fleets() -> Vec<(&'static str, Fleet)> {
    let even = mixed(40, |_| (1000, 1000));
    vec![
        ("uniform", Fleet { speeds: even.clone(), ..base() }),
        ("uniform, few callers", Fleet { speeds: even.clone(), callers: 5, subset: 40, ..base() }),
        ("uniform, waiting", Fleet { speeds: even, wait: 100 * MS, ..base() }),
        ("two speeds", base()),
        ("two speeds, waiting", Fleet { wait: 100 * MS, ..base() }),
        (
            "two speeds, unknown",
            Fleet { speeds: mixed(40, |i| if i % 4 == 0 { (2000, 1000) } else { (1000, 1000) }), ..base() },
        ),
        (
            "unknown, waiting",
            Fleet {
                speeds: mixed(40, |i| if i % 4 == 0 { (2000, 1000) } else { (1000, 1000) }),
                wait: 100 * MS,
                ..base()
            },
        ),
        (
            "no reports, waiting",
            Fleet { reports_requests: false, reports_cpu: false, wait: 100 * MS, ..base() },
        ),
        ("no cpu", Fleet { reports_cpu: false, ..base() }),
        ("no cpu, waiting", Fleet { reports_cpu: false, wait: 100 * MS, ..base() }),
        (
            "thin cover",
            Fleet {
                speeds: mixed(100, |i| if i % 4 == 0 { (2000, 2000) } else { (1000, 1000) }),
                callers: 30,
                seconds: 180,
                ..base()
            },
        ),
        (
            "busy, drifted",
            Fleet { speeds: mixed(40, |i| (850 + 10 * (i as u64 * 7 % 31), 1000)), load: 75, ..base() },
        ),
        ("many small callers", Fleet { callers: 2000, cores: 4, ..base() }),
    ]
}

#[test]
fn the_score_evens_utilisation_over_unlike_machines() {
    for name in ["two speeds", "unknown, waiting"] {
        let fleet = fleets()
            .into_iter()
            .find(|fleet| fleet.0 == name)
            .map(|(_, fleet)| Fleet { cores: 2, seconds: 60, ..fleet })
            .unwrap();
        let (_, _, theirs) = describe(run(&fleet, BalancingPolicy::LeastRequest, 1));
        let (_, cv, ours) = describe(run(&fleet, BalancingPolicy::Score, 1));
        assert!(cv < 0.1 && ours < 0.75 * theirs, "{name}: variation {cv}, p99 {ours} against {theirs}");
    }
}

#[test]
#[ignore = "prints a table to tune by"]
fn table() {
    for (name, fleet) in fleets() {
        let row: Vec<String> =
            [BalancingPolicy::LeastRequest, BalancingPolicy::Random, BalancingPolicy::Score]
                .into_iter()
                .map(|policy| {
                    let (mean, cv, p99) = describe(run(&fleet, policy, 1));
                    format!("{mean:.3} {cv:.3} {p99:.3}")
                })
                .collect();
        println!("{name:24} {}", row.join("  |  "));
    }
}
