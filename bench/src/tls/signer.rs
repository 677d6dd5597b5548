//! A listener whose key is on a remote key server, compared with one that has a local key.

use std::{net::SocketAddr, path::Path};

use serde_json::json;

use super::{
    Scale,
    certificate_authority::{DOMAIN, split},
    sidecars::MeshOfProxies,
};
use crate::{
    load_generator::{Latencies, Run, Seen},
    mesh_processes::{fairmesh, port},
    paired_ratio::Median,
    proxy::{order, process::Process},
    role_process::RoleProcess,
};

pub(super) const SERVICE: &str = "bench/plain";
/// Number of callers that connect again as soon as they have the response.
const CALLERS: usize = 64;
/// One-way delay between proxy and key server, in milliseconds.
const DELAY_MS: u64 = 5;
/// Other requests per second meanwhile, over persistent connections.
const OTHERS: u64 = 200;
const PAYLOAD: usize = 600;

/// Results of the key server relative to the local key.
pub(super) struct Found {
    pub(super) handshakes: Median,
    /// Handshakes per second of both, as the median of rounds.
    pub(super) rates: [f64; 2],
    /// Ratio of the p99 of other requests.
    pub(super) stall: Median,
    /// p99 of both in milliseconds, as the median of rounds.
    pub(super) p99_ms: [f64; 2],
}

/// Runs the benchmark.
pub(super) async fn measure(dir: &Path, scale: Scale) -> Result<Found, String> {
    eprintln!("signer: a key server {} ms away", 2 * DELAY_MS);
    let mesh = MeshOfProxies::start(dir).await?;
    let edge = dir.join("edge");
    mesh.authority.issue("bench/edge", &edge)?;
    split(&edge)?;
    let (mut others, programs) = RoleProcess::start(dir, &["load-pair", "--protocol", "http1"]).await?;
    let _registered = declare(&mesh, &programs).await?;
    let (_key_server, listen) = key_server(&mesh, &edge.join("edge.key")).await?;
    let (_delay, key_server) = delay(&mesh, listen).await?;
    let edge = edge.display();
    let keys = [format!("--tls-key-server edge@{key_server}"), format!("--tls-key {edge}/edge.key")];
    let (mut proxies, mut tls, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for (name, key) in ["remote", "local"].iter().zip(keys) {
        let (at, other) = (port()?, port()?);
        let listen = format!("--listen {at}={SERVICE}+tls --listen {other}={SERVICE}");
        let args = format!("{listen} --tls-cert {edge}/edge.pem {key}");
        proxies.push(mesh.proxy(name, &args, Some(other)).await?);
        tls.push(at.to_string());
        plain.push(other.to_string());
    }
    others.prepare(format!("call {PAYLOAD} 1 {}", plain.join(","))).await?;
    let (mut clients, _) = RoleProcess::start(dir, &["handshakes", "--to", &tls.join(",")]).await?;
    let rounds = rounds((&mut clients, &mut others), scale).await?;
    summary(&rounds)
}

/// Handshakes per second, and p99 of other requests in nanoseconds: with the key server, and with a local key.
type Round = [(f64, f64); 2];

async fn rounds(
    (clients, others): (&mut RoleProcess, &mut RoleProcess),
    scale: Scale,
) -> Result<Vec<Round>, String> {
    let (length, mut rounds) = (scale.signer, Vec::new());
    for round in 0..=scale.rounds {
        let mut found = [(0.0, 0.0); 2];
        for side in order(round, 2) {
            let ms = length.as_millis();
            let handshakes = clients.run::<Run>(format!("closed {side} {ms} {CALLERS}"), length);
            let others = others.run::<Latencies>(format!("open {side} {ms} {OTHERS}"), length);
            let (run, latencies) = tokio::try_join!(handshakes, others)?;
            let rate = run.calls as f64 * 1e9 / run.wall_ns as f64;
            found[side] = (rate, Seen::of(&latencies).p99 as f64);
        }
        if round > 0 {
            rounds.push(found);
        }
    }
    Ok(rounds)
}

fn summary(rounds: &[Round]) -> Result<Found, String> {
    let ratio = |of: fn(&(f64, f64)) -> f64| {
        let ratios: Vec<_> = rounds.iter().map(|[remote, local]| of(remote) / of(local)).collect();
        Median::of(&ratios).ok_or("no round was measured")
    };
    let middle = |of: fn(&(f64, f64)) -> f64| {
        [0, 1].map(|side| {
            let all: Vec<_> = rounds.iter().map(|round| of(&round[side])).collect();
            crate::proxy::results::median(&all)
        })
    };
    Ok(Found {
        handshakes: ratio(|found| found.0)?,
        rates: middle(|found| found.0),
        stall: ratio(|found| found.1)?,
        p99_ms: middle(|found| found.1 / 1e6),
    })
}

/// Declares the plaintext service behind the listeners. Its program is registered as long as the returned process runs.
pub(super) async fn declare(mesh: &MeshOfProxies<'_>, programs: &str) -> Result<Process, String> {
    let service = json!({"kind": "Service", "name": SERVICE, "protocol": "http1"});
    let policy = json!({"kind": "Policy", "service": SERVICE, "mtls": "permissive"});
    mesh.control.apply(&[service, policy]).await?;
    let program = programs.split(',').next().unwrap_or_default();
    let args =
        format!("register {SERVICE} --agent {} --plaintext --address {program} --protocol http1", mesh.agent);
    let args: Vec<_> = args.split(' ').map(str::to_owned).collect();
    // The proxies are ready once they reach it.
    Process::start(mesh.dir, "register", fairmesh(&args)?)
}

/// Starts a key server that has the key in this file as `edge`.
pub(super) async fn key_server(
    mesh: &MeshOfProxies<'_>,
    key: &Path,
) -> Result<(Process, SocketAddr), String> {
    let listen = port()?;
    let caller = format!("spiffe://{DOMAIN}/fairmesh/proxy/bench.proxy");
    let args = format!(
        "keyserver --agent {} --listen {listen} --admin none --key edge={} --allow edge={caller}",
        mesh.agent,
        key.display()
    );
    let args: Vec<_> = args.split(' ').map(str::to_owned).collect();
    let mut process = Process::start(mesh.dir, "keyserver", fairmesh(&args)?)?;
    let listens = async || tokio::net::TcpStream::connect(listen).await.is_ok();
    process.ready(listens).await.map_err(|why| format!("the key server {why}"))?;
    Ok((process, listen))
}

/// Starts a network that delays the key server. Returns the address on the near side.
async fn delay(mesh: &MeshOfProxies<'_>, listen: SocketAddr) -> Result<(RoleProcess, SocketAddr), String> {
    let near = port()?;
    let (listen, at, ms) = (listen.to_string(), near.to_string(), DELAY_MS.to_string());
    let delay = ["delay", "--listen", &at, "--to", &listen, "--ms", &ms];
    Ok((RoleProcess::start(mesh.dir, &delay).await?.0, near))
}
