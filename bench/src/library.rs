//! `bench/run library`: cost of a call by service name, relative to a call to a hard-coded address.
//!
//! Both sides call ten servers over persistent connections. The candidate picks with the library, and its servers carry
//! the server layer. The peer picks at random among hard-coded addresses with the same hyper stack, and its servers
//! carry nothing. CPU is the sum of client and server processes, per call.

use std::{error::Error, path::Path, time::Duration};

use crate::{load_generator::Seen, paired_ratio::Ratio, report::Report, role_process::RoleProcess};

/// Bytes of each request and response.
const PAYLOADS: [usize; 3] = [600, 5_500, 55_000];
/// Number of callers that call again as soon as they have the response.
const TASKS: usize = 16;
/// Time for which one side is called before the other side's turn. Percentiles are computed per turn: over all turns
/// together, the slowest hundredth would be the one turn in which the machine stalled.
const TURN: Duration = Duration::from_millis(150);
/// Protocols.
const PROTOCOLS: [&str; 2] = ["http1", "grpc"];

/// Results for one protocol and payload: candidate relative to peer, medians over rounds.
#[derive(Clone, Debug)]
struct Case {
    /// `http1` or `grpc`.
    protocol: &'static str,
    /// Bytes of each request and response.
    payload: usize,
    /// CPU per call of the candidate's client and servers, in microseconds.
    cpu_us: [f64; 2],
    /// CPU per call of the peer's client and servers, in microseconds.
    peer_cpu_us: [f64; 2],
    /// CPU ratio: the median over rounds of the ratio within each round.
    cpu_ratio: f64,
    /// The smallest and the greatest CPU ratio of a round.
    cpu_spread: [f64; 2],
    /// Ratio of p50 latency, at half of the slower side's peak rate.
    p50: Ratio,
    /// Ratio of p99 latency, at the same rate.
    p99: Ratio,
    /// Ratio of p50 latency of the peer to itself, which shows the noise.
    noise_p50: Ratio,
    /// Ratio of p99 latency of the peer to itself.
    noise_p99: Ratio,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [least, most] = self.cpu_spread;
        write!(
            f,
            "{:>5} {:>6} B: CPU {:.1} + {:.1} µs (client + servers) over {:.1} + {:.1} = {:.3} ({least:.3} to \
             {most:.3}); p50 {}, p99 {}; peer over itself p50 {}, p99 {}",
            self.protocol,
            self.payload,
            self.cpu_us[0],
            self.cpu_us[1],
            self.peer_cpu_us[0],
            self.peer_cpu_us[1],
            self.cpu_ratio,
            self.p50,
            self.p99,
            self.noise_p50,
            self.noise_p99
        )
    }
}

/// Durations and repetitions.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Rounds of closed-loop load.
    rounds: usize,
    /// Duration for which each side is called in one closed-loop round.
    closed: Duration,
    /// Rounds of open-loop load. Each side has its turns in each round.
    turns: usize,
}

impl Scale {
    fn new(quick: bool) -> Self {
        let ms = Duration::from_millis;
        if quick {
            Self { rounds: 4, closed: ms(500), turns: 10 }
        } else {
            Self { rounds: 9, closed: ms(1500), turns: 120 }
        }
    }
}

/// Measures every case, and reports the worst of each figure.
pub(crate) fn run(quick: bool) -> Result<Report, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cases = runtime.block_on(measure(quick))?;
    let mut report = Report::new("library");
    report.peer("the same hyper and h2 with hard-coded addresses", "random pick");
    for case in &cases {
        eprintln!("{case}");
    }
    let worst = |of: &dyn Fn(&Case) -> f64, protocol: &str| {
        cases.iter().filter(|case| case.protocol.contains(protocol)).map(of).fold(0.0, f64::max)
    };
    let cpu = "CPU of client and servers per call, over the peer's; the worst payload";
    report.figure("cpu_ratio_http1", worst(&|case| case.cpu_ratio, "http1"), Some(1.10), cpu);
    report.figure("cpu_ratio_grpc", worst(&|case| case.cpu_ratio, "grpc"), Some(1.10), cpu);
    let mut latency = |name, of: fn(&Case) -> Ratio, itself: fn(&Case) -> Ratio| {
        let worst = cases.iter().max_by(|a, b| of(a).mean.total_cmp(&of(b).mean));
        let (ratio, noise) = worst.map(|case| (of(case), itself(case))).unwrap_or_default();
        report.figure(
            name,
            ratio.mean,
            Some(1.05),
            format!("the worst case, {ratio}; there the peer over itself {noise}"),
        );
    };
    latency("p50_ratio", |case| case.p50, |case| case.noise_p50);
    latency("p99_ratio", |case| case.p99, |case| case.noise_p99);
    Ok(report)
}

async fn measure(quick: bool) -> Result<Vec<Case>, String> {
    let scale = Scale::new(quick);
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let (_mesh, _) = RoleProcess::start(dir.path(), &["mesh"]).await?;
    let mut cases = Vec::new();
    for protocol in PROTOCOLS {
        let candidate = Servers::start(dir.path(), protocol, true).await?;
        let peer = Servers::start(dir.path(), protocol, false).await?;
        let mut servers = [candidate, peer];
        for payload in PAYLOADS {
            eprintln!("{protocol}, {payload} bytes");
            cases.push(case(dir.path(), protocol, payload, &mut servers, scale).await?);
        }
    }
    Ok(cases)
}

struct Servers {
    part: RoleProcess,
    addresses: String,
}

