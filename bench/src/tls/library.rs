//! Library calls over mutual TLS, compared with a hand-written stack on the same rustls, and with the library in
//! plaintext.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::json;

use crate::{
    mesh_processes::{ControlPlane, start_agent},
    paired_ratio::Median,
    proxy::{order, process::Process, results::median},
    role_process::RoleProcess,
    roles::handwritten_tls,
};

use super::{Scale, certificate_authority::DOMAIN};

/// Bytes of each request and response.
const PAYLOADS: [usize; 3] = [600, 5_500, 55_000];
const PROTOCOLS: [&str; 2] = ["http1", "grpc"];
/// Number of callers that call again as soon as they have the response.
const TASKS: usize = 16;

/// CPU for one protocol and payload.
pub(super) struct Case {
    protocol: &'static str,
    payload: usize,
    /// CPU per call of each side, in microseconds: the library, the hand-written stack, the library in plaintext.
    cpu_us: [f64; 3],
    pub(super) over_stack: Median,
    pub(super) over_plaintext: Median,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, payload, cpu_us: [ours, stack, plaintext], over_stack, over_plaintext } = self;
        write!(
            f,
            "{protocol}, {payload} B: {ours:.1} µs of CPU a call, the stack {stack:.1} = {over_stack}, in plaintext \
             {plaintext:.1} = {over_plaintext}"
        )
    }
}

/// A mesh with the agent of its programs.
struct MeshSide {
    dir: PathBuf,
    _control: ControlPlane,
    _agent: Process,
}

impl MeshSide {
    async fn start(dir: &Path, name: &str, trust_domain: &str) -> Result<Self, String> {
        let dir = dir.join(name);
        std::fs::create_dir_all(&dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
        let control = ControlPlane::start_with(&dir, trust_domain).await?;
        let service =
            |protocol| json!({"kind": "Service", "name": format!("bench/{protocol}"), "protocol": protocol});
        control.apply(&PROTOCOLS.map(service)).await?;
        let (agent, _) = start_agent(&dir, &control, "bench", "agent.sock").await?;
        Ok(Self { dir, _control: control, _agent: agent })
    }
}

/// A client process and the servers it calls.
struct Side<'a> {
    client: RoleProcess,
    servers: &'a mut RoleProcess,
}

impl Side<'_> {
    /// CPU time per call of client and servers, in nanoseconds.
    async fn cost(&mut self, length: Duration) -> Result<f64, String> {
        let before = self.servers.cpu_ns().await?;
        let run = self.client.closed(TASKS, length).await?;
        let servers = self.servers.cpu_ns().await? - before;
        Ok((run.cpu_ns + servers) as f64 / run.calls.max(1) as f64)
    }
}

/// Measures all cases.
pub(super) async fn measure(dir: &Path, scale: Scale) -> Result<Vec<Case>, String> {
    let secured = MeshSide::start(dir, "secured", DOMAIN).await?;
    let plaintext = MeshSide::start(dir, "plaintext", "none").await?;
    let certificate = dir.join("stack");
    handwritten_tls::issue(&certificate).map_err(|e| e.to_string())?;
    let certificate = certificate.display().to_string();
    let mut cases = Vec::new();
    for protocol in PROTOCOLS {
        let common = ["servers", "--protocol", protocol, "--layer"];
        let on = [&common[..], &["on"]].concat();
        let off = [&common[..], &["off", "--certificate", &certificate]].concat();
        let (ours, _) = RoleProcess::start(&secured.dir, &on).await?;
        let (stack, addresses) = RoleProcess::start(dir, &off).await?;
        let (plain, _) = RoleProcess::start(&plaintext.dir, &on).await?;
        let mut servers = [ours, stack, plain];
        for payload in PAYLOADS {
            eprintln!("library: {protocol}, {payload} bytes");
            let size = payload.to_string();
            let common = ["client", "--protocol", protocol, "--payload", &size, "--kind"];
            let mesh = [&common[..], &["mesh"]].concat();
            let fixed = ["static", "--servers", &addresses, "--certificate", &certificate];
            let fixed = [&common[..], &fixed[..]].concat();
            let clients = [
                RoleProcess::start(&secured.dir, &mesh).await?.0,
                RoleProcess::start(dir, &fixed).await?.0,
                RoleProcess::start(&plaintext.dir, &mesh).await?.0,
            ];
            let costs = rounds(clients, &mut servers, scale).await?;
            cases.push(summary(protocol, payload, &costs)?);
        }
    }
    Ok(cases)
}

/// Cost of a call on each side, by round.
async fn rounds(
    clients: [RoleProcess; 3],
    servers: &mut [RoleProcess; 3],
    scale: Scale,
) -> Result<[Vec<f64>; 3], String> {
    let sides = clients.into_iter().zip(servers);
    let mut sides: Vec<_> = sides.map(|(client, servers)| Side { client, servers }).collect();
    let mut costs = [const { Vec::new() }; 3];
    // The first round is a warm-up and is not counted.
    for round in 0..=scale.rounds {
        for side in order(round, sides.len()) {
            let cost = sides[side].cost(scale.library).await?;
            if round > 0 {
                costs[side].push(cost);
            }
        }
    }
    Ok(costs)
}

fn summary(protocol: &'static str, payload: usize, costs: &[Vec<f64>; 3]) -> Result<Case, String> {
    let [ours, stack, plaintext] = costs;
    let over = |peer: &[f64]| {
        let ratios: Vec<_> = ours.iter().zip(peer).map(|(ours, peer)| ours / peer).collect();
        Median::of(&ratios).ok_or("no round was measured")
    };
    Ok(Case {
        protocol,
        payload,
        cpu_us: [ours, stack, plaintext].map(|costs| median(costs) / 1e3),
        over_stack: over(stack)?,
        over_plaintext: over(plaintext)?,
    })
}
