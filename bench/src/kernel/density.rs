//! Many callers on one machine, each with its own connection and rare calls: memory and CPU.

use std::{path::Path, time::Duration};

use tokio::time::sleep;

use super::{
    Attached, end_all, interruptible,
    mesh::Mesh,
    request_paths::{BODY, REST, Side},
};
use crate::{
    load_generator::Run,
    paired_ratio::Median,
    proxy::{order, results::median},
    report::Report,
    role_process::RoleProcess,
};

const CALLERS: usize = 300;
/// Calls per second of all callers together.
const RATE: u64 = 1500;
const SERVICE: &str = "bench/http1";
/// Duration for which a side is called in one round.
const SLICE: Duration = Duration::from_millis(600);
const FIGURE: &str = "density300_cpu_vs_sidecar";

/// Results.
struct Found {
    /// CPU of a request in nanoseconds, of callers, endpoints and proxy together, by side.
    cpu: [Vec<f64>; 3],
    /// CPU of a request in the proxy alone, by side.
    proxy_cpu: [Vec<f64>; 3],
    /// Memory growth caused by the callers, in bytes: of the kernel form's proxy, and of the sidecar.
    grown: [u64; 2],
    /// Bytes of BPF maps, without and with callers.
    maps: [u64; 2],
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
    let us = |all: &[Vec<f64>; 3], side: Side| median(&all[side as usize]) / 1e3;
    let [kernel, sidecar, direct] = [Side::Kernel, Side::Sidecar, Side::Direct];
    for (name, other) in [("sidecar", sidecar), ("direct", direct)] {
        let pairs = found.cpu[kernel as usize].iter().zip(&found.cpu[other as usize]);
        let ratios: Vec<f64> = pairs.map(|(ours, theirs)| ours / theirs).collect();
        let name = format!("density300_cpu_vs_{name}");
        let Some(ratio) = Median::of(&ratios) else {
            report.unmeasured(name, "no round was measured");
            continue;
        };
        let note = format!(
            "{ratio} at {RATE} requests a second; kernel {:.1}, sidecar {:.1}, no mesh {:.1} µs; of the proxy {:.1}, {:.1}",
            us(&found.cpu, kernel),
            us(&found.cpu, sidecar),
            us(&found.cpu, direct),
            us(&found.proxy_cpu, kernel),
            us(&found.proxy_cpu, sidecar)
        );
        report.figure(name, ratio.value, None, note);
    }
    let kb = |bytes: u64| bytes as f64 / 1024.0 / CALLERS as f64;
    let maps = found.maps.map(|bytes| bytes as f64 / f64::from(1 << 20));
    let note = format!(
        "KB of the proxy for a caller, which the kernel adds 4 to; maps for all {:.1} MB, {:.1} without callers",
        maps[1], maps[0]
    );
    report.figure("density300_kb_kernel", kb(found.grown[0]), None, note);
    report.figure("density300_kb_sidecar", kb(found.grown[1]), None, "KB of the sidecar for a caller");
}

async fn measure(
    dir: &Path,
    attached: &Attached,
    ends: &mut Vec<RoleProcess>,
    rounds: usize,
) -> Result<Found, String> {
    let args = ["load-pair", "--protocol", "http1", "--cgroup", &attached.cgroup];
    let (servers, endpoints) = RoleProcess::start(dir, &args).await?;
    ends.push(servers);
    let mut mesh = Mesh::start(dir, attached, &[(SERVICE.to_owned(), endpoints.clone())], None).await?;
    let sidecar = mesh.add_sidecar(dir, "sidecar", SERVICE).await?;
    let direct = endpoints.split(',').next().unwrap_or_default();
    let addresses = [direct.to_owned(), sidecar.to_string(), attached.address.to_string()];
    // Start with a few callers, so that one-time allocations do not count.
    for address in &addresses {
        call(&mut ends[0], &[address, address]).await?;
        sleep(REST).await;
    }
    let before = [mesh.proxies()[0].rss_bytes(), mesh.proxies()[1].rss_bytes()];
    let maps = attached.map_bytes()?;
    let mut callers = Vec::new();
    for address in &addresses {
        // The endpoints of these processes are unused.
        let (mut caller, _) = RoleProcess::start(dir, &args).await?;
        let made = call(&mut caller, &[address; CALLERS]).await;
        callers.push(caller);
        made?;
    }
    ends.append(&mut callers);
    let mut found =
        Found { cpu: Default::default(), proxy_cpu: Default::default(), grown: [0; 2], maps: [maps, 0] };
    // The first round is a warm-up.
    for round in 0..=rounds {
        for side in order(round, Side::ALL.len()) {
            let (cpu, proxy_cpu) = paced(&mesh, ends, side).await?;
            if round > 0 {
                found.cpu[side].push(cpu);
                found.proxy_cpu[side].push(proxy_cpu);
            }
        }
    }
    for (at, proxy) in mesh.proxies().iter().enumerate() {
        found.grown[at] = proxy.rss_bytes().saturating_sub(before[at]);
    }
    found.maps[1] = attached.map_bytes()?;
    Ok(found)
}

/// Lets `callers` call each of these addresses once.
async fn call(callers: &mut RoleProcess, addresses: &[&String]) -> Result<(), String> {
    let addresses: Vec<&str> = addresses.iter().map(|address| address.as_str()).collect();
    callers.prepare(format!("call {BODY} 1 {}", addresses.join(","))).await
}

/// Lets the callers of a side call for a while. Returns CPU of a request in nanoseconds: of everything, and of the
/// proxies.
async fn paced(mesh: &Mesh, ends: &mut [RoleProcess], side: usize) -> Result<(f64, f64), String> {
    let endpoints = ends[0].cpu()?;
    let proxies = mesh.cpu_ns();
    let run: Run = ends[side + 1].run(format!("paced {} {RATE}", SLICE.as_millis()), SLICE).await?;
    let proxies = mesh.cpu_ns().saturating_sub(proxies) as f64;
    let all = proxies + ends[0].cpu()?.saturating_sub(endpoints) as f64 + run.cpu_ns as f64;
    let calls = run.calls.max(1) as f64;
    Ok((all / calls, proxies / calls))
}
