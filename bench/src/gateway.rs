//! `bench/run gateway`: a multi-tenant gateway with a node on two machines, beside one Envoy sidecar for each of the
//! thirty pods (Canal Mesh, section 5.1). Sides alternate within each round.

mod nodes;
mod routes;
mod sidecars;

use std::{error::Error, net::SocketAddr, path::Path, time::Duration};

use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    load_generator::{Latencies, Run, Seen},
    mesh_processes::{ControlPlane, port},
    paired_ratio::Median,
    proxy::{
        contenders::{on_path, version},
        order,
        process::Process,
        results::median,
    },
    report::Report,
    role_process::RoleProcess,
    tls::certificate_authority::{BenchAuthority, DOMAIN},
};

/// Pods that call, and pods that serve.
const PODS: u8 = 15;
/// The services of the serving pods.
const SERVICES: [&str; 3] = ["red/one", "red/two", "red/three"];
/// The service of the calling pods.
const CALLER: &str = "red/client";
/// Bytes of each request and response body.
const PAYLOAD: usize = 600;
/// Number of callers that call again as soon as they have the response.
const TASKS: usize = 16;
/// Time limit for a side to serve all of its pods.
const START: Duration = Duration::from_secs(60);

/// Durations and repetitions.
#[derive(Clone, Copy, Debug)]
struct Scale {
    rounds: usize,
    /// Duration for which a side is called in a round.
    slice: Duration,
    /// Calls per second of the open loop.
    rate: u64,
    /// Tenants with routes.
    tenants: usize,
    /// Changes of routes that are timed.
    changes: usize,
}

impl Scale {
    fn new(quick: bool) -> Self {
        match quick {
            true => Self { rounds: 4, slice: Duration::from_millis(300), rate: 500, tenants: 50, changes: 5 },
            false => {
                Self { rounds: 15, slice: Duration::from_secs(1), rate: 500, tenants: 1_000, changes: 25 }
            }
        }
    }
}

/// The processes between the pods of one side, and how its pods call.
struct Side {
    /// The processes on the tenant's machines.
    on_nodes: Vec<Process>,
    /// Those of the provider.
    provider: Vec<Process>,
    /// `SOURCE=ADDRESS` of each caller and service.
    calls: Vec<String>,
}

impl Side {
    fn cpu_ns(&self) -> [u64; 2] {
        let sum = |processes: &[Process]| processes.iter().map(Process::cpu_ns).sum::<u64>();
        let on_nodes = sum(&self.on_nodes);
        [on_nodes, on_nodes + sum(&self.provider)]
    }
}

/// The mesh of one run.
struct BenchMesh<'a> {
    dir: &'a Path,
    authority: BenchAuthority,
    control: ControlPlane,
    /// The serving pods, those of a service next to one another.
    servers: Vec<SocketAddr>,
}

/// The servers of each service.
fn servers_of(servers: &[SocketAddr]) -> impl Iterator<Item = (&'static str, &[SocketAddr])> {
    SERVICES.into_iter().zip(servers.chunks(servers.len() / SERVICES.len()))
}

/// Runs the benchmark.
pub(crate) fn run(quick: bool) -> Result<Report, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (scale, dir, mut report) = (Scale::new(quick), tempfile::tempdir()?, Report::new("gateway"));
    if let Some(envoy) = on_path("envoy") {
        report.peer("envoy", version(&envoy, "--version")?);
    }
    runtime.block_on(measure(dir.path(), scale, &mut report))?;
    Ok(report)
}

async fn measure(dir: &Path, scale: Scale, report: &mut Report) -> Result<(), String> {
    let authority = BenchAuthority::open(dir)?;
    let control = ControlPlane::start_with(dir, DOMAIN).await?;
    let at = port()?.port();
    let servers = (1..=PODS).map(|pod| SocketAddr::from(([127, 0, 2, pod], at))).collect();
    let mesh = BenchMesh { dir, authority, control, servers };
    let addresses: Vec<String> = mesh.servers.iter().map(ToString::to_string).collect();
    let (mut pods, _) = RoleProcess::start(dir, &["pods", "--servers", &addresses.join(",")]).await?;
    let ours = nodes::start(&mesh).await?;
    add(&mut pods, &ours.side).await.map_err(|why| format!("pods behind nodes: {why}"))?;
    match sidecars::start(&mesh).await {
        Ok(envoy) => {
            add(&mut pods, &envoy).await.map_err(|why| format!("pods behind Envoy: {why}"))?;
            compare(&mut pods, &[&ours.side, &envoy], scale, report).await?;
        }
        Err(why) => ["node_cpu_vs_sidecars", "all_cpu_vs_sidecars", "p50_vs_sidecars"]
            .map(|name| report.unmeasured(name, &why))
            .into_iter()
            .collect(),
    }
    routes::measure(&mesh, &ours, (&mut pods, scale), report).await
}