impl Servers {
    async fn start(dir: &Path, protocol: &str, layer: bool) -> Result<Self, String> {
        let layer = if layer { "on" } else { "off" };
        let (part, addresses) =
            RoleProcess::start(dir, &["servers", "--protocol", protocol, "--layer", layer]).await?;
        Ok(Self { part, addresses })
    }
}

/// Cost of a closed-loop run.
#[derive(Clone, Copy)]
struct Cost {
    /// CPU time per call of client and servers, in nanoseconds.
    per_call: [f64; 2],
    /// Calls per second.
    rate: f64,
}

impl Cost {
    fn whole(self) -> f64 {
        self.per_call[0] + self.per_call[1]
    }
}

/// A client process and the servers it calls.
struct Side<'a> {
    client: RoleProcess,
    servers: &'a mut RoleProcess,
}

impl Side<'_> {
    /// CPU time per call of client and servers in nanoseconds, and calls per second.
    async fn cost(&mut self, scale: Scale) -> Result<Cost, String> {
        let before = self.servers.cpu_ns().await?;
        let run = self.client.closed(TASKS, scale.closed).await?;
        let servers = self.servers.cpu_ns().await? - before;
        let calls = run.calls.max(1) as f64;
        let per_call = [run.cpu_ns as f64 / calls, servers as f64 / calls];
        Ok(Cost { per_call, rate: calls * 1e9 / run.wall_ns as f64 })
    }
}

async fn case(
    dir: &Path,
    protocol: &'static str,
    payload: usize,
    servers: &mut [Servers; 2],
    scale: Scale,
) -> Result<Case, String> {
    let [ours, theirs] = servers;
    let size = payload.to_string();
    let common = ["--protocol", protocol, "--payload", &size];
    let mesh = [&["client", "--kind", "mesh"], &common[..]].concat();
    let fixed = [&["client", "--kind", "static", "--servers", &theirs.addresses], &common[..]].concat();
    let mut ours = Side { client: RoleProcess::start(dir, &mesh).await?.0, servers: &mut ours.part };
    let mut theirs = Side { client: RoleProcess::start(dir, &fixed).await?.0, servers: &mut theirs.part };

    // The first round is a warm-up and is not counted.
    let mut costs = Vec::new();
    let mut peak = f64::INFINITY;
    for round in 0..=scale.rounds {
        // The order alternates, so that a machine that slows down favours neither side.
        let (a, b);
        if round % 2 == 0 {
            a = ours.cost(scale).await?;
            b = theirs.cost(scale).await?;
        } else {
            b = theirs.cost(scale).await?;
            a = ours.cost(scale).await?;
        }
        if round > 0 {
            costs.push((a, b));
            peak = peak.min(a.rate).min(b.rate);
        }
    }
    let latency = latency(&mut ours.client, &mut theirs.client, (peak / 2.0) as u64, scale).await?;
    Ok(summary(protocol, payload, &costs, &latency))
}

/// One round of open-loop load: the peer, the candidate, and the peer again. Each run follows a turn of the other side,
/// because a side that is called twice in a row finds its caches warm.
type Turns = [Seen; 3];

/// Selects a latency of a turn.
type Latency = fn(&Seen) -> u64;

async fn latency(
    ours: &mut RoleProcess,
    theirs: &mut RoleProcess,
    rate: u64,
    scale: Scale,
) -> Result<Vec<Turns>, String> {
    let mut rounds = Vec::new();
    for _ in 0..scale.turns {
        ours.open(rate, TURN / 3).await?;
        let before = theirs.open(rate, TURN).await?;
        let candidate = ours.open(rate, TURN).await?;
        let after = theirs.open(rate, TURN).await?;
        rounds.push([before, candidate, after].map(|turn| Seen::of(&turn)));
    }
    Ok(rounds)
}

/// The candidate relative to the mean of the peer before and after it, so that a machine that drifts favours neither
/// side.
fn over_peer([before, candidate, after]: &Turns, of: Latency) -> f64 {
    of(candidate) as f64 / (of(before) as f64 * of(after) as f64).sqrt()
}

/// The peer relative to itself.
fn over_itself([before, _, after]: &Turns, of: Latency) -> f64 {
    of(after) as f64 / of(before) as f64
}

fn summary(protocol: &'static str, payload: usize, costs: &[(Cost, Cost)], latency: &[Turns]) -> Case {
    let mut ratios: Vec<f64> = costs.iter().map(|(ours, theirs)| ours.whole() / theirs.whole()).collect();
    let cpu_ratio = median(&mut ratios);
    // Proof: at least one round was counted, and median() sorted the ratios.
    let cpu_spread = [ratios[0], ratios[ratios.len() - 1]];
    let ratio = |compare: fn(&Turns, Latency) -> f64, of: Latency| {
        Ratio::of(&latency.iter().map(|turns| compare(turns, of)).collect::<Vec<_>>())
    };
    Case {
        protocol,
        payload,
        cpu_us: [0, 1].map(|part| {
            median(&mut costs.iter().map(|cost| cost.0.per_call[part] / 1e3).collect::<Vec<_>>())
        }),
        peer_cpu_us: [0, 1].map(|part| {
            median(&mut costs.iter().map(|cost| cost.1.per_call[part] / 1e3).collect::<Vec<_>>())
        }),
        cpu_ratio,
        cpu_spread,
        p50: ratio(over_peer, |turn| turn.p50),
        p99: ratio(over_peer, |turn| turn.p99),
        noise_p50: ratio(over_itself, |turn| turn.p50),
        noise_p99: ratio(over_itself, |turn| turn.p99),
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
