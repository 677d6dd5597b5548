//! Calls within a machine of a mesh with a trust domain: sent by two sidecars with mutual TLS between them, sent by the kernel in
//! their place, and sent by the kernel to a service in plaintext.

use std::{net::SocketAddr, path::Path};

use serde_json::json;
use tokio::time::sleep;

use super::{
    Attached, LEAST_SHARE, Scale, end_all, interruptible,
    request_paths::{BODY, REST},
};
use crate::{
    load_generator::Run,
    mesh_processes::{ControlPlane, port, start_agent},
    paired_ratio::Median,
    proxy::{contenders::passes_on, order, process::Process, results::median},
    report::Report,
    role_process::RoleProcess,
    tls::certificate_authority::DOMAIN,
};

/// Services with mutual TLS and in plaintext, and the hosts that name them.
const STRICT: (&str, &str) = ("bench/http1", "http1.bench");
const PLAIN: (&str, &str) = ("bench/plain", "plain.bench");
/// The identity of the callers' proxy.
const CALLER: &str = "bench/web";
const CONNECTIONS: usize = 16;
const REGION: &str = "bench";
const FIGURE: &str = "cpu_vs_mtls_sidecars";

/// Path of a request.
#[derive(Clone, Copy, Debug)]
enum Way {
    Sidecars,
    Kernel,
    PlainKernel,
}

const WAYS: [Way; 3] = [Way::Sidecars, Way::Kernel, Way::PlainKernel];

/// CPU of a request in nanoseconds, by way and round, and the share of requests that the kernel sent in place of mutual TLS.
struct Found {
    cpu: [Vec<f64>; 3],
    by_kernel: f64,
}

/// Runs the measurement.
pub(super) async fn run(report: &mut Report, scale: Scale) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let Some(attached) = Attached::or_unmeasured(report, FIGURE) else { return Ok(()) };
    let mut ends = Vec::new();
    let found = interruptible(measure(dir.path(), &attached, &mut ends, scale)).await;
    end_all(ends).await;
    tell(report, &found?);
    Ok(())
}

fn tell(report: &mut Report, found: &Found) {
    let us = |way: Way| median(&found.cpu[way as usize]) / 1e3;
    for (name, other, goal) in
        [(FIGURE, Way::Sidecars, 0.45), ("cpu_vs_plain_kernel", Way::PlainKernel, 1.05)]
    {
        let pairs = found.cpu[Way::Kernel as usize].iter().zip(&found.cpu[other as usize]);
        let ratios: Vec<f64> = pairs.map(|(ours, theirs)| ours / theirs).collect();
        match Median::of(&ratios) {
            Some(ratio) => {
                let note = format!("{ratio}, {:.1} over {:.1} µs", us(Way::Kernel), us(other));
                report.figure(name, ratio.value, Some(goal), note);
            }
            None => report.unmeasured(name, "no round was measured"),
        }
    }
    let note = "of the requests of the kernel's side, those that it sent in place of mutual TLS";
    report.figure_at_least("sent_by_kernel_strict", found.by_kernel, LEAST_SHARE, note);
}

/// The mesh. Dropping it ends its processes.
struct SecureMesh {
    proxies: Vec<Process>,
    /// Where the callers' sidecar listens for the service with mutual TLS.
    sidecar: SocketAddr,
    _agent: Process,
    _control: ControlPlane,
}

