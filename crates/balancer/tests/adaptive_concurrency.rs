//! The adaptive limit against a simulated server: workers, one queue, requests by chance.

use std::{cmp::Reverse, collections::BinaryHeap, collections::VecDeque};

use fairmesh_balancer::{AdaptiveConcurrency, CompletedRequest, ConcurrencyConfig};
use fairmesh_model::arith::Generator;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// How long requests take to work on.
#[derive(Clone, Copy, Debug)]
enum Work {
    Same(u64),
    /// By an exponential distribution of this mean.
    Exponential(u64),
    /// One in ten takes ten times as long as the others, and so much in the mean.
    Mixed(u64),
}

impl Work {
    fn draw(self, chance: &mut Generator) -> u64 {
        match self {
            Self::Same(time) => time,
            Self::Exponential(mean) => exponential(mean as f64, chance),
            Self::Mixed(mean) if chance.below(10) == 0 => mean * 100 / 19,
            Self::Mixed(mean) => mean * 10 / 19,
        }
    }

    fn mean(self) -> u64 {
        match self {
            Self::Same(mean) | Self::Exponential(mean) | Self::Mixed(mean) => mean,
        }
    }
}

fn exponential(mean: f64, chance: &mut Generator) -> u64 {
    let uniform = (chance.next() >> 11) as f64 / (1_u64 << 53) as f64;
    (-(1.0 - uniform).ln() * mean) as u64
}

/// What a server did in a span of time.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    answered: u64,
    refused: u64,
    sojourn: u64,
    longest: u64,
}

struct Server {
    workers: usize,
    work: Work,
    chance: Generator,
    limit: AdaptiveConcurrency,
    now: u64,
    queue: VecDeque<u64>,
    /// When they end, and when they came.
    busy: BinaryHeap<Reverse<(u64, u64)>>,
    refused: u32,
}

impl Server {
    fn new(workers: usize, work: Work, config: ConcurrencyConfig, seed: u64) -> Self {
        Self {
            workers,
            work,
            chance: Generator::new(seed),
            limit: AdaptiveConcurrency::new(config, seed),
            now: 0,
            queue: VecDeque::new(),
            busy: BinaryHeap::new(),
            refused: 0,
        }
    }

    /// Requests a second that it can do.
    fn capacity(&self) -> f64 {
        self.workers as f64 * SECOND as f64 / self.work.mean() as f64
    }

    fn under_way(&self) -> usize {
        self.queue.len() + self.busy.len()
    }

    fn begin(&mut self, came: u64) {
        let takes = self.work.draw(&mut self.chance);
        self.busy.push(Reverse((self.now + takes, came)));
    }

    fn comes(&mut self, done: &mut Done) {
        if self.under_way() >= self.limit.limit() as usize {
            self.refused += 1;
            done.refused += 1;
        } else if self.busy.len() < self.workers {
            self.begin(self.now);
        } else {
            self.queue.push_back(self.now);
        }
    }

    fn ends(&mut self, done: &mut Done) {
        let under_way = self.under_way() as u32;
        let Some(Reverse((_, came))) = self.busy.pop() else { return };
        let took = self.now - came;
        *done = Done {
            answered: done.answered + 1,
            sojourn: done.sojourn + took,
            longest: done.longest.max(took),
            ..*done
        };
        let refused = std::mem::take(&mut self.refused);
        self.limit.record_success(CompletedRequest {
            latency: took,
            in_flight: under_way,
            refused,
            now: self.now,
        });
        if let Some(came) = self.queue.pop_front() {
            self.begin(came);
        }
    }

    /// Requests come for `seconds`, so many a second, each time `burst` at once.
    fn run(&mut self, rate: f64, burst: u32, seconds: f64) -> Done {
        let (mut done, mut come) = (Done::default(), self.now);
        let until = self.now + (seconds * SECOND as f64) as u64;
        let gap = SECOND as f64 * f64::from(burst) / rate;
        come += exponential(gap, &mut self.chance);
        loop {
            let next = self.busy.peek().map_or(u64::MAX, |Reverse((ends, _))| *ends);
            self.now = next.min(come).min(until);
            if self.now == until {
                return done;
            } else if next <= come {
                self.ends(&mut done);
            } else {
                (0..burst).for_each(|_| self.comes(&mut done));
                come += exponential(gap, &mut self.chance);
            }
        }
    }
}

fn servers(config: ConcurrencyConfig) -> impl Iterator<Item = Server> {
    let works =
        [Work::Same(10 * MS), Work::Exponential(10 * MS), Work::Mixed(20 * MS), Work::Exponential(MS)];
    let kinds = works.into_iter().flat_map(|work| [1, 4, 16, 64].map(|workers| (workers, work)));
    kinds.flat_map(move |(workers, work)| {
        (0..2).map(move |seed| Server::new(workers, work, config, seed * 7919 + workers as u64))
    })
}

