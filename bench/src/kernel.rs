//! `bench/run kernel`: what a request costs that the kernel sends, beside the same through the sidecar, and without a mesh.
//!
//! Callers and endpoints are those of `proxy`, in a cgroup of their own, and one proxy is behind both: a listener of the service is the
//! sidecar, and a virtual address leads to that of the kernel form. CPU is that of callers, endpoints and proxy together, with the
//! kernel's part in them: what the kernel takes over from the proxy, it does in the callers' own time.

mod attached;
mod sides;

use std::{error::Error, time::Duration};

use crate::{
    proxy::results::median,
    ratio::{Median, Ratio},
    report::Report,
};
use attached::Attached;
use sides::{Found, Setting, Side, Sides};

/// Numbers of connections.
const CONNECTIONS: [usize; 2] = [16, 64];
/// CPU over the sidecar's.
const GOAL: f64 = 0.9;
/// The share of requests of the kernel's side that it sends with 16 connections: those that find no idle connection go to the sidecar.
const LEAST_SHARE: f64 = 0.95;

/// How much is done.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Of closed-loop load in each setting, besides one to warm up.
    rounds: usize,
    /// How long each side is called in one of those.
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

/// Measures.
pub(crate) fn run(quick: bool) -> Result<Report, Box<dyn Error>> {
    let mut report = Report::new("kernel");
    let dir = tempfile::tempdir()?;
    match Attached::new() {
        Ok(attached) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let measured = Sides::measure(dir.path(), &attached, Scale::new(quick));
            tell(&mut report, &runtime.block_on(measured)?);
        }
        Err(why) => report.unmeasured("cpu_vs_sidecar_remote_c16", why),
    }
    Ok(report)
}

fn tell(report: &mut Report, found: &Found) {
    for setting in &found.settings {
        tell_cpu(report, setting);
    }
    for (name, pick) in [("p50_vs_sidecar", 0), ("p99_vs_sidecar", 1)] {
        let over = |side: usize| {
            Ratio::of(&found.turns.iter().map(|turn| turn[2][pick] / turn[side][pick]).collect::<Vec<_>>())
        };
        // The sidecar takes its turn twice.
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
        // What lies within the bounds of both is noise.
        report.figure(name, ratio.mean, Some(ratio.within.max(noise.within)), note);
    }
}

fn tell_cpu(report: &mut Report, setting: &Setting) {
    let Setting { connections, runs, by_kernel } = setting;
    let [direct, sidecar, kernel] = Side::ALL.map(|side| &runs[side as usize]);
    let shown = |side: &Vec<(f64, f64)>| {
        let each = |pick: fn(&(f64, f64)) -> f64| median(&side.iter().map(pick).collect::<Vec<_>>());
        format!("{:.1} µs {:.0}/s", each(|run| run.0) / 1e3, each(|run| run.1))
    };
    let all = format!("kernel {}, sidecar {}, no mesh {}", shown(kernel), shown(sidecar), shown(direct));
    for (name, other, goal) in [("sidecar", sidecar, Some(GOAL)), ("direct", direct, None)] {
        let ratios: Vec<f64> = kernel.iter().zip(other).map(|(ours, theirs)| ours.0 / theirs.0).collect();
        let name = format!("cpu_vs_{name}_remote_c{connections}");
        match Median::of(&ratios) {
            Some(ratio) => report.figure(name, ratio.value, goal, format!("{ratio}; {all}")),
            None => report.unmeasured(name, "no round was measured"),
        }
    }
    let name = format!("by_kernel_c{connections}");
    let note = "of the requests of the kernel's side, those that it sent";
    match *connections {
        16 => report.figure_at_least(name, *by_kernel, LEAST_SHARE, note),
        _ => report.figure(name, *by_kernel, None, note),
    }
}
