//! The three ways of a request, and what was found of each.

use std::{net::SocketAddr, path::Path, time::Duration};

use fairmesh_wire::v1;
use serde_json::json;
use tokio::{net::TcpStream, signal::ctrl_c, time::sleep};

use super::{Attached, CONNECTIONS, Scale};
use crate::{
    load::{Latencies, Run, Seen},
    mesh_processes::{self, ControlPlane, endpoint, port},
    proxy::{order, process::Process},
    role_process::RoleProcess,
};

/// What the callers of `proxy` name as their host, as `http1.bench`.
const SERVICE: &str = "bench/http1";
const REGION: &str = "bench";
/// Bytes of bodies, the same there and back.
const BODY: usize = 1 << 10;
/// One turn of open-loop load.
const TURN: Duration = Duration::from_millis(150);
/// After how long the proxy has found the maps, and published the service once it was called.
const REST: Duration = Duration::from_secs(1);

/// How a request goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    /// Without a mesh.
    Direct,
    Sidecar,
    Kernel,
}

impl Side {
    pub(super) const ALL: [Self; 3] = [Self::Direct, Self::Sidecar, Self::Kernel];
}

/// What was found with so many connections.
pub(super) struct Setting {
    pub(super) connections: usize,
    /// Of each side, round by round: CPU of a request in nanoseconds, and requests a second.
    pub(super) runs: [Vec<(f64, f64)>; 3],
    /// Of the requests of its side, the share that the kernel sent, and of which it sent the responses too.
    pub(super) by_kernel: f64,
    pub(super) answered: f64,
}

/// What was found.
pub(super) struct Found {
    pub(super) settings: Vec<Setting>,
    /// Requests a second of the turns.
    pub(super) rate: u64,
    /// p50 and p99 of each side, in nanoseconds, and of the sidecar once more.
    pub(super) turns: Vec<[[f64; 2]; 4]>,
}

/// The processes.
pub(super) struct Sides<'a> {
    attached: &'a Attached,
    proxies: Vec<Process>,
    _control: ControlPlane,
    /// Callers and endpoints.
    ends: RoleProcess,
}

impl<'a> Sides<'a> {
    /// Starts all, measures, and ends what is in the cgroup, also when it is interrupted.
    /// `by_tcp` stands for the sidecar where it is given.
    pub(super) async fn measure(
        dir: &Path,
        attached: &'a Attached,
        by_tcp: Option<&Attached>,
        scale: Scale,
    ) -> Result<Found, String> {
        let args = ["load-pair", "--protocol", "http1", "--cgroup", &attached.cgroup];
        let (ends, endpoints) = RoleProcess::start(dir, &args).await?;
        let (proxies, control, sidecar) = match start_mesh(dir, attached, by_tcp, &endpoints).await {
            Ok(mesh) => mesh,
            Err(why) => {
                ends.end().await;
                return Err(why);
            }
        };
        let direct = endpoints.split(',').next().unwrap_or_default();
        let to = format!("{direct},{sidecar},{}", attached.address);
        let mut sides = Self { attached, proxies, _control: control, ends };
        let found = tokio::select! {
            found = sides.measure_all(&to, scale) => found,
            _ = ctrl_c() => Err("interrupted".to_owned()),
        };
        sides.ends.end().await;
        found
    }

    async fn measure_all(&mut self, to: &str, scale: Scale) -> Result<Found, String> {
        // Once the first callers have called, the service is published.
        for _ in 0..2 {
            sleep(REST).await;
            let ready = self.ends.order(format!("call {BODY} 1 {to}"), Duration::ZERO).await?;
            if ready != "ready" {
                return Err(ready);
            }
        }
        let mut settings = Vec::new();
        for connections in CONNECTIONS {
            eprintln!("kernel: {connections} connections");
            settings.push(self.closed_rounds(connections, scale).await?);
        }
        let slowest = settings.first().into_iter().flat_map(|setting| setting.runs.iter().flatten());
        let slowest = slowest.map(|(_, rate)| *rate).fold(f64::INFINITY, f64::min);
        let rate = (slowest / 2.0) as u64;
        let mut turns = Vec::new();
        for round in 0..scale.turns {
            turns.push(self.turn(round, rate).await?);
        }
        Ok(Found { settings, rate, turns })
    }

    fn cpu_ns(&self) -> u64 {
        self.proxies.iter().map(Process::cpu_ns).sum()
    }

