//! A caller that calls at a low rate, beside one that calls as fast as it can, on one machine and through one proxy.

use std::path::Path;

use tokio::time::sleep;

use super::{
    Attached, end_all, interruptible,
    mesh::Mesh,
    sides::{BODY, REST, Side, TURN},
};
use crate::{
    load::{Latencies, Run, Seen},
    proxy::{order, results::median},
    ratio::Ratio,
    report::Report,
    role_process::RoleProcess,
    roles::{CALLERS, MEASURED},
};

/// Calls of the quiet caller a second.
const RATE: u64 = 1000;
/// Connections of the other one.
const NOISY: usize = 64;
const FIGURE: &str = "interference_p99_kernel";

/// What was found of each side, round by round.
#[derive(Default)]
struct Found {
    /// p50 and p99 of the quiet caller alone, and beside the other one, in nanoseconds.
    alone: [Vec<[f64; 2]>; 3],
    beside: [Vec<[f64; 2]>; 3],
    /// Calls of the other one a second.
    noise: [Vec<f64>; 3],
}

/// Measures it.
pub(super) async fn run(report: &mut Report, rounds: usize) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let Some(attached) = Attached::or_unmeasured(report, FIGURE) else { return Ok(()) };
    let mut ends = Vec::new();
    let found = interruptible(measure(dir.path(), &attached, &mut ends, rounds)).await;
    end_all(ends).await;
    tell(report, &found?);
    Ok(())
}

fn tell(report: &mut Report, found: &Found) {
    for (percentile, pick) in [("p50", 0), ("p99", 1)] {
        for (name, side) in [("kernel", Side::Kernel), ("sidecar", Side::Sidecar), ("direct", Side::Direct)] {
            let (alone, beside) = (&found.alone[side as usize], &found.beside[side as usize]);
            let ratios = beside.iter().zip(alone).map(|(beside, alone)| beside[pick] / alone[pick]);
            let ratio = Ratio::of(&ratios.collect::<Vec<_>>());
            let us = |all: &[[f64; 2]]| median(&all.iter().map(|one| one[pick]).collect::<Vec<_>>()) / 1e3;
            let note = format!(
                "{ratio} of the quiet caller's alone, at {RATE} calls a second: {:.0} over {:.0} µs, beside {:.0} calls a second",
                us(beside),
                us(alone),
                median(&found.noise[side as usize])
            );
            report.figure(format!("interference_{percentile}_{name}"), ratio.mean, None, note);
        }
    }
}

async fn measure(
    dir: &Path,
    attached: &Attached,
    ends: &mut Vec<RoleProcess>,
    rounds: usize,
) -> Result<Found, String> {
    let mut services = Vec::new();
    // The quiet one has the processor of the proxy: what another caller has that do, it gets in the way of.
    for (name, processor) in [("quiet", MEASURED), ("noisy", CALLERS)] {
        let (host, processor) = (format!("{name}.bench"), processor.to_string());
        let args = ["load-pair", "--protocol", "http1", "--cgroup", &attached.cgroup];
        let args = [&args[..], &["--host", &host, "--processor", &processor]].concat();
        let (end, endpoints) = RoleProcess::start(dir, &args).await?;
        ends.push(end);
        services.push((format!("bench/{name}"), endpoints));
    }
    let mesh = Mesh::start(dir, attached, &services, None).await?;
    for _ in 0..2 {
        sleep(REST).await;
        for (at, end) in ends.iter_mut().enumerate() {
            let direct = services[at].1.split(',').next().unwrap_or_default();
            let to = format!("{direct},{},{}", mesh.sidecars[at], attached.address);
            end.prepare(format!("call {BODY} 1 {to}")).await?;
        }
    }
    let [quiet, noisy] = &mut ends[..] else { return Err("two processes call".into()) };
    let mut found = Found::default();
    // The first round warms up.
    for round in 0..=rounds {
        for side in order(round, Side::ALL.len()) {
            let open = format!("open {side} {} {RATE}", TURN.as_millis());
            let alone: Latencies = quiet.run(open.clone(), TURN).await?;
            let closed = format!("closed {side} {} {NOISY}", TURN.as_millis());
            let (beside, noise) = tokio::join!(quiet.run(open, TURN), noisy.run(closed, TURN));
            let (beside, noise): (Latencies, Run) = (beside?, noise?);
            if round > 0 {
                found.alone[side].push(percentiles(&alone));
                found.beside[side].push(percentiles(&beside));
                found.noise[side].push(noise.calls as f64 * 1e9 / noise.wall_ns as f64);
            }
        }
    }
    Ok(found)
}

fn percentiles(seen: &Latencies) -> [f64; 2] {
    let seen = Seen::of(seen);
    [seen.p50 as f64, seen.p99 as f64]
}