impl SecureMesh {
    /// Starts the mesh, with `register` in front of each endpoint of the service with mutual TLS.
    async fn start(dir: &Path, attached: &Attached, [strict, plain]: [&str; 2]) -> Result<Self, String> {
        let control = ControlPlane::start_with(dir, DOMAIN).await?;
        let mut documents = Vec::new();
        for ((service, _), mtls) in [(STRICT, "strict"), (PLAIN, "permissive")] {
            documents.push(json!({ "kind": "Service", "name": service, "protocol": "http1" }));
            documents.push(json!({
                "kind": "Policy", "service": service, "mtls": mtls,
                "routes": [{ "name": "all", "match": { "path": { "prefix": "/" } } }],
                "balancing": { "policy": "leastRequest" },
            }));
        }
        control.apply(&documents).await?;
        let (agent_process, agent) = start_agent(dir, &control, REGION, "agent.sock").await?;
        let mut proxies = Vec::new();
        for ((service, _), endpoints, options) in [(STRICT, strict, ""), (PLAIN, plain, " --plaintext")] {
            for (number, address) in endpoints.split(',').enumerate() {
                let instance = format!("{}-{number}", service.replace('/', "-"));
                let args = format!(
                    "register {service} --agent {agent} --instance {instance} --address {address} --protocol http1{options}"
                );
                proxies.push(pinned(dir, &instance, &args)?);
            }
        }
        let (sidecar, admin, kernel) = (port()?, port()?, port()?);
        let args = format!(
            "proxy --agent {agent} --admin {admin} --client-id bench --service {CALLER} --listen {sidecar}={} \
             --listen kernel:{kernel}+bpffs={}",
            STRICT.0,
            attached.pins().display()
        );
        let mut proxy = pinned(dir, "proxy", &args)?;
        let passes = async || passes_on(sidecar).await.unwrap_or(false);
        proxy.ready(passes).await.map_err(|why| format!("the proxy {why}"))?;
        proxies.push(proxy);
        Ok(Self { proxies, sidecar, _agent: agent_process, _control: control })
    }

    /// CPU time of the proxy and of all servers' fronts, in nanoseconds.
    fn cpu_ns(&self) -> u64 {
        self.proxies.iter().map(Process::cpu_ns).sum()
    }
}

/// Starts `fairmesh` on the processor of proxies.
fn pinned(dir: &Path, name: &str, args: &str) -> Result<Process, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?.with_file_name("fairmesh");
    let args: Vec<_> = args.split(' ').filter(|word| !word.is_empty()).collect();
    Process::pinned(dir, name, &program, &args)
}

async fn measure(
    dir: &Path,
    attached: &Attached,
    ends: &mut Vec<RoleProcess>,
    scale: Scale,
) -> Result<Found, String> {
    let mut endpoints = Vec::new();
    for (_, host) in [STRICT, PLAIN] {
        let args = ["load-pair", "--protocol", "http1", "--cgroup", &attached.cgroup, "--host", host];
        let (end, addresses) = RoleProcess::start(dir, &args).await?;
        ends.push(end);
        endpoints.push(addresses);
    }
    let [strict, plain] = &mut ends[..] else { return Err("two processes call".into()) };
    let mesh = SecureMesh::start(dir, attached, [&endpoints[0], &endpoints[1]]).await?;
    // The services are published after their first calls, and permits are there a moment later.
    for _ in 0..3 {
        sleep(REST).await;
        strict.prepare(format!("call {BODY} 1 {},{}", mesh.sidecar, attached.address)).await?;
        plain.prepare(format!("call {BODY} 1 {}", attached.address)).await?;
    }
    eprintln!("kernel: a mesh with a trust domain");
    let mut found = Found { cpu: [const { Vec::new() }; 3], by_kernel: 0.0 };
    let (mut sent, mut calls) = (0, 0);
    // The first round is a warm-up.
    for round in 0..=scale.rounds {
        for way in order(round, WAYS.len()).map(|at| WAYS[at]) {
            let (end, side) = match way {
                Way::Sidecars => (&mut *strict, 0),
                Way::Kernel => (&mut *strict, 1),
                Way::PlainKernel => (&mut *plain, 0),
            };
            let before = (mesh.cpu_ns(), attached.permitted()?);
            let call = format!("closed {side} {} {CONNECTIONS}", scale.slice.as_millis());
            let run: Run = end.run(call, scale.slice).await?;
            if round == 0 || run.calls == 0 {
                continue;
            }
            let cpu = mesh.cpu_ns().saturating_sub(before.0) + run.cpu_ns;
            found.cpu[way as usize].push(cpu as f64 / run.calls as f64);
            if matches!(way, Way::Kernel) {
                sent += attached.permitted()? - before.1;
                calls += run.calls;
            }
        }
    }
    found.by_kernel = sent as f64 / calls.max(1) as f64;
    Ok(found)
}
