//! `bench/run kernel`: cost of a request that the kernel sends, compared with the sidecar and with no mesh.
//!
//! Callers and endpoints are those of `proxy`, in a cgroup of their own. One proxy serves both ways: its listener for
//! the service is the sidecar, and the virtual address leads to the kernel form. CPU is the sum of callers, endpoints
//! and proxy including kernel time, because work that the kernel takes over from the proxy runs in the callers' own
//! time.

mod attached_cgroup;
mod chain;
mod density;
mod interference;
mod mesh;
mod request_paths;
mod secure;

use std::{error::Error, time::Duration};

use clap::{Args, ValueEnum};
use tokio::signal::ctrl_c;

use crate::{
    Common,
    paired_ratio::{Median, Ratio},
    proxy::results::median,
    report::Report,
    role_process::RoleProcess,
};
use attached_cgroup::Attached;
use request_paths::{Found, Setting, Side, Sides};

/// Options of `kernel`.
#[derive(Debug, Args)]
pub(crate) struct KernelArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Run only this part [default: all].
    #[arg(long)]
    part: Option<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// CPU and latency of a request.
    Requests,
    /// CPU of a request through the sidecar, with and without the short cut.
    ShortCut,
    /// Latency of a chain of nine services.
    Chain,
    /// Memory and CPU of 300 callers.
    Density,
    /// Latency of a slow caller next to one that calls as fast as it can.
    Interference,
    /// CPU of a request in a mesh with a trust domain.
    Secure,
}

/// Numbers of connections.
const CONNECTIONS: [usize; 2] = [16, 64];
/// Minimum share of requests sent by the kernel on its side, with 16 connections. Requests that find no idle connection
/// go to the sidecar.
const LEAST_SHARE: f64 = 0.95;

/// Location of the endpoints, as seen by the BPF programs.
struct Place {
    name: &'static str,
    /// Whether the BPF programs are attached to the endpoints too.
    is_local: bool,
    /// Goals for the CPU ratio to the sidecar and to no mesh.
    goals: [Option<f64>; 2],
}

const PLACES: [Place; 2] = [
    Place { name: "remote", is_local: false, goals: [Some(0.9), None] },
    Place { name: "local", is_local: true, goals: [Some(0.5), Some(1.15)] },
];

/// Durations and repetitions.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Rounds of closed-loop load in each setting, not counting a warm-up round.
    rounds: usize,
    /// Duration for which each side is called in such a round.
    slice: Duration,
    /// Rounds of open-loop load.
    turns: usize,
}

impl Scale {
    fn new(quick: bool) -> Self {
        match quick {
            true => Self { rounds: 9, slice: Duration::from_millis(150), turns: 12 },
            false => Self { rounds: 50, slice: Duration::from_millis(150), turns: 100 },
        }
    }
}

/// Figure and goal: CPU of a request through the sidecar, with the short cut on both sides, relative to without.
const SHORT_CUT: (&str, f64) = ("cpu_short_cut", 0.75);

/// Runs the benchmark.
pub(crate) fn run(args: &KernelArgs) -> Result<Report, Box<dyn Error>> {
    let mut report = Report::new("kernel");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (quick, wanted) = (args.common.quick, |part| args.part.is_none_or(|only| only == part));
    let rounds = if quick { 12 } else { 60 };
    if wanted(Part::Requests) {
        runtime.block_on(requests(&mut report, Scale::new(quick)))?;
    }
    if wanted(Part::ShortCut) {
        runtime.block_on(short_cut(&mut report, Scale::new(quick)))?;
    }
    if wanted(Part::Chain) {
        runtime.block_on(chain::run(&mut report, rounds))?;
    }
    if wanted(Part::Density) {
        runtime.block_on(density::run(&mut report, rounds / 3))?;
    }
    if wanted(Part::Interference) {
        runtime.block_on(interference::run(&mut report, rounds))?;
    }
    if wanted(Part::Secure) {
        runtime.block_on(secure::run(&mut report, Scale::new(quick)))?;
    }
    Ok(report)
}

async fn requests(report: &mut Report, scale: Scale) -> Result<(), Box<dyn Error>> {
    for place in &PLACES {
        let dir = tempfile::tempdir()?;
        match Attached::new(place.is_local) {
            Ok(attached) => {
                tell(report, place, &Sides::measure(dir.path(), &attached, None, scale).await?);
            }
            Err(why) => report.unmeasured(format!("cpu_vs_sidecar_{}_c16", place.name), why),
        }
    }
    Ok(())
}

async fn short_cut(report: &mut Report, scale: Scale) -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    match Attached::new(true).and_then(|attached| Ok((attached, Attached::by_tcp()?))) {
        Ok((attached, by_tcp)) => {
            let scale = Scale { turns: 0, ..scale };
            let found = Sides::measure(dir.path(), &attached, Some(&by_tcp), scale).await?;
            tell_short_cut(report, &found, attached.short_cuts()?);
        }
        Err(why) => report.unmeasured(SHORT_CUT.0, why),
    }
    Ok(())
}

