//! A chain of services on one machine. Each is a process that calls the next one before it responds. Measures latency
//! at a fixed rate.

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
};

/// Number of services in the chain.
const LENGTH: usize = 9;
/// Concurrent calls during warm-up, and while finding the fixed rate.
const TASKS: usize = 4;
const FIGURE: &str = "chain9_latency_vs_direct";
/// Goal: p50 relative to no mesh.
const GOAL: f64 = 1.1;

/// Results.
struct Found {
    /// Calls of the whole chain per second.
    rate: u64,
    /// p50 and p99 of each side in nanoseconds; the last entry is a second run without a mesh.
    turns: Vec<[[f64; 2]; 4]>,
    /// Shares of the kernel side's requests that the kernel sent, and whose responses it sent, too.
    by_kernel: f64,
    answered: f64,
}

/// The processes of the chain.
struct Chain<'a> {
    attached: &'a Attached,
    mesh: Mesh,
    /// The caller of the first service, and all services.
    links: &'a mut Vec<RoleProcess>,
}

/// Runs the measurement.
pub(super) async fn run(report: &mut Report, turns: usize) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let Some(attached) = Attached::or_unmeasured(report, FIGURE) else { return Ok(()) };
    let mut links = Vec::new();
    let found = interruptible(measure(dir.path(), &attached, &mut links, turns)).await;
    end_all(links).await;
    tell(report, &found?);
    Ok(())
}

fn tell(report: &mut Report, found: &Found) {
    let over = |pick: usize, other: usize| {
        let ratios = found.turns.iter().map(|turn| turn[Side::Kernel as usize][pick] / turn[other][pick]);
        Ratio::of(&ratios.collect::<Vec<_>>())
    };
    let us = |side: Side, pick: usize| {
        median(&found.turns.iter().map(|turn| turn[side as usize][pick]).collect::<Vec<_>>()) / 1e3
    };
    let again = Ratio::of(&found.turns.iter().map(|turn| turn[3][0] / turn[0][0]).collect::<Vec<_>>());
    for (name, pick) in [("", 0), ("p99_", 1)] {
        let all = format!(
            "kernel {:.0}, sidecar {:.0}, no mesh {:.0} µs",
            us(Side::Kernel, pick),
            us(Side::Sidecar, pick),
            us(Side::Direct, pick)
        );
        let (direct, sidecar) = (over(pick, Side::Direct as usize), over(pick, Side::Sidecar as usize));
        let note =
            format!("{direct} at {} calls a second; {all}; p50 of no mesh over itself {again}", found.rate);
        report.figure(
            format!("chain9_{name}latency_vs_direct"),
            direct.mean,
            (pick == 0).then_some(GOAL),
            note,
        );
        report.figure(format!("chain9_{name}latency_vs_sidecar"), sidecar.mean, None, sidecar.to_string());
    }
    let share = "of the requests of the kernel's side, those that it sent";
    report.figure("chain9_sent_by_kernel", found.by_kernel, None, share);
    let share = "of these requests, those whose responses it sent to the callers";
    report.figure("chain9_answered_by_kernel", found.answered, None, share);
}

async fn measure(
    dir: &Path,
    attached: &Attached,
    links: &mut Vec<RoleProcess>,
    turns: usize,
) -> Result<Found, String> {
    let mut services = Vec::new();
    for at in 0..=LENGTH {
        let (link, address) = RoleProcess::start(dir, &["chain", "--cgroup", &attached.cgroup]).await?;
        links.push(link);
        services.push((format!("bench/link-{at}"), address));
    }
    let mesh = Mesh::start(dir, attached, &services[1..], None).await?;
    for at in 0..LENGTH {
        let (direct, sidecar) = (&services[at + 1].1, mesh.sidecars[at]);
        let next = format!("next link-{}.bench {BODY} {direct},{sidecar},{}", at + 1, attached.address);
        links[at].prepare(next).await?;
    }
    Chain { attached, mesh, links }.measure(turns).await
}

impl Chain<'_> {
    async fn measure(mut self, turns: usize) -> Result<Found, String> {
        // Services are published after their first calls, and then get as many connections as calls need.
        let mut slowest = f64::INFINITY;
        for _ in 0..3 {
            sleep(REST).await;
            slowest = f64::INFINITY;
            for side in Side::ALL {
                let run = self.closed(side).await?;
                slowest = slowest.min(run.calls as f64 * 1e9 / run.wall_ns as f64);
            }
        }
        let rate = ((slowest / 2.0) as u64).max(1);
        eprintln!(
            "kernel: a chain of {LENGTH} services at {rate} calls a second, {} proxies",
            self.mesh.proxies().len()
        );
        let (mut found, mut counted) = (Vec::new(), [0, 0, 0]);
        for round in 0..turns {
            let mut turn = [[0.0; 2]; 4];
            for at in order(round, turn.len()) {
                let side = if at == 3 { Side::Direct as usize } else { at };
                let before = [self.attached.sent()?, self.attached.answered()?];
                let call = format!("open {side} {} {rate}", TURN.as_millis());
                let seen: Latencies = self.links[0].run(call, TURN).await?;
                let seen = Seen::of(&seen);
                turn[at] = [seen.p50 as f64, seen.p99 as f64];
                if side == Side::Kernel as usize {
                    counted[0] += self.attached.sent()? - before[0];
                    counted[1] += self.attached.answered()? - before[1];
                    counted[2] += seen.calls * LENGTH as u64;
                }
            }
            found.push(turn);
        }
        let share = |count: u64| count as f64 / counted[2].max(1) as f64;
        Ok(Found { rate, turns: found, by_kernel: share(counted[0]), answered: share(counted[1]) })
    }

    async fn closed(&mut self, side: Side) -> Result<Run, String> {
        let call = format!("closed {} {} {TASKS}", side as usize, TURN.as_millis());
        self.links[0].run(call, TURN).await
    }
}
