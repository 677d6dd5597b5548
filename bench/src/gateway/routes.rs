//! Memory of a gateway by route of many tenants, and the time until a change of a route has its effect, under load.

use std::time::Duration;

use fairmesh_identity::{IdentityRequest, ProgramIdentity};
use fairmesh_model::SpiffePath;
use fairmesh_wire::{
    proxy_protocol::{Addresses, ConnectionId, write_with_id},
    transport::{EndpointAddress, ExpectedPeer, Stream, Transport},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, timeout},
};

use super::{BenchMesh, Scale, nodes::Nodes};
use crate::{load_generator::Latencies, proxy::results::median, report::Report, role_process::RoleProcess};

/// Routes of each tenant.
const ROUTES: usize = 40;
/// Tenants whose records are written in one batch.
const BATCH: usize = 50;
/// Time limit for a change to have its effect.
const PATIENCE: Duration = Duration::from_secs(30);
/// A destination without a service, so that the host names it.
const ELSEWHERE: [u8; 4] = [10, 96, 9, 9];

/// Measures both with the callers of the compared sides as load.
pub(super) async fn measure(
    mesh: &BenchMesh<'_>,
    nodes: &Nodes,
    (pods, scale): (&mut RoleProcess, Scale),
    report: &mut Report,
) -> Result<(), String> {
    let Scale { tenants, changes, rate, .. } = scale;
    let before = memory(nodes);
    eprintln!("{} routes of {tenants} tenants", tenants * ROUTES);
    let all: Vec<usize> = (0..tenants).collect();
    for batch in all.chunks(BATCH) {
        let documents: Vec<_> = batch.iter().flat_map(|tenant| documents(*tenant, 0)).collect();
        mesh.control.apply(&documents).await?;
    }
    let mut last = None;
    for tenant in 0..tenants {
        let mut caller = Caller::connect(nodes, tenant).await?;
        caller.until(0).await?;
        last = Some(caller);
    }
    let grown = memory(nodes).saturating_sub(before) as f64 / 1024.0 / (tenants * ROUTES) as f64;
    let note =
        format!("KB of the gateway by route, {} routes of {tenants} tenants, each in use", tenants * ROUTES);
    report.figure("kb_per_route", grown, Some(8.0), note);
    let mut caller = last.ok_or("there is no tenant")?;
    let mut times = Vec::new();
    let changing = async {
        for version in 1..=changes {
            let began = Instant::now();
            mesh.control.apply(&documents(tenants - 1, version)).await?;
            caller.until(version).await?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        Ok::<_, String>(())
    };
    // The load outlasts the changes.
    let length = Duration::from_millis(200) * u32::try_from(changes).unwrap_or(u32::MAX);
    let load = pods.run::<Latencies>(format!("open 0 {} {rate}", length.as_millis()), length);
    let (changed, called) = tokio::join!(changing, load);
    changed?;
    called?;
    let note = format!(
        "ms from the write of a policy to its effect, median of {changes}, at {rate} requests a second"
    );
    report.figure("apply_to_effect_ms", median(&times), Some(30.0), note);
    Ok(())
}

fn memory(nodes: &Nodes) -> u64 {
    nodes.side.provider.iter().map(|process| process.rss_bytes()).sum()
}

/// The service of a tenant, and its routes: redirects from `/r/NUMBER` to `/vVERSION/NUMBER`.
fn documents(tenant: usize, version: usize) -> [Value; 2] {
    let name = format!("t{tenant}/web");
    let routes: Vec<_> = (0..ROUTES)
        .map(|number| {
            let to = json!({"path": {"full": format!("/v{version}/{number}")}, "status": 308});
            json!({"name": format!("r-{number}"), "match": {"path": {"exact": format!("/r/{number}")}}, "redirect": to})
        })
        .collect();
    [
        json!({"kind": "Service", "name": name, "protocol": "http1"}),
        json!({"kind": "Policy", "service": name, "routes": routes}),
    ]
}

/// A connection of a tenant's pod to the gateway, as its node opens it.
struct Caller(Stream);

impl Caller {
    async fn connect(nodes: &Nodes, tenant: usize) -> Result<Self, String> {
        let path: SpiffePath = format!("t{tenant}/client").parse().map_err(|e| format!("{e:?}"))?;
        let request = IdentityRequest {
            agent: nodes.agent.clone(),
            workload_api: None,
            control_planes: Vec::new(),
            token: None,
            path: Some(path),
            software: "bench".into(),
            patience: PATIENCE,
        };
        let identity = ProgramIdentity::of_caller(request).await;
        let identity = identity.ok_or_else(|| format!("no certificate for a pod of tenant t{tenant}"))?;
        let stream = dial(&identity.transport(), nodes).await;
        stream.map(Self).map_err(|e| format!("cannot connect to the gateway: {e}"))
    }

    /// Calls until a route leads to this version.
    async fn until(&mut self, version: usize) -> Result<(), String> {
        let wanted = format!("/v{version}/7\r\n");
        let calls = async {
            while !self.call().await?.contains(&wanted) {}
            Ok::<_, String>(())
        };
        let ended = timeout(PATIENCE, calls).await;
        ended.unwrap_or_else(|_| Err(format!("version {version} has no effect within {PATIENCE:?}")))
    }

    async fn call(&mut self) -> Result<String, String> {
        let request = b"GET /r/7 HTTP/1.1\r\nhost: web\r\n\r\n";
        let mut read = Vec::new();
        let exchange = async {
            self.0.write_all(request).await?;
            self.0.flush().await?;
            while !read.ends_with(b"\r\n\r\n") {
                if self.0.read_buf(&mut read).await? == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
            }
            Ok(())
        };
        exchange.await.map_err(|e: std::io::Error| format!("the gateway closed a connection: {e}"))?;
        Ok(String::from_utf8_lossy(&read).to_ascii_lowercase())
    }
}

async fn dial(pod: &Transport, nodes: &Nodes) -> std::io::Result<Stream> {
    let endpoint = EndpointAddress {
        address: nodes.gateway,
        peer: Some(ExpectedPeer::Gateway),
        accepts_plaintext: false,
        from: None,
    };
    let mut stream = pod.connect_endpoint(endpoint).await?;
    let addresses = Addresses { source: ([10, 1, 1, 2], 40_000).into(), destination: (ELSEWHERE, 80).into() };
    stream.write_all(&write_with_id(addresses, ConnectionId(7))).await?;
    stream.flush().await?;
    Ok(stream)
}
