//! The sidecars of a caller and of a server, ours and Envoy's, with mutual TLS between them: calls, handshakes, idle
//! connections.

use std::{net::SocketAddr, path::Path, time::Duration};

use serde_json::json;

use super::{
    Scale,
    certificate_authority::{BenchAuthority, DOMAIN},
    envoy,
};
use crate::{
    load_generator::Run,
    mesh_processes::{ControlPlane, port, start_agent},
    paired_ratio::Median,
    proxy::{
        contenders::{on_path, passes_on},
        order,
        process::Process,
    },
    role_process::RoleProcess,
};
use fairmesh_wire::transport::Address;

/// The service behind the sidecars whose calls are compared.
const SERVICE: &str = "bench/http1";
/// Bytes of each request and response body.
const PAYLOAD: usize = 5_500;
/// Number of callers that call again as soon as they have the response.
const TASKS: usize = 16;
/// Number of callers for resumed connections, and for the full handshakes they are compared with. Fewer than the
/// sessions that a server hands out to each, so that a session is always available.
const RESUMING: usize = 4;
/// Idle connections opened first, and counted ones. Together on both sides fewer than the 1,024 files of a process.
const IDLE: [usize; 2] = [50, 400];

/// A mesh with a folder for its proxies.
pub(super) struct MeshOfProxies<'a> {
    pub(super) dir: &'a Path,
    pub(super) control: ControlPlane,
    pub(super) agent: Address,
    pub(super) authority: BenchAuthority,
    _agent: Process,
}

impl<'a> MeshOfProxies<'a> {
    pub(super) async fn start(dir: &'a Path) -> Result<Self, String> {
        std::fs::create_dir_all(dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
        let authority = BenchAuthority::open(dir)?;
        let control = ControlPlane::start_with(dir, DOMAIN).await?;
        let policy = json!({
            "kind": "Policy", "service": SERVICE, "timeout": "15s", "balancing": {"policy": "leastRequest"},
            "routes": [{"name": "all", "match": {"path": {"prefix": "/"}}}],
        });
        control.apply(&[json!({"kind": "Service", "name": SERVICE, "protocol": "http1"}), policy]).await?;
        let (process, agent) = start_agent(dir, &control, "bench", "agent.sock").await?;
        Ok(Self { dir, control, agent, authority, _agent: process })
    }

    /// Starts a proxy of the mesh on the processor of proxies. If `ready` is given, waits until a plaintext request to
    /// that address passes.
    pub(super) async fn proxy(
        &self,
        name: &str,
        args: &str,
        ready: Option<SocketAddr>,
    ) -> Result<Process, String> {
        let admin = port()?;
        let args = format!("proxy --agent {} --admin {admin} --client-id bench {args}", self.agent);
        let args: Vec<_> = args.split(' ').filter(|word| !word.is_empty()).collect();
        let program = std::env::current_exe().map_err(|e| e.to_string())?.with_file_name("fairmesh");
        let mut process = Process::pinned(self.dir, name, &program, &args)?;
        let is_ready = async || match ready {
            Some(at) => passes_on(at).await.unwrap_or(false),
            None => tokio::net::TcpStream::connect(admin).await.is_ok(),
        };
        process.ready(is_ready).await.map_err(|why| format!("{name} {why}"))?;
        Ok(process)
    }
}

/// The sidecars of a caller and of a server.
struct Pair {
    /// The caller's sidecar, which accepts plaintext.
    egress: Process,
    at: SocketAddr,
    /// The server's sidecar, which speaks plaintext with the program.
    ingress: Process,
    ingress_at: SocketAddr,
}

impl Pair {
    async fn ours(mesh: &MeshOfProxies<'_>, program: SocketAddr) -> Result<Self, String> {
        let (at, ingress_at) = (port()?, port()?);
        let args = format!("--inbound {SERVICE}@{ingress_at}={program}");
        let ingress = mesh.proxy("inbound", &args, None).await?;
        let egress = mesh.proxy("outbound", &format!("--listen {at}={SERVICE}"), Some(at)).await?;
        Ok(Self { egress, at, ingress, ingress_at })
    }

