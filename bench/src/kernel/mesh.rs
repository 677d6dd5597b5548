//! The mesh of these benchmarks: a control plane and a proxy, which is the sidecar and prepares the kernel to send
//! requests.

use std::{net::SocketAddr, path::Path};

use fairmesh_wire::v1;
use serde_json::json;
use tokio::net::TcpStream;

use super::Attached;
use crate::{
    mesh_processes::{self, ControlPlane, endpoint, port},
    proxy::process::Process,
};

const REGION: &str = "bench";

pub(super) struct Mesh {
    proxies: Vec<Process>,
    control: ControlPlane,
    /// Addresses at which the sidecar listens for each service, without BPF programs.
    pub(super) sidecars: Vec<SocketAddr>,
}

impl Mesh {
    /// Starts the mesh for `services`: pairs of a name and comma-separated endpoints. All have the same policy.
    pub(super) async fn start(
        dir: &Path,
        attached: &Attached,
        services: &[(String, String)],
        timeout: Option<&str>,
    ) -> Result<Self, String> {
        let control = ControlPlane::start(dir).await?;
        let mut ops = Vec::new();
        for (service, endpoints) in services {
            ops.extend(records(service, endpoints, timeout)?);
        }
        let written = control.connection.rib().write(v1::WriteRequest { ops }).await;
        written.map_err(|status| format!("a write failed: {}", status.message()))?;
        let mut mesh = Self { proxies: Vec::new(), control, sidecars: Vec::new() };
        let mut listeners = kernel_listener(attached)?;
        for (service, _) in services {
            let listener = port()?;
            listeners += &format!(" --listen {listener}={service}");
            mesh.sidecars.push(listener);
        }
        mesh.run_proxy(dir, "proxy", &listeners).await?;
        Ok(mesh)
    }

    /// Starts another proxy, for these BPF programs.
    pub(super) async fn add_proxy(
        &mut self,
        dir: &Path,
        name: &str,
        attached: &Attached,
    ) -> Result<(), String> {
        self.run_proxy(dir, name, &kernel_listener(attached)?).await
    }

    /// Starts another proxy that is only a sidecar. Returns its listener address for a service.
    pub(super) async fn add_sidecar(
        &mut self,
        dir: &Path,
        name: &str,
        service: &str,
    ) -> Result<SocketAddr, String> {
        let listener = port()?;
        self.run_proxy(dir, name, &format!(" --listen {listener}={service}")).await?;
        Ok(listener)
    }

    async fn run_proxy(&mut self, dir: &Path, name: &str, listeners: &str) -> Result<(), String> {
        let (plain, admin) = (port()?, port()?);
        let args = format!(
            "proxy --control {} --region {REGION} --client-id {name} --admin {admin} --listen {plain}{listeners}",
            self.control.grpc
        );
        let program = std::env::current_exe().map_err(|e| e.to_string())?.with_file_name("fairmesh");
        let args: Vec<&str> = args.split(' ').collect();
        let mut proxy = Process::pinned(dir, name, &program, &args)?;
        let listens = async || TcpStream::connect(plain).await.is_ok();
        proxy.ready(listens).await.map_err(|why| format!("the proxy {why}"))?;
        self.proxies.push(proxy);
        Ok(())
    }

    /// CPU time of all proxies, in nanoseconds.
    pub(super) fn cpu_ns(&self) -> u64 {
        self.proxies.iter().map(Process::cpu_ns).sum()
    }

    /// The proxies, in the order in which they were started.
    pub(super) fn proxies(&self) -> &[Process] {
        &self.proxies
    }
}

fn kernel_listener(attached: &Attached) -> Result<String, String> {
    Ok(format!(" --listen kernel:{}+bpffs={}", port()?, attached.pins().display()))
}

/// The records of a service with its policy and endpoints.
fn records(service: &str, endpoints: &str, timeout: Option<&str>) -> Result<Vec<v1::Op>, String> {
    let declared = json!({ "kind": "Service", "name": service, "protocol": "http1" });
    let mut policy = json!({
        "kind": "Policy",
        "service": service,
        "routes": [{ "name": "all", "match": { "path": { "prefix": "/" } } }],
        "balancing": { "policy": "leastRequest" },
    });
    if let Some(timeout) = timeout {
        policy["timeout"] = timeout.into();
    }
    let mut ops = [mesh_processes::ops(&declared)?, mesh_processes::ops(&policy)?].concat();
    for (number, address) in endpoints.split(',').enumerate() {
        let address = address.parse().map_err(|e| format!("{address}: {e}"))?;
        ops.push(endpoint(service, REGION, (&format!("e{number}"), address))?);
    }
    Ok(ops)
}