    async fn closed_rounds(&mut self, connections: usize, scale: Scale) -> Result<Setting, String> {
        let mut runs = [const { Vec::new() }; 3];
        let (mut sent, mut answered, mut calls) = (0, 0, 0);
        for round in 0..=scale.rounds {
            for side in order(round, Side::ALL.len()) {
                let before = (self.cpu_ns(), self.attached.sent()?, self.attached.answered()?);
                let call = format!("closed {side} {} {connections}", scale.slice.as_millis());
                let run: Run = self.ends.run(call, scale.slice).await?;
                let cpu = self.cpu_ns().saturating_sub(before.0) + run.cpu_ns;
                // The first round warms up.
                if round == 0 || run.calls == 0 {
                    continue;
                }
                let done = run.calls as f64;
                runs[side].push((cpu as f64 / done, done * 1e9 / run.wall_ns as f64));
                if side == Side::Kernel as usize {
                    sent += self.attached.sent()? - before.1;
                    answered += self.attached.answered()? - before.2;
                    calls += run.calls;
                }
            }
        }
        let share = |count: u64| count as f64 / calls.max(1) as f64;
        Ok(Setting { connections, runs, by_kernel: share(sent), answered: share(answered) })
    }

    /// Calls each side at this rate, and the sidecar once more.
    async fn turn(&mut self, round: usize, rate: u64) -> Result<[[f64; 2]; 4], String> {
        let mut turn = [[0.0; 2]; 4];
        for at in order(round, turn.len()) {
            let side = if at == 3 { Side::Sidecar as usize } else { at };
            let call = format!("open {side} {} {rate}", TURN.as_millis());
            let seen: Latencies = self.ends.run(call, TURN).await?;
            let seen = Seen::of(&seen);
            turn[at] = [seen.p50 as f64, seen.p99 as f64];
        }
        Ok(turn)
    }
}

/// Starts control plane and proxies before these endpoints; returns the address of the sidecar too.
async fn start_mesh(
    dir: &Path,
    attached: &Attached,
    by_tcp: Option<&Attached>,
    endpoints: &str,
) -> Result<(Vec<Process>, ControlPlane, SocketAddr), String> {
    let control = ControlPlane::start(dir).await?;
    let service = json!({ "kind": "Service", "name": SERVICE, "protocol": "http1" });
    let mut policy = json!({
        "kind": "Policy",
        "service": SERVICE,
        "routes": [{ "name": "all", "match": { "path": { "prefix": "/" } } }],
        "balancing": { "policy": "leastRequest" },
    });
    if by_tcp.is_some() {
        // The sidecar has to send the deadline: it sends all requests. The kernel sends those of the other measurements.
        policy["timeout"] = "30s".into();
    }
    let mut ops = [mesh_processes::ops(&service)?, mesh_processes::ops(&policy)?].concat();
    for (instance, address) in ["a", "b"].into_iter().zip(endpoints.split(',')) {
        let address = address.parse().map_err(|e| format!("{address}: {e}"))?;
        ops.push(endpoint(SERVICE, REGION, (instance, address))?);
    }
    let written = control.connection.rib().write(v1::WriteRequest { ops }).await;
    written.map_err(|status| format!("a write failed: {}", status.message()))?;
    let (proxy, sidecar) = start_proxy(dir, "proxy", attached, &control).await?;
    let Some(by_tcp) = by_tcp else { return Ok((vec![proxy], control, sidecar)) };
    let (other, _) = start_proxy(dir, "proxy-by-tcp", by_tcp, &control).await?;
    Ok((vec![proxy, other], control, by_tcp.address.into()))
}

/// A proxy for these programs; returns the address of its listener without them too.
async fn start_proxy(
    dir: &Path,
    name: &str,
    attached: &Attached,
    control: &ControlPlane,
) -> Result<(Process, SocketAddr), String> {
    let (sidecar, listener, admin) = (port()?, port()?, port()?);
    let args = format!(
        "proxy --control {} --region {REGION} --client-id {name} --admin {admin} --listen {sidecar}={SERVICE} \
         --listen kernel:{listener}+bpffs={}",
        control.grpc,
        attached.pins().display()
    );
    let program = std::env::current_exe().map_err(|e| e.to_string())?.with_file_name("fairmesh");
    let args: Vec<&str> = args.split(' ').collect();
    let mut proxy = Process::pinned(dir, name, &program, &args)?;
    let listens = async || TcpStream::connect(sidecar).await.is_ok();
    proxy.ready(listens).await.map_err(|why| format!("the proxy {why}"))?;
    Ok((proxy, sidecar))
}