    async fn envoy(mesh: &MeshOfProxies<'_>, program: SocketAddr) -> Result<Self, String> {
        let envoy = on_path("envoy").ok_or("envoy is not on the path; run scripts/setup.sh peers")?;
        let (at, ingress_at) = (port()?, port()?);
        let identity = mesh.dir.join("envoy");
        mesh.authority.issue(SERVICE, &identity)?;
        let files = (mesh.dir, &*identity);
        let ingress = envoy::ingress(files, ingress_at, program)?;
        let ingress = Process::pinned(mesh.dir, "envoy-ingress", &envoy, &ingress)?;
        let id = format!("spiffe://{DOMAIN}/{SERVICE}");
        let egress = envoy::egress(files, at, (ingress_at, &id))?;
        let mut egress = Process::pinned(mesh.dir, "envoy-egress", &envoy, &egress)?;
        let is_ready = async || passes_on(at).await.unwrap_or(false);
        egress.ready(is_ready).await.map_err(|why| format!("envoy {why}"))?;
        Ok(Self { egress, at, ingress, ingress_at })
    }

    fn cpu_ns(&self) -> u64 {
        self.egress.cpu_ns() + self.ingress.cpu_ns()
    }
}

/// A ratio, with the microseconds of both sides.
pub(super) struct Compared {
    pub(super) ratio: Median,
    pub(super) us: [f64; 2],
}

impl Compared {
    pub(super) fn of(rounds: &[[f64; 2]]) -> Result<Self, String> {
        let ratios: Vec<_> = rounds.iter().map(|[ours, theirs]| ours / theirs).collect();
        let us = [0, 1].map(|side| {
            let costs: Vec<_> = rounds.iter().map(|round| round[side] / 1e3).collect();
            crate::proxy::results::median(&costs)
        });
        Ok(Self { ratio: Median::of(&ratios).ok_or("no round was measured")?, us })
    }
}

/// Results. For Envoy, or the reason why it is not available.
pub(super) struct Found {
    pub(super) calls: Result<Compared, String>,
    pub(super) handshakes: Result<Compared, String>,
    /// Resumed handshakes relative to full ones.
    pub(super) resumed: Compared,
    /// Share of successful resumptions, in thousandths of the attempts.
    pub(super) resumed_share: u64,
    /// Bytes of an idle connection, for our sidecar and for Envoy.
    pub(super) idle: Vec<u64>,
}

/// The sides, and their callers.
struct Bench {
    pairs: Vec<Pair>,
    callers: RoleProcess,
    clients: RoleProcess,
    scale: Scale,
}

/// Measures everything.
pub(super) async fn measure(dir: &Path, scale: Scale) -> Result<Found, String> {
    let mesh = MeshOfProxies::start(dir).await?;
    let (mut callers, programs) = RoleProcess::start(dir, &["load-pair", "--protocol", "http1"]).await?;
    let program =
        programs.split(',').next().and_then(|text| text.parse().ok()).ok_or("there is no program")?;
    let mut pairs = vec![Pair::ours(&mesh, program).await?];
    let envoy = Pair::envoy(&mesh, program).await.map(|pair| pairs.push(pair));
    let identity = dir.join("client");
    mesh.authority.issue("bench/client", &identity)?;
    let [at, to] = [|pair: &Pair| pair.at, |pair: &Pair| pair.ingress_at]
        .map(|of| pairs.iter().map(|pair| of(pair).to_string()).collect::<Vec<_>>().join(","));
    callers.prepare(format!("call {PAYLOAD} 1 {at}")).await?;
    let args = ["handshakes", "--identity", &identity.display().to_string(), "--to", &to];
    let (clients, _) = RoleProcess::start(dir, &args).await?;
    let mut bench = Bench { pairs, callers, clients, scale };
    let calls = bench.calls().await?;
    let handshakes = bench.handshakes().await?;
    let (resumed, resumed_share) = bench.resumed().await?;
    let idle = bench.idle().await?;
    let beside = |rounds: &[[f64; 2]]| envoy.clone().and_then(|()| Compared::of(rounds));
    Ok(Found { calls: beside(&calls), handshakes: beside(&handshakes), resumed, resumed_share, idle })
}

impl Bench {
    /// CPU of both sidecars per call, in nanoseconds.
    async fn calls(&mut self) -> Result<Vec<[f64; 2]>, String> {
        eprintln!("sidecars: calls");
        let length = self.scale.slice;
        let call = async |bench: &mut Self, side: usize| {
            bench.callers.run(format!("closed {side} {} {TASKS}", length.as_millis()), length).await
        };
        self.rounds(Pair::cpu_ns, call).await
    }

