//! A caller with a low rate next to one that calls as fast as it can, on one machine and through one proxy.

use std::path::Path;

use tokio::time::sleep;

use super::{
    Attached, end_all, interruptible,
    mesh::Mesh,
    request_paths::{BODY, REST, Side, TURN},
};
use crate::{
    load_generator::{Latencies, Run, Seen},
    paired_ratio::Ratio,
    proxy::{order, results::median},
    report::Report,
    role_process::RoleProcess,
    roles::{CALLERS, MEASURED},
};

/// Calls per second of the quiet caller.
const RATE: u64 = 1000;
/// Number of connections of the noisy caller.
const NOISY: usize = 64;
const FIGURE: &str = "interference_p99_kernel";

/// Results of each side, by round.
#[derive(Default)]
struct Found {
    /// p50 and p99 of the quiet caller in nanoseconds: alone, and next to the noisy caller.
    alone: [Vec<[f64; 2]>; 3],
    beside: [Vec<[f64; 2]>; 3],
    /// Calls per second of the noisy caller.
    noise: [Vec<f64>; 3],
}

/// Runs the measurement.
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
    // The quiet caller shares the processor of the proxy, where work that the noisy caller causes gets in its way.
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
    // The first round is a warm-up.
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
