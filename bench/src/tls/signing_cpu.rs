//! CPU of a proxy for full handshakes with an RSA-2048 key: the key server signs, or the proxy itself does
//! (Canal Mesh, section 5.2.2 and figure 12).

use std::{path::Path, process::Command};

use super::{
    Scale,
    sidecars::{Compared, MeshOfProxies},
    signer::{SERVICE, declare, key_server},
};
use crate::{
    load_generator::Run,
    mesh_processes::port,
    proxy::{order, process::Process},
    role_process::RoleProcess,
};

/// Number of callers that connect again as soon as they have the response: fewer than the threads for handshakes.
const CALLERS: usize = 16;

/// Runs the benchmark: CPU of a connection with one request, signed by the key server over signed by the proxy.
pub(super) async fn measure(dir: &Path, scale: Scale) -> Result<Compared, String> {
    eprintln!("signing: RSA-2048, by the key server and by the proxy");
    let mesh = MeshOfProxies::start(dir).await?;
    let key = rsa_key(dir)?;
    let (_servers, programs) = RoleProcess::start(dir, &["load-pair", "--protocol", "http1"]).await?;
    let _registered = declare(&mesh, &programs).await?;
    let (_key_server, at) = key_server(&mesh, &key).await?;
    let keys = [format!("--tls-key-server edge@{at}"), format!("--tls-key {}", key.display())];
    let (mut proxies, mut tls) = (Vec::new(), Vec::new());
    for (name, key) in ["signed-remotely", "signed-locally"].iter().zip(keys) {
        let (at, plain) = (port()?, port()?);
        let listen = format!("--listen {at}={SERVICE}+tls --listen {plain}={SERVICE}");
        let args = format!("{listen} --tls-cert {}/rsa.pem {key}", dir.display());
        proxies.push(mesh.proxy(name, &args, Some(plain)).await?);
        tls.push(at.to_string());
    }
    let (mut clients, _) = RoleProcess::start(dir, &["handshakes", "--to", &tls.join(",")]).await?;
    Compared::of(&rounds(&mut clients, &proxies, scale).await?)
}

/// Nanoseconds of CPU for each connection: with the key server, and with the proxy's own key.
async fn rounds(
    clients: &mut RoleProcess,
    proxies: &[Process],
    scale: Scale,
) -> Result<Vec<[f64; 2]>, String> {
    let mut rounds = Vec::new();
    // The first round is a warm-up and is not counted.
    for round in 0..=scale.rounds {
        let mut cost = [0.0; 2];
        for side in order(round, 2) {
            let before = proxies[side].cpu_ns();
            let order = format!("closed {side} {} {CALLERS}", scale.slice.as_millis());
            let run: Run = clients.run(order, scale.slice).await?;
            cost[side] = (proxies[side].cpu_ns() - before) as f64 / run.calls.max(1) as f64;
        }
        if round > 0 {
            rounds.push(cost);
        }
    }
    Ok(rounds)
}

/// Makes a certificate `rsa.pem` with its key, and returns the key's file.
fn rsa_key(dir: &Path) -> Result<std::path::PathBuf, String> {
    let (key, certificate) = (dir.join("rsa.key"), dir.join("rsa.pem"));
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=edge.bench"]);
    command.args(["-addext", "subjectAltName=DNS:edge.bench"]);
    let made = command.arg("-keyout").arg(&key).arg("-out").arg(&certificate).output();
    let made = made.map_err(|e| format!("openssl cannot be started: {e}"))?;
    match made.status.success() {
        true => Ok(key),
        false => Err(format!("openssl made no key: {}", String::from_utf8_lossy(&made.stderr))),
    }
}