/// Turns an interrupt into an error like any other, so that the processes in the cgroup are ended in this case, too.
async fn interruptible<T>(measured: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    tokio::select! {
        found = measured => found,
        _ = ctrl_c() => Err("interrupted".to_owned()),
    }
}

async fn end_all(processes: Vec<RoleProcess>) {
    for process in processes {
        process.end().await;
    }
}

/// Reports the short cut. `taken` holds the numbers of requests that took the short cut to endpoints, of responses
/// back, and of responses to callers.
fn tell_short_cut(report: &mut Report, found: &Found, taken: [u64; 3]) {
    for Setting { connections, runs: [_, by_tcp, short], .. } in &found.settings {
        let ratios: Vec<f64> = short.iter().zip(by_tcp).map(|(ours, theirs)| ours.0 / theirs.0).collect();
        let name = format!("{}_c{connections}", SHORT_CUT.0);
        match Median::of(&ratios) {
            Some(ratio) => {
                let us =
                    |side: &[(f64, f64)]| median(&side.iter().map(|run| run.0).collect::<Vec<_>>()) / 1e3;
                let note = format!(
                    "{ratio}, {:.1} over {:.1} µs; {} requests took it to endpoints, {} responses back and {} to callers; both sides through the kernel form's listener",
                    us(short),
                    us(by_tcp),
                    taken[0],
                    taken[1],
                    taken[2]
                );
                report.figure(name, ratio.value, Some(SHORT_CUT.1), note);
            }
            None => report.unmeasured(name, "no round was measured"),
        }
    }
}

fn tell(report: &mut Report, place: &Place, found: &Found) {
    for setting in &found.settings {
        tell_cpu(report, place, setting);
    }
    for (name, pick) in [("p50_vs_sidecar", 0), ("p99_vs_sidecar", 1)] {
        let over = |side: usize| {
            Ratio::of(&found.turns.iter().map(|turn| turn[2][pick] / turn[side][pick]).collect::<Vec<_>>())
        };
        // The sidecar is measured twice per round, to show the noise.
        let noise = found.turns.iter().map(|turn| turn[3][pick] / turn[1][pick]).collect::<Vec<_>>();
        let (ratio, noise) = (over(1), Ratio::of(&noise));
        let us =
            |side: usize| median(&found.turns.iter().map(|turn| turn[side][pick]).collect::<Vec<_>>()) / 1e3;
        let note = format!(
            "at {} requests a second: {ratio}; the sidecar over itself {noise}; kernel {:.0}, sidecar {:.0}, no mesh {:.0} µs",
            found.rate,
            us(2),
            us(1),
            us(0)
        );
        // A difference within the confidence bounds of both is noise.
        let name = format!("{name}_{}", place.name);
        report.figure(name, ratio.mean, Some(ratio.within.max(noise.within)), note);
    }
}

fn tell_cpu(report: &mut Report, place: &Place, setting: &Setting) {
    let Setting { connections, runs, by_kernel, answered } = setting;
    let [direct, sidecar, kernel] = Side::ALL.map(|side| &runs[side as usize]);
    let shown = |side: &Vec<(f64, f64)>| {
        let each = |pick: fn(&(f64, f64)) -> f64| median(&side.iter().map(pick).collect::<Vec<_>>());
        format!("{:.1} µs {:.0}/s", each(|run| run.0) / 1e3, each(|run| run.1))
    };
    let all = format!("kernel {}, sidecar {}, no mesh {}", shown(kernel), shown(sidecar), shown(direct));
    for ((name, other), goal) in [("sidecar", sidecar), ("direct", direct)].into_iter().zip(place.goals) {
        let ratios: Vec<f64> = kernel.iter().zip(other).map(|(ours, theirs)| ours.0 / theirs.0).collect();
        let name = format!("cpu_vs_{name}_{}_c{connections}", place.name);
        match Median::of(&ratios) {
            Some(ratio) => report.figure(name, ratio.value, goal, format!("{ratio}; {all}")),
            None => report.unmeasured(name, "no round was measured"),
        }
    }
    let shares = [
        ("sent", *by_kernel, "of the requests of the kernel's side, those that it sent"),
        ("answered", *answered, "of these requests, those whose responses it sent to the callers"),
    ];
    for (what, share, note) in shares.into_iter().take(1 + usize::from(place.is_local)) {
        let name = format!("{what}_by_kernel_{}_c{connections}", place.name);
        match *connections {
            16 => report.figure_at_least(name, share, LEAST_SHARE, note),
            _ => report.figure(name, share, None, note),
        }
    }
}
