//! The three paths of a request, and the results of each.

use std::{path::Path, time::Duration};

use tokio::time::sleep;

use super::{Attached, CONNECTIONS, Scale, interruptible, mesh::Mesh};
use crate::{
    load_generator::{Latencies, Run, Seen},
    proxy::order,
    role_process::RoleProcess,
};

/// The host named by the callers of `proxy`, `http1.bench`.
const SERVICE: &str = "bench/http1";
/// Bytes of each request and response body.
pub(super) const BODY: usize = 1 << 10;
/// Duration of one turn of open-loop load.
pub(super) const TURN: Duration = Duration::from_millis(150);
/// Time in which the proxy has found the BPF maps and published the service after its first call.
pub(super) const REST: Duration = Duration::from_secs(1);

/// Path of a request.
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

/// Results for one number of connections.
pub(super) struct Setting {
    pub(super) connections: usize,
    /// By side and round: CPU of a request in nanoseconds, and requests per second.
    pub(super) runs: [Vec<(f64, f64)>; 3],
    /// Shares of the side's requests that the kernel sent, and whose responses it sent, too.
    pub(super) by_kernel: f64,
    pub(super) answered: f64,
}

/// Results.
pub(super) struct Found {
    pub(super) settings: Vec<Setting>,
    /// Requests per second of the open-loop turns.
    pub(super) rate: u64,
    /// p50 and p99 of each side in nanoseconds; the last entry is a second run of the sidecar.
    pub(super) turns: Vec<[[f64; 2]; 4]>,
}

/// The processes.
pub(super) struct Sides<'a> {
    attached: &'a Attached,
    mesh: Mesh,
    /// Callers and endpoints.
    ends: RoleProcess,
}

impl<'a> Sides<'a> {
    /// Starts everything, measures, and ends the processes in the cgroup, even when interrupted. If `by_tcp` is given,
    /// it replaces the sidecar.
    pub(super) async fn measure(
        dir: &Path,
        attached: &'a Attached,
        by_tcp: Option<&Attached>,
        scale: Scale,
    ) -> Result<Found, String> {
        let args = ["load-pair", "--protocol", "http1", "--cgroup", &attached.cgroup];
        let (ends, endpoints) = RoleProcess::start(dir, &args).await?;
        let mesh = match start_mesh(dir, attached, by_tcp, &endpoints).await {
            Ok(mesh) => mesh,
            Err(why) => {
                ends.end().await;
                return Err(why);
            }
        };
        let sidecar = by_tcp.map_or(mesh.sidecars[0], |by_tcp| by_tcp.address.into());
        let direct = endpoints.split(',').next().unwrap_or_default();
        let to = format!("{direct},{sidecar},{}", attached.address);
        let mut sides = Self { attached, mesh, ends };
        let found = interruptible(sides.measure_all(&to, scale)).await;
        sides.ends.end().await;
        found
    }

    async fn measure_all(&mut self, to: &str, scale: Scale) -> Result<Found, String> {
        // The service is published after its first calls.
        for _ in 0..2 {
            sleep(REST).await;
            self.ends.prepare(format!("call {BODY} 1 {to}")).await?;
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

    async fn closed_rounds(&mut self, connections: usize, scale: Scale) -> Result<Setting, String> {
        let mut runs = [const { Vec::new() }; 3];
        let (mut sent, mut answered, mut calls) = (0, 0, 0);
        for round in 0..=scale.rounds {
            for side in order(round, Side::ALL.len()) {
                let before = (self.mesh.cpu_ns(), self.attached.sent()?, self.attached.answered()?);
                let call = format!("closed {side} {} {connections}", scale.slice.as_millis());
                let run: Run = self.ends.run(call, scale.slice).await?;
                let cpu = self.mesh.cpu_ns().saturating_sub(before.0) + run.cpu_ns;
                // The first round is a warm-up.
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

    /// Calls each side at `rate`, and the sidecar a second time.
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

/// Starts control plane and proxies for these endpoints.
async fn start_mesh(
    dir: &Path,
    attached: &Attached,
    by_tcp: Option<&Attached>,
    endpoints: &str,
) -> Result<Mesh, String> {
    // With a timeout the sidecar must send all requests, because it passes the deadline on to servers. In the other
    // measurements the kernel sends them.
    let timeout = by_tcp.map(|_| "30s");
    let mut mesh = Mesh::start(dir, attached, &[(SERVICE.to_owned(), endpoints.to_owned())], timeout).await?;
    if let Some(by_tcp) = by_tcp {
        mesh.add_proxy(dir, "proxy-by-tcp", by_tcp).await?;
    }
    Ok(mesh)
}
