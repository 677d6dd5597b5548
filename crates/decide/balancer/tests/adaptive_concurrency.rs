//! Tests of the adaptive limit with a simulated server: workers, one queue, and random arrivals.

use std::{cmp::Reverse, collections::BinaryHeap, collections::VecDeque};

use fairmesh_balancer::{AdaptiveConcurrency, CompletedRequest, ConcurrencyConfig};
use fairmesh_model::arith::Generator;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// Distribution of service times.
#[derive(Clone, Copy, Debug)]
enum ServiceTime {
    Fixed(u64),
    /// Exponentially distributed with this mean.
    Exponential(u64),
    /// One request in ten takes ten times as long as the others, with this overall mean.
    Mixed(u64),
}

impl ServiceTime {
    fn draw(self, random: &mut Generator) -> u64 {
        match self {
            Self::Fixed(time) => time,
            Self::Exponential(mean) => exponential(mean as f64, random),
            Self::Mixed(mean) if random.below(10) == 0 => mean * 100 / 19,
            Self::Mixed(mean) => mean * 10 / 19,
        }
    }

    fn mean(self) -> u64 {
        match self {
            Self::Fixed(mean) | Self::Exponential(mean) | Self::Mixed(mean) => mean,
        }
    }
}

fn exponential(mean: f64, random: &mut Generator) -> u64 {
    let uniform = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
    (-(1.0 - uniform).ln() * mean) as u64
}

/// Results of a server over some time.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    completed: u64,
    refused: u64,
    total_latency: u64,
    max_latency: u64,
}

struct Server {
    workers: usize,
    work: ServiceTime,
    random: Generator,
    limit: AdaptiveConcurrency,
    now: u64,
    queue: VecDeque<u64>,
    /// Completion and arrival time of each request in progress.
    busy: BinaryHeap<Reverse<(u64, u64)>>,
    refused: u32,
}

impl Server {
    fn new(workers: usize, work: ServiceTime, config: ConcurrencyConfig, seed: u64) -> Self {
        Self {
            workers,
            work,
            random: Generator::new(seed),
            limit: AdaptiveConcurrency::new(config, seed),
            now: 0,
            queue: VecDeque::new(),
            busy: BinaryHeap::new(),
            refused: 0,
        }
    }

    /// Number of requests per second that the server can process.
    fn capacity(&self) -> f64 {
        self.workers as f64 * SECOND as f64 / self.work.mean() as f64
    }

    fn in_flight(&self) -> usize {
        self.queue.len() + self.busy.len()
    }

    fn begin(&mut self, arrived_at: u64) {
        let service_time = self.work.draw(&mut self.random);
        self.busy.push(Reverse((self.now + service_time, arrived_at)));
    }

    fn arrive(&mut self, totals: &mut Totals) {
        if self.in_flight() >= self.limit.limit() as usize {
            self.refused += 1;
            totals.refused += 1;
        } else if self.busy.len() < self.workers {
            self.begin(self.now);
        } else {
            self.queue.push_back(self.now);
        }
    }

    fn complete(&mut self, totals: &mut Totals) {
        let in_flight = self.in_flight() as u32;
        let Some(Reverse((_, arrived_at))) = self.busy.pop() else { return };
        let latency = self.now - arrived_at;
        *totals = Totals {
            completed: totals.completed + 1,
            total_latency: totals.total_latency + latency,
            max_latency: totals.max_latency.max(latency),
            ..*totals
        };
        let refused = std::mem::take(&mut self.refused);
        self.limit.record_success(CompletedRequest { latency, in_flight, refused, now: self.now });
        if let Some(arrived_at) = self.queue.pop_front() {
            self.begin(arrived_at);
        }
    }

    /// Simulates arrivals at this rate for `seconds`, in bursts of `burst`.
    fn run(&mut self, rate: f64, burst: u32, seconds: f64) -> Totals {
        let (mut totals, mut next_arrival) = (Totals::default(), self.now);
        let end = self.now + (seconds * SECOND as f64) as u64;
        let gap = SECOND as f64 * f64::from(burst) / rate;
        next_arrival += exponential(gap, &mut self.random);
        loop {
            let next = self.busy.peek().map_or(u64::MAX, |Reverse((complete, _))| *complete);
            self.now = next.min(next_arrival).min(end);
            if self.now == end {
                return totals;
            } else if next <= next_arrival {
                self.complete(&mut totals);
            } else {
                (0..burst).for_each(|_| self.arrive(&mut totals));
                next_arrival += exponential(gap, &mut self.random);
            }
        }
    }
}

fn servers(config: ConcurrencyConfig) -> impl Iterator<Item = Server> {
    let works = [
        ServiceTime::Fixed(10 * MS),
        ServiceTime::Exponential(10 * MS),
        ServiceTime::Mixed(20 * MS),
        ServiceTime::Exponential(MS),
    ];
    let kinds = works.into_iter().flat_map(|work| [1, 4, 16, 64].map(|workers| (workers, work)));
    kinds.flat_map(move |(workers, work)| {
        (0..2).map(move |seed| Server::new(workers, work, config, seed * 7919 + workers as u64))
    })
}

