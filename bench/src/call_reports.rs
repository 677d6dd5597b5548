//! `bench/run call-reports`: the CPU cost of the call reports that programs send for services with planned tables.
//!
//! Two meshes differ in the policy of their service: one asks for a planner in shadow mode, so calls are counted and
//! reported but routed as before. The library with its servers and the proxy take turns in both meshes.
//!
//! Then an agent gets the counts that a hundred programs report for views of the mesh.

mod agent_reports;

use std::{error::Error, path::Path, time::Duration};

use serde_json::json;

use crate::{
    mesh_processes::{ControlPlane, fairmesh, port, start_agent},
    proxy::process::Process,
    report::Report,
    role_process::RoleProcess,
};

/// Number of callers that call again as soon as they have the response.
const TASKS: usize = 16;
/// Bytes of each request and response: few, so that the cost of counting weighs most.
const PAYLOAD: &str = "600";
const SERVICE: &str = "bench/http1";
/// Goal: at most 5 % more CPU.
const MOST: f64 = 1.05;
/// Goal: at most 1 % of a core for an agent.
const AGENT_MOST: f64 = 1.0;

/// Measures; `quick` ends within a minute.
pub(crate) fn run(quick: bool) -> Result<Report, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (rounds, length) = if quick { (6, Duration::from_millis(500)) } else { (20, Duration::from_secs(1)) };
    let [library, proxy] = runtime.block_on(measure(rounds, length))?;
    let mut report = Report::new("call-reports");
    let mut add = |name, what: &str, ratios: Vec<f64>| {
        let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
        let note =
            format!("CPU of {what} per call with reports over without, median; {least:.3} to {most:.3}");
        report.figure(name, ratios[ratios.len() / 2], Some(MOST), note);
    };
    add("library_cpu_ratio", "client and servers", library);
    add("proxy_cpu_ratio", "the proxy", proxy);
    let agent = runtime.block_on(agent_reports::cpu_percent(if quick { 3 } else { 12 }))?;
    let note =
        "% of a core of an agent with 100 programs and 50 pairs of services each, which report every 5 s";
    report.figure("agent_cpu_percent", agent, Some(AGENT_MOST), note);
    Ok(report)
}

/// CPU ratios per round, ascending: of the library, and of the proxy. At least one round.
async fn measure(rounds: usize, length: Duration) -> Result<[Vec<f64>; 2], String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut sides = [Side::start(dir.path(), false).await?, Side::start(dir.path(), true).await?];
    let (mut library, mut proxy) = (Vec::new(), Vec::new());
    // The first round is a warm-up and is not counted.
    for round in 0..=rounds {
        // The order alternates, so that a machine that slows down favours neither side.
        let mut costs = [[0.0; 2]; 2];
        for turn in [round % 2, 1 - round % 2] {
            costs[turn] = sides[turn].costs(length).await?;
        }
        if round > 0 {
            library.push(costs[1][0] / costs[0][0]);
            proxy.push(costs[1][1] / costs[0][1]);
        }
    }
    library.sort_by(f64::total_cmp);
    proxy.sort_by(f64::total_cmp);
    Ok([library, proxy])
}

/// A mesh with ten servers, a program that calls them through the library, and one that calls them through a proxy.
struct Side {
    _control: ControlPlane,
    _agent: Process,
    servers: RoleProcess,
    library: RoleProcess,
    proxy: Process,
    through_proxy: RoleProcess,
}

impl Side {
    async fn start(dir: &Path, is_planned: bool) -> Result<Self, String> {
        let dir = dir.join(if is_planned { "planned" } else { "unplanned" });
        std::fs::create_dir(&dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
        let control = ControlPlane::start(&dir).await?;
        let mut documents = vec![json!({"kind": "Service", "name": SERVICE, "protocol": "http1"})];
        if is_planned {
            let traffic = json!({"planner": "rings", "mode": "shadow"});
            documents.push(json!({"kind": "Policy", "service": SERVICE, "traffic": traffic}));
        }
        control.apply(&documents).await?;
        let (agent, agent_at) = start_agent(&dir, &control, "bench", "agent.sock").await?;
        let servers = ["servers", "--protocol", "http1", "--layer", "on"];
        let (servers, _) = RoleProcess::start(&dir, &servers).await?;
        let client = ["client", "--protocol", "http1", "--payload", PAYLOAD, "--kind"];
        let (library, _) = RoleProcess::start(&dir, &[&client[..], &["mesh"]].concat()).await?;

        let (at, admin) = (port()?, port()?);
        let args =
            format!("proxy --agent {agent_at} --listen {at}={SERVICE} --admin {admin} --client-id bench");
        let args: Vec<String> = args.split(' ').map(str::to_owned).collect();
        let mut proxy = Process::start(&dir, "proxy", fairmesh(&args)?)?;
        let listens = async || tokio::net::TcpStream::connect(at).await.is_ok();
        proxy.ready(listens).await.map_err(|e| format!("the proxy {e}"))?;
        let at = at.to_string();
        let through_proxy = [&client[..], &["static", "--servers", &at]].concat();
        let (through_proxy, _) = RoleProcess::start(&dir, &through_proxy).await?;
        Ok(Self { _control: control, _agent: agent, servers, library, proxy, through_proxy })
    }

    /// CPU time per call, in nanoseconds: of the library's client and servers, and of the proxy.
    async fn costs(&mut self, length: Duration) -> Result<[f64; 2], String> {
        let before = self.servers.cpu_ns().await?;
        let run = self.library.closed(TASKS, length).await?;
        let servers = self.servers.cpu_ns().await? - before;
        let library = (run.cpu_ns + servers) as f64 / run.calls.max(1) as f64;
        let before = self.proxy.cpu_ns();
        let run = self.through_proxy.closed(TASKS, length).await?;
        Ok([library, (self.proxy.cpu_ns() - before) as f64 / run.calls.max(1) as f64])
    }
}