/// Lets a server run at three times what it can do: the share of its capacity that it does, and how many times as long requests
/// take as they are worked on.
fn overloaded(server: &mut Server, seconds: f64) -> (f64, f64) {
    let capacity = server.capacity();
    let done = server.run(capacity * 3.0, 1, seconds);
    let mean = done.sojourn as f64 / done.answered as f64 / server.work.mean() as f64;
    let goodput = done.answered as f64 / seconds / capacity;
    println!(
        "{} workers, {:?}: {goodput:.3}, {mean:.2}, {}",
        server.workers,
        server.work,
        server.limit.limit()
    );
    (goodput, mean)
}

#[test]
fn at_three_times_capacity_goodput_stays_above_90_percent_and_queueing_bounded() {
    let mut bad = Vec::new();
    for mut server in servers(ConcurrencyConfig::default()) {
        let what = format!("{} workers, {:?}", server.workers, server.work);
        let rate = server.capacity() / 2.0;
        let calm = server.run(rate, 1, 20.0);
        let (at_once, longest) = overloaded(&mut server, 10.0);
        let (goodput, mean) = overloaded(&mut server, 40.0);
        server.run(rate, 1, 5.0);
        let after = server.run(rate, 1, 40.0);
        // One that is worked on while one waits takes twice as long, and there is a root for finding out.
        // A single worker has requests wait in a calm, too.
        let is_calm =
            |done: Done| done.refused * if server.workers == 1 { 50 } else { 1000 } <= done.answered;
        if at_once < 0.9 || goodput < 0.9 || mean > 6.0 || !is_calm(calm) || !is_calm(after) {
            bad.push((what, at_once, longest, goodput, mean, calm, after));
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn an_overload_from_the_first_request_is_detected() {
    let mut bad = Vec::new();
    for mut server in servers(ConcurrencyConfig::default()).filter(|server| server.capacity() < 5_000.0) {
        overloaded(&mut server, 120.0);
        let (goodput, mean) = overloaded(&mut server, 20.0);
        if goodput < 0.9 || mean > 8.0 {
            bad.push((server.workers, server.work, goodput, mean));
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

/// Few requests that take very different times, and now and then many at once, which the server could all work on: how many
/// of a thousand it refuses.
fn refused_of_few(config: ConcurrencyConfig) -> u64 {
    let mut sums = Done::default();
    for seed in 0..20 {
        let mut server = Server::new(64, Work::Mixed(100 * MS), config, seed);
        for _ in 0..20 {
            for done in [server.run(20.0, 1, 30.0), server.run(50.0, 24, 1.0)] {
                sums.answered += done.answered;
                sums.refused += done.refused;
            }
        }
    }
    sums.refused * 1000 / sums.answered
}

#[test]
fn low_traffic_is_not_refused() {
    assert_eq!(refused_of_few(ConcurrencyConfig::default()), 0);
}

#[test]
fn without_min_samples_low_traffic_would_be_refused() {
    let hasty = ConcurrencyConfig { min_samples: 1, ..ConcurrencyConfig::default() };
    let refused = refused_of_few(hasty);
    assert!(refused > 10, "the test would not notice: {refused} of a thousand");
}

#[test]
fn a_slow_dependency_is_not_treated_as_overload() {
    let mut bad = Vec::new();
    for mut server in servers(ConcurrencyConfig::default()).filter(|server| server.workers == 64) {
        let rate = server.capacity() / 8.0;
        server.run(rate, 1, 20.0);
        // Each takes five times as long, and there are workers enough for that.
        server.work = match server.work {
            Work::Same(mean) => Work::Same(mean * 5),
            Work::Exponential(mean) => Work::Exponential(mean * 5),
            Work::Mixed(mean) => Work::Mixed(mean * 5),
        };
        let done = [10.0, 60.0].map(|seconds| server.run(rate, 1, seconds));
        let [at_once, later] = done.map(|done| done.refused as f64 / (done.refused + done.answered) as f64);
        println!("{:?}: {at_once:.4} {later:.4}", server.work);
        if at_once > 0.5 || later > 0.01 {
            bad.push((server.work, at_once, later));
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn a_probe_ends_when_every_request_fails() {
    let mut server = Server::new(4, Work::Same(10 * MS), ConcurrencyConfig::default(), 1);
    // Below its least it is only while it looks.
    let looks = |limit: &AdaptiveConcurrency| limit.limit() < ConcurrencyConfig::default().min_limit;
    let rate = server.capacity() * 3.0;
    let found = (0..12_000).any(|_| {
        server.run(rate, 1, 0.01);
        looks(&server.limit)
    });
    assert!(found, "it never looked");
    let failed = |now| CompletedRequest { latency: 1, in_flight: 1, refused: 0, now };
    server.limit.record_failure(failed(server.now + 9 * SECOND));
    assert!(looks(&server.limit));
    server.limit.record_failure(failed(server.now + 11 * SECOND));
    assert!(!looks(&server.limit));
}
