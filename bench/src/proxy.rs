//! `bench/run proxy`: cost of a request through the proxy and through its peers.
//!
//! Every proxy has two endpoints, one prefix route, a deadline, least request, and one thread on its own processor.
//! Callers and endpoints share the other processor. Contenders alternate within each round, and settings within each
//! pass, so that fluctuations of the machine affect all alike.

pub(crate) mod contenders;
mod ghz;
mod idle_memory;
mod pgo_workload;
pub(crate) mod process;
pub(crate) mod results;
mod settings;
mod summary;

use std::{
    error::Error,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum};

use crate::{
    Common,
    load_generator::{Latencies, Run, Seen},
    report::Report,
    role_process::RoleProcess,
};
use contenders::{Contender, PEERS, Proxy, WireProtocol, YARDSTICKS};
use ghz::Ghz;
pub(crate) use pgo_workload::run as run_pgo_workload;
use results::{Cell, Results, Runs, median};
use settings::{BODIES, CONNECTIONS, FLOOR, MANY, MULTIPLEXED, SMALL, Scale, TURN, USUAL};

/// Options of `proxy`.
#[derive(Debug, Args)]
pub(crate) struct ProxyArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Run only this part [default: all].
    #[arg(long)]
    part: Option<Measured>,
    #[command(flatten)]
    pub(crate) ours: Ours,
}

/// The binary under test.
#[derive(Debug, Args)]
pub(crate) struct Ours {
    /// Program to measure [default: the `fairmesh` in the directory of this program].
    #[arg(long, value_name = "PROGRAM")]
    fairmesh: Option<PathBuf>,
}

