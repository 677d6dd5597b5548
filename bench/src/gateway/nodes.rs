//! A gateway, the node of the calling pods and the node of the serving pods.

use std::net::SocketAddr;

use fairmesh_wire::transport::Address;

use super::{BenchMesh, CALLER, PODS, SERVICES, Side, documents, servers_of};
use crate::{
    mesh_processes::{port, start_agent},
    proxy::process::Process,
};

/// The side of the gateway.
pub(super) struct Nodes {
    pub(super) side: Side,
    /// Address where nodes connect to the gateway.
    pub(super) gateway: SocketAddr,
    pub(super) agent: Address,
    _agent: Process,
}

/// Starts all processes. Each service has a virtual address, at which the calling pods' node captures.
pub(super) async fn start(mesh: &BenchMesh<'_>) -> Result<Nodes, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("connections are captured with CAP_NET_RAW; run it as root".into());
    }
    let capture = port()?.port();
    let address = |service: usize| SocketAddr::from(([127, 0, 9, service as u8 + 1], capture));
    let services = SERVICES.iter().enumerate().map(|(at, service)| documents(service, Some(address(at))));
    let documents: Vec<_> = services.chain([documents(CALLER, None)]).flatten().collect();
    mesh.control.apply(&documents).await?;
    let (process, agent) = start_agent(mesh.dir, &mesh.control, "bench", "agent.sock").await?;
    let gateway = port()?;
    let replica =
        fairmesh(mesh, "gateway", &format!("gateway --agent {agent} --listen {gateway} --cores 1"))?;
    let callers = (1..=PODS).map(|pod| format!("--pod {CALLER}=127.0.1.{pod}"));
    let calling = node(mesh, "calling", (&agent, gateway, capture), callers)?;
    let mut serving = Vec::new();
    for (service, servers) in servers_of(&mesh.servers) {
        let at = port()?;
        serving.extend(servers.iter().map(|server| format!("--pod {service}@{at}={server}")));
    }
    let serving = node(mesh, "serving", (&agent, gateway, port()?.port()), serving.into_iter())?;
    let calls = (1..=PODS).flat_map(|pod| {
        (0..SERVICES.len()).map(move |service| format!("127.0.1.{pod}={}", address(service)))
    });
    let side = Side { on_nodes: vec![calling, serving], provider: vec![replica], calls: calls.collect() };
    Ok(Nodes { side, gateway, agent, _agent: process })
}

fn node(
    mesh: &BenchMesh<'_>,
    name: &str,
    (agent, gateway, capture): (&Address, SocketAddr, u16),
    pods: impl Iterator<Item = String>,
) -> Result<Process, String> {
    let pods: Vec<_> = pods.collect();
    let args =
        format!("node --agent {agent} --gateway {gateway} --capture 0.0.0.0:{capture} {}", pods.join(" "));
    fairmesh(mesh, name, &args)
}

/// Starts a process on the processor of proxies.
fn fairmesh(mesh: &BenchMesh<'_>, name: &str, args: &str) -> Result<Process, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?.with_file_name("fairmesh");
    let args: Vec<_> = args.split(' ').chain(["--admin", "none"]).collect();
    Process::pinned(mesh.dir, name, &program, &args)
}