/// Adds the callers of a side, once all of its pods respond.
async fn add(pods: &mut RoleProcess, side: &Side) -> Result<(), String> {
    let until = Instant::now() + START;
    loop {
        match pods.prepare(format!("side {PAYLOAD} {}", side.calls.join(","))).await {
            Ok(()) => return Ok(()),
            Err(why) if Instant::now() > until => return Err(why),
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

async fn compare(
    pods: &mut RoleProcess,
    sides: &[&Side; 2],
    scale: Scale,
    report: &mut Report,
) -> Result<(), String> {
    let Scale { rounds, slice, rate, .. } = scale;
    let (mut costs, mut p50s) = (Vec::new(), Vec::new());
    // The first round is a warm-up and is not counted.
    for round in 0..=rounds {
        eprintln!("round {round} of {rounds}");
        let (mut cost, mut p50) = ([[0.0; 2]; 2], [0.0; 2]);
        for at in order(round, sides.len()) {
            let before = sides[at].cpu_ns();
            let run: Run = pods.run(format!("closed {at} {} {TASKS}", slice.as_millis()), slice).await?;
            let after = sides[at].cpu_ns();
            cost[at] = [0, 1].map(|of| (after[of] - before[of]) as f64 / run.calls.max(1) as f64 / 1e3);
            let seen: Latencies = pods.run(format!("open {at} {} {rate}", slice.as_millis()), slice).await?;
            p50[at] = Seen::of(&seen).p50 as f64 / 1e6;
        }
        if round > 0 {
            costs.push(cost);
            p50s.push(p50);
        }
    }
    let figures = [
        ("node_cpu_vs_sidecars", 0.5, "CPU of a request on the tenants' machines"),
        ("all_cpu_vs_sidecars", 0.8, "with the gateway"),
    ];
    for (of, (name, goal, what)) in figures.into_iter().enumerate() {
        let rounds: Vec<_> = costs.iter().map(|cost| [cost[0][of], cost[1][of]]).collect();
        tell(report, (name, goal), (what, "µs"), &rounds)?;
    }
    let what = format!("median at {rate} requests a second");
    tell(report, ("p50_vs_sidecars", 1.0), (&what, "ms"), &p50s)
}

fn tell(
    report: &mut Report,
    (name, goal): (&str, f64),
    (what, unit): (&str, &str),
    rounds: &[[f64; 2]],
) -> Result<(), String> {
    let ratios: Vec<_> = rounds.iter().map(|[ours, theirs]| ours / theirs).collect();
    let ratio = Median::of(&ratios).ok_or("no round was measured")?;
    let [ours, theirs] = [0, 1].map(|at| median(&rounds.iter().map(|round| round[at]).collect::<Vec<_>>()));
    let note = format!("{what}: {ratio}; {ours:.2} over {theirs:.2} {unit}");
    report.figure(name, ratio.value, Some(goal), note);
    Ok(())
}

/// A service and the policy that Envoy's configuration corresponds to.
fn documents(service: &str, virtual_address: Option<SocketAddr>) -> [serde_json::Value; 2] {
    let policy = json!({
        "kind": "Policy", "service": service, "timeout": "15s", "balancing": {"policy": "leastRequest"},
        "routes": [{"name": "all", "match": {"path": {"prefix": "/"}}}],
    });
    let mut declared = json!({"kind": "Service", "name": service, "protocol": "http1"});
    if let Some(address) = virtual_address {
        declared["virtualAddress"] = address.to_string().into();
    }
    [declared, policy]
}