impl Ours {
    fn program(&self) -> Result<PathBuf, String> {
        let beside = || std::env::current_exe().map(|own| own.with_file_name("fairmesh"));
        let program = self.fairmesh.clone().map_or_else(beside, Ok).map_err(|e| e.to_string())?;
        let lacks = || format!("there is no {}; build the whole workspace", program.display());
        if program.is_file() { Ok(program) } else { Err(lacks()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measured {
    /// CPU and throughput over HTTP/1.1.
    Http1,
    /// Latency over HTTP/1.1.
    Latency,
    /// Memory of idle connections over HTTP/1.1.
    Idle,
    /// CPU over HTTP/2.
    Http2,
    /// CPU of gRPC.
    Grpc,
    /// CPU of gRPC, called by ghz.
    Ghz,
}

/// Runs the benchmark.
pub(crate) fn run(args: &ProxyArgs) -> Result<Report, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut report = Report::new("proxy");
    let mut missing = Vec::new();
    let program = args.ours.program()?;
    report.candidate(format!("{} {}", program.display(), Contender::Fairmesh.version(&program)?));
    for peer in PEERS {
        match peer.version(&program) {
            Ok(version) => report.peer(peer.to_string(), version),
            Err(why) => missing.push((peer, why)),
        }
    }
    let bench = Bench { scale: Scale::new(args.common.quick), part: args.part, program, missing };
    runtime.block_on(bench.measure(&mut report))?;
    Ok(report)
}

struct Bench {
    scale: Scale,
    part: Option<Measured>,
    /// The Fairmesh binary under test.
    program: PathBuf,
    /// Peers that are not available, with the reason.
    missing: Vec<(Contender, String)>,
}

impl Bench {
    async fn measure(&self, report: &mut Report) -> Result<(), String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let wanted = |part| self.part.is_none_or(|only| only == part);
        if wanted(Measured::Http1) || wanted(Measured::Latency) {
            let mut who = self.with(&PEERS);
            if wanted(Measured::Http1) {
                who.extend(YARDSTICKS);
                report.peer("hyper-proxy", "hyper's server and client, an ordinary release build");
            }
            let mut side = Contenders::start((dir.path(), &self.program), WireProtocol::Http1, &who).await?;
            if wanted(Measured::Http1) {
                let found = side.http1(self.scale).await?;
                self.report_http1(report, &found);
                side.proxies.retain(|(who, _)| !YARDSTICKS.contains(who));
            }
            if wanted(Measured::Latency) {
                let turns = side.latency(self.scale).await?;
                self.report_latency(report, &turns);
            }
        }
        if wanted(Measured::Idle) {
            // A fresh proxy: memory that was allocated under load would be reused.
            let dir = dir.path().join("idle");
            fs::create_dir(&dir).map_err(|e| e.to_string())?;
            let sides =
                Contenders::start((&dir, &self.program), WireProtocol::Http1, &self.with(&PEERS)).await?;
            self.report_idle(report, &sides.idle().await?);
        }
        for (part, spoken) in [(Measured::Http2, WireProtocol::Http2), (Measured::Grpc, WireProtocol::Grpc)] {
            if wanted(part) {
                let mut side =
                    Contenders::start((dir.path(), &self.program), spoken, &self.with(&[Contender::Envoy]))
                        .await?;
                let found = side.multiplexed(self.scale).await?;
                let name = if part == Measured::Grpc { "grpc_cpu_vs_envoy" } else { "h2_cpu_vs_envoy" };
                self.ratio(report, (name, Some(0.5)), (&found, Contender::Envoy), |_| true);
            }
        }
        if wanted(Measured::Ghz) {
            // A folder of its own, because that of `grpc` has files of the same names.
            let dir = dir.path().join("ghz");
            fs::create_dir(&dir).map_err(|e| e.to_string())?;
            match Ghz::find(&dir) {
                Ok(ghz) => self.called_by(&ghz, &dir, report).await?,
                Err(why) => report.unmeasured("ghz_cpu_vs_envoy", why),
            }
        }
        Ok(())
    }

    async fn called_by(&self, ghz: &Ghz, dir: &Path, report: &mut Report) -> Result<(), String> {
        report.peer("ghz", ghz.version()?);
        let mut side =
            Contenders::start((dir, &self.program), WireProtocol::Grpc, &self.with(&[Contender::Envoy]))
                .await?;
        let found = side.called_by(ghz, self.scale).await?;
        self.ratio(report, ("ghz_cpu_vs_envoy", Some(0.5)), (&found, Contender::Envoy), |_| true);
        Ok(())
    }

    /// Fairmesh, and the available ones among `peers`.
    fn with(&self, peers: &[Contender]) -> Vec<Contender> {
        let has = |peer: &&Contender| !self.missing.iter().any(|(missing, _)| missing == *peer);
        [Contender::Fairmesh].iter().chain(peers.iter().filter(has)).copied().collect()
    }
}

/// Proxies in front of the same endpoints.
struct Contenders {
    spoken: WireProtocol,
    proxies: Vec<(Contender, Proxy)>,
    /// Endpoints and callers.
    ends: RoleProcess,
}

/// p99 of each side in one round, in nanoseconds: first ours, then all sides a second time.
type Turns = Vec<(Contender, u64)>;

impl Contenders {
    /// Starts the proxies in `dir`; `program` is the Fairmesh binary.
    async fn start(
        (dir, program): (&Path, &Path),
        spoken: WireProtocol,
        who: &[Contender],
    ) -> Result<Self, String> {
        let protocol = spoken.to_string();
        let (ends, addresses) = RoleProcess::start(dir, &["load-pair", "--protocol", &protocol]).await?;
        let addresses: Vec<SocketAddr> = addresses.split(',').filter_map(|text| text.parse().ok()).collect();
        let [a, b] = addresses[..] else { return Err("there are no two endpoints".into()) };
        let mut proxies = Vec::new();
        for who in who {
            proxies.push((*who, who.start((dir, program), spoken, [a, b]).await?));
        }
        Ok(Self { spoken, proxies, ends })
    }

    /// Prepares callers for each proxy, with `connections` connections each if the protocol multiplexes.
    async fn callers(&mut self, body: usize, connections: usize) -> Result<(), String> {
        let to: Vec<_> = self.proxies.iter().map(|(_, proxy)| proxy.address.to_string()).collect();
        self.ends.prepare(format!("call {body} {connections} {}", to.join(","))).await
    }

    /// Closed loop: `at_once` callers of this side, each of which calls again as soon as it has the response.
    async fn closed(&mut self, side: usize, at_once: usize, length: Duration) -> Result<Run, String> {
        self.ends.run(format!("closed {side} {} {at_once}", length.as_millis()), length).await
    }

    /// Open loop: `rate` calls of this side per second.
    async fn open(&mut self, side: usize, rate: u64, length: Duration) -> Result<Latencies, String> {
        self.ends.run(format!("open {side} {} {rate}", length.as_millis()), length).await
    }

    async fn http1(&mut self, scale: Scale) -> Result<Results, String> {
        let pass = async |all: &mut Self, found: &mut Results| {
            for body in [FLOOR.1].into_iter().chain(BODIES) {
                all.callers(body, 1).await?;
                for &connections in scale.connections(body) {
                    all.closed_rounds(found.cell((connections, body)), connections, scale).await?;
                }
            }
            Ok(())
        };
        let mut found = self.passes(&self.spoken.to_string(), scale.passes, pass).await?;
        found.rss = self.proxies.iter().map(|(who, proxy)| (*who, proxy.process.rss_bytes())).collect();
        Ok(found)
    }

    async fn multiplexed(&mut self, scale: Scale) -> Result<Results, String> {
        let (connections, callers_at_once) = MULTIPLEXED;
        let pass = async |all: &mut Self, found: &mut Results| {
            for body in [0, USUAL, SMALL] {
                all.callers(body, connections).await?;
                all.closed_rounds(found.cell((connections, body)), callers_at_once, scale).await?;
            }
            Ok(())
        };
        self.passes(&self.spoken.to_string(), scale.passes, pass).await
    }

    async fn called_by(&mut self, ghz: &Ghz, scale: Scale) -> Result<Results, String> {
        let (passes, rounds, calls) = scale.ghz;
        let pass = async |all: &mut Self, found: &mut Results| {
            for body in [0, USUAL, SMALL] {
                let call = async |all: &mut Self, side: usize| {
                    ghz.calls(all.proxies[side].1.address, body, calls).await
                };
                all.rounds(found.cell((MULTIPLEXED.0, body)), rounds, call).await?;
            }
            Ok(())
        };
        self.passes("ghz", passes, pass).await
    }

    /// Runs all settings `passes` times, and prints the results, even after a failure.
    async fn passes(
        &mut self,
        name: &str,
        passes: usize,
        pass: impl AsyncFn(&mut Self, &mut Results) -> Result<(), String>,
    ) -> Result<Results, String> {
        let mut found = Results::default();
        let mut done = Ok(());
        for number in 1..=passes {
            eprintln!("{name}: pass {number} of {passes}");
            done = pass(self, &mut found).await;
            if done.is_err() {
                break;
            }
        }
        found.show(name);
        done.map(|()| found)
    }

    /// Runs closed-loop rounds with `at_once` concurrent calls.
    async fn closed_rounds(&mut self, cell: &mut Cell, at_once: usize, scale: Scale) -> Result<(), String> {
        self.rounds(cell, scale.rounds, async |all, side| all.closed(side, at_once, scale.slice).await).await
    }

    /// Calls every side in turn, round by round, and appends the results.
    async fn rounds(
        &mut self,
        cell: &mut Cell,
        rounds: usize,
        call: impl AsyncFn(&mut Self, usize) -> Result<Run, String>,
    ) -> Result<(), String> {
        if cell.is_empty() {
            *cell = self.proxies.iter().map(|(who, _)| (*who, Runs::default())).collect();
        }
        let sides = cell.len();
        let before = cell.first().map_or(0, |(_, runs)| runs.cpu.len());
        for round in 0..=rounds {
            for side in order(before + round, sides) {
                let began = self.proxies[side].1.process.cpu_ns();
                let run = call(self, side).await.map_err(|why| format!("{}: {why}", cell[side].0))?;
                let cpu = self.proxies[side].1.process.cpu_ns().saturating_sub(began);
                let calls = run.calls.max(1) as f64;
                // The first round is a warm-up.
                if round > 0 {
                    cell[side].1.cpu.push(cpu as f64 / calls);
                    cell[side].1.rate.push(calls * 1e9 / run.wall_ns as f64);
                }
            }
        }
        Ok(())
    }

    /// p99 of all sides at half of the slowest side's maximum rate.
    async fn latency(&mut self, scale: Scale) -> Result<(u64, Vec<Turns>), String> {
        self.callers(USUAL, 1).await?;
        let mut peak = Cell::new();
        self.closed_rounds(&mut peak, MANY, Scale { rounds: 5, ..scale }).await?;
        let slowest = peak.iter().map(|(_, runs)| median(&runs.rate)).fold(f64::INFINITY, f64::min);
        let rate = (slowest / 2.0) as u64;
        let mut rounds = Vec::new();
        for round in 0..scale.turns {
            let mut turns = Vec::new();
            // Our result is stored first, wherever it was in the round. A second measurement of each side shows the
            // noise.
            let sides = self.proxies.len();
            for turn in 0..=sides {
                let side = (turn + round) % (sides + 1);
                let seen = Seen::of(&self.open(side.saturating_sub(1), rate, TURN).await?);
                turns.push((side, seen.p99));
            }
            turns.sort_unstable_by_key(|(side, _)| *side);
            let who = |side: usize| self.proxies[side.saturating_sub(1)].0;
            rounds.push(turns.into_iter().map(|(side, p99)| (who(side), p99)).collect());
        }
        Ok((rate, rounds))
    }
}

/// The order of sides in a round. The first side and the direction change, so that neither a machine that slows down
/// nor caches left by the previous side always affect the same side.
pub(crate) fn order(round: usize, sides: usize) -> impl Iterator<Item = usize> {
    let forth = round.is_multiple_of(2);
    (0..sides).map(move |turn| (round + if forth { turn } else { sides - turn }) % sides)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_compared_proxy_goes_first_in_equally_many_rounds() {
        for sides in [2, 3, 6] {
            let rounds: Vec<Vec<usize>> = (0..2 * sides).map(|round| order(round, sides).collect()).collect();
            for side in 0..sides {
                assert!(rounds.iter().all(|round| round.contains(&side)), "{rounds:?}");
                assert_eq!(rounds.iter().filter(|round| round[0] == side).count(), 2, "{rounds:?}");
            }
            let follows =
                |a: usize, b: usize| rounds.iter().any(|round| round.windows(2).any(|two| two == [a, b]));
            assert!(follows(0, 1) && follows(1, 0), "{rounds:?}");
        }
    }
}