/// Runs a server at three times its capacity. Returns goodput as a share of capacity, and mean latency as a multiple of
/// the service time.
fn overloaded(server: &mut Server, seconds: f64) -> (f64, f64) {
    let capacity = server.capacity();
    let totals = server.run(capacity * 3.0, 1, seconds);
    let mean = totals.total_latency as f64 / totals.completed as f64 / server.work.mean() as f64;
    let goodput = totals.completed as f64 / seconds / capacity;
    println!(
        "{} workers, {:?}: {goodput:.3}, {mean:.2}, {}",
        server.workers,
        server.work,
        server.limit.limit()
    );
    (goodput, mean)
}

#[test]
fn adaptive_limit_keeps_goodput_above_90_percent_at_triple_load() {
    let mut failures = Vec::new();
    for mut server in servers(ConcurrencyConfig::default()) {
        let name = format!("{} workers, {:?}", server.workers, server.work);
        let rate = server.capacity() / 2.0;
        let normal = server.run(rate, 1, 20.0);
        let (at_once, max_latency) = overloaded(&mut server, 10.0);
        let (goodput, mean) = overloaded(&mut server, 40.0);
        server.run(rate, 1, 5.0);
        let after = server.run(rate, 1, 40.0);
        // With one queued request, latency doubles, and the limit has headroom. A single worker queues requests even
        // under normal load.
        let is_normal =
            |totals: Totals| totals.refused * if server.workers == 1 { 50 } else { 1000 } <= totals.completed;
        if at_once < 0.9 || goodput < 0.9 || mean > 6.0 || !is_normal(normal) || !is_normal(after) {
            failures.push((name, at_once, max_latency, goodput, mean, normal, after));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn adaptive_limit_detects_overload_from_first_request() {
    let mut failures = Vec::new();
    for mut server in servers(ConcurrencyConfig::default()).filter(|server| server.capacity() < 5_000.0) {
        overloaded(&mut server, 120.0);
        let (goodput, mean) = overloaded(&mut server, 20.0);
        if goodput < 0.9 || mean > 8.0 {
            failures.push((server.workers, server.work, goodput, mean));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Returns the refusals per thousand responses under low traffic, with widely varying service times and occasional
/// bursts within the server's capacity.
fn refused_of_few(config: ConcurrencyConfig) -> u64 {
    let mut sums = Totals::default();
    for seed in 0..20 {
        let mut server = Server::new(64, ServiceTime::Mixed(100 * MS), config, seed);
        for _ in 0..20 {
            for totals in [server.run(20.0, 1, 30.0), server.run(50.0, 24, 1.0)] {
                sums.completed += totals.completed;
                sums.refused += totals.refused;
            }
        }
    }
    sums.refused * 1000 / sums.completed
}

#[test]
fn adaptive_concurrency_limit_does_not_refuse_low_traffic() {
    assert_eq!(refused_of_few(ConcurrencyConfig::default()), 0);
}

#[test]
fn adaptive_limit_without_min_samples_refuses_low_traffic() {
    let config = ConcurrencyConfig { min_samples: 1, ..ConcurrencyConfig::default() };
    let refused = refused_of_few(config);
    assert!(refused > 10, "the test would not detect it: {refused} per thousand");
}

#[test]
fn adaptive_limit_does_not_treat_slow_dependency_as_overload() {
    let mut failures = Vec::new();
    for mut server in servers(ConcurrencyConfig::default()).filter(|server| server.workers == 64) {
        let rate = server.capacity() / 8.0;
        server.run(rate, 1, 20.0);
        // Every request takes five times as long, but there are enough workers.
        server.work = match server.work {
            ServiceTime::Fixed(mean) => ServiceTime::Fixed(mean * 5),
            ServiceTime::Exponential(mean) => ServiceTime::Exponential(mean * 5),
            ServiceTime::Mixed(mean) => ServiceTime::Mixed(mean * 5),
        };
        let totals = [10.0, 60.0].map(|seconds| server.run(rate, 1, seconds));
        let [at_once, later] =
            totals.map(|totals| totals.refused as f64 / (totals.refused + totals.completed) as f64);
        println!("{:?}: {at_once:.4} {later:.4}", server.work);
        if at_once > 0.5 || later > 0.01 {
            failures.push((server.work, at_once, later));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn concurrency_limit_probe_ends_when_every_request_fails() {
    let mut server = Server::new(4, ServiceTime::Fixed(10 * MS), ConcurrencyConfig::default(), 1);
    // The limit is below its minimum only during a probe.
    let probes = |limit: &AdaptiveConcurrency| limit.limit() < ConcurrencyConfig::default().min_limit;
    let rate = server.capacity() * 3.0;
    let probed = (0..12_000).any(|_| {
        server.run(rate, 1, 0.01);
        probes(&server.limit)
    });
    assert!(probed, "it never probed");
    let failed = |now| CompletedRequest { latency: 1, in_flight: 1, refused: 0, now };
    server.limit.record_failure(failed(server.now + 9 * SECOND));
    assert!(probes(&server.limit));
    server.limit.record_failure(failed(server.now + 11 * SECOND));
    assert!(!probes(&server.limit));
}