    /// CPU of the server's sidecar per connection with one request, in nanoseconds.
    async fn handshakes(&mut self) -> Result<Vec<[f64; 2]>, String> {
        eprintln!("sidecars: handshakes");
        let length = self.scale.slice;
        let call = async |bench: &mut Self, side: usize| {
            bench.clients.run(format!("closed {side} {} {TASKS}", length.as_millis()), length).await
        };
        self.rounds(|pair| pair.ingress.cpu_ns(), call).await
    }

    /// CPU of our sidecar for resumed handshakes relative to full ones.
    async fn resumed(&mut self) -> Result<(Compared, u64), String> {
        eprintln!("sidecars: resumed sessions");
        let length = self.scale.slice;
        let mut rounds = Vec::new();
        let mut share = 1000;
        for round in 0..=self.scale.rounds {
            let mut costs = [0.0; 2];
            for turn in order(round, 2) {
                let how = if turn == 0 { "resumed" } else { "closed" };
                self.clients.order("share".into(), Duration::ZERO).await?;
                let before = self.pairs[0].ingress.cpu_ns();
                let run: Run =
                    self.clients.run(format!("{how} 0 {} {RESUMING}", length.as_millis()), length).await?;
                costs[turn] = (self.pairs[0].ingress.cpu_ns() - before) as f64 / run.calls.max(1) as f64;
                let found = self.clients.order("share".into(), Duration::ZERO).await?;
                if turn == 0 && round > 0 {
                    share = share.min(found.parse().map_err(|_| found)?);
                }
            }
            if round > 0 {
                rounds.push(costs);
            }
        }
        Ok((Compared::of(&rounds)?, share))
    }

    /// Bytes of memory per connection that is idle after a request, in the server's sidecar.
    async fn idle(&mut self) -> Result<Vec<u64>, String> {
        let mut all = Vec::new();
        for (side, pair) in self.pairs.iter().enumerate() {
            let mut grown = 0;
            for count in IDLE {
                let before = pair.ingress.rss_bytes();
                let kept = self.clients.order(format!("idle {side} {count}"), Duration::ZERO).await?;
                kept.parse::<usize>().map_err(|_| kept)?;
                grown = pair.ingress.rss_bytes().saturating_sub(before) / count as u64;
            }
            all.push(grown);
        }
        Ok(all)
    }

    /// Nanoseconds of CPU per call for each side; NaN for a missing side.
    async fn rounds(
        &mut self,
        cpu: fn(&Pair) -> u64,
        call: impl AsyncFn(&mut Self, usize) -> Result<Run, String>,
    ) -> Result<Vec<[f64; 2]>, String> {
        let mut rounds = Vec::new();
        // The first round is a warm-up and is not counted.
        for round in 0..=self.scale.rounds {
            let mut costs = [f64::NAN; 2];
            for side in order(round, self.pairs.len()) {
                let before = cpu(&self.pairs[side]);
                let run = call(self, side).await?;
                costs[side] = (cpu(&self.pairs[side]) - before) as f64 / run.calls.max(1) as f64;
            }
            if round > 0 {
                rounds.push(costs);
            }
        }
        Ok(rounds)
    }
}
