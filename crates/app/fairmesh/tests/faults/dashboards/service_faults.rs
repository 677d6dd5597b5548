//! A mesh whose services have faults, each of which an alert reports.

use std::{fs, time::Duration};

use axum::Router;
use fairmesh_test_support::{fairmesh, run};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinSet, time::sleep};

use super::mesh::call;
use crate::harness::{Process, Program, free_port, until};

const RECORDS: &str = "\
{kind: Topology, regions: [{name: eu}, {name: us}], roundTrips: [{between: [eu, us], rtt: 20ms}]}
---
{kind: Service, name: shop/sick}
---
{kind: Policy, service: shop/sick, healthCheck: {tcp: {}, interval: 200ms, timeout: 100ms, minimumSamples: 1, fall: 1}}
---
{kind: Service, name: shop/far}
---
{kind: Policy, service: shop/far, healthCheck: {tcp: {}}}
---
{kind: Service, name: shop/dropped}
---
{kind: Policy, service: shop/dropped, traffic: {shares: [{from: eu, to: {eu: 1%}, dropped: 99%}]}}
---
{kind: Service, name: shop/planned}
---
{kind: Policy, service: shop/planned, traffic: {planner: rings}}
---
{kind: Service, name: shop/ruled}
---
{kind: Policy, service: shop/ruled, authorization: {rules: [{name: web, from: [shop/web]}]}}
---
{kind: Service, name: shop/audited}
---
{kind: Policy, service: shop/audited, authorization: {mode: audit, rules: [{name: web, from: [shop/web]}]}}
---
{kind: Service, name: shop/busy}
";

/// Alerts that the faults fire.
pub(super) const ALERTS: &[&str] = &[
    // An endpoint that refuses connections, as the only one of its service.
    "FairmeshEndpointsUnhealthy",
    "FairmeshHealthPanic",
    // Health checks in a region without an agent.
    "FairmeshRegionUnchecked",
    // A table that drops calls, and a planned service whose servers report nothing.
    "FairmeshCallsDropped",
    "FairmeshPlanKept",
    // Callers without an identity.
    "FairmeshCallsUnauthorized",
    "FairmeshCallsAudited",
    // A program that takes one request at a time, and gets several.
    "FairmeshServerOverloaded",
    // A file of endpoints that is no YAML, and a collector of spans that does not listen.
    "FairmeshSourceFileInvalid",
    "FairmeshTelemetryLost",
];

/// Services that are called; `busy` several times at once.
const CALLED: &[&str] =
    &["dropped.shop", "ruled.shop", "audited.shop", "busy.shop", "busy.shop", "busy.shop"];
/// Time that the program takes to respond.
const SLOW: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(50);

/// The processes, which end on drop.
pub(super) struct FaultyServices {
    pub(super) folder: TempDir,
    /// Addresses of the pages of all processes.
    pub(super) pages: Vec<String>,
    _processes: Vec<Process>,
    tasks: JoinSet<()>,
    /// Address for calls by host.
    proxy: String,
}

impl FaultyServices {
    /// Starts the processes; nothing is called yet.
    pub(super) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut tasks = JoinSet::new();
        let program = slow_program(&mut tasks).await;
        let dir = folder.path().display();
        fs::write(folder.path().join("broken.yaml"), "kind: Endpoints\nservice: [\n").unwrap();
        fs::write(folder.path().join("endpoints.yaml"), endpoints(&program)).unwrap();
        let [grpc, control, agent, proxy] = addresses();
        let [admin, audited_admin, busy_admin, unused] = addresses();
        let [ruled, audited, busy, other] = addresses();
        let start = |name: &str, arguments: &str| {
            Process::start(Program::fairmesh(folder.path().join(format!("{name}.log")), arguments))
        };
        let mut processes = vec![start(
            "control",
            &format!(
                "control --trust-domain none --data-dir {dir}/data --grpc {grpc} --admin {control} \
                 --source {dir}/broken.yaml --source {dir}/endpoints.yaml"
            ),
        )];
        let apply =
            || run(fairmesh(&["apply", "-f", "-", "--control", &grpc]), RECORDS, Duration::from_secs(30));
        until("the control plane takes records", async || apply().await.code == Some(0)).await;
        let socket = format!("unix:{dir}/agent.sock");
        processes.push(start(
            "agent",
            &format!("agent --region eu --name agent --control {grpc} --admin {agent} --listen {socket} --state-dir {dir}/agent"),
        ));
        let inbound = |listen: &str, (service, address): (&str, &str), admin: &str| {
            format!(
                "proxy --agent {socket} --region eu --listen {listen} --inbound shop/{service}@{address}={program} --admin {admin}"
            )
        };
        let traced =
            inbound(&proxy, ("ruled", &ruled), &admin) + " --trace-to http://127.0.0.1:9 --trace-one-in 1";
        let limited = inbound(&other, ("busy", &busy), &busy_admin) + " --inbound-requests 1";
        processes.push(start("ruled", &traced));
        processes.push(start("audited", &inbound(&unused, ("audited", &audited), &audited_admin)));
        processes.push(start("busy", &limited));
        let pages = [control, agent, admin, audited_admin, busy_admin].into();
        let mesh = Self { folder, pages, _processes: processes, tasks, proxy };
        for (host, status) in [("ruled.shop", 403), ("audited.shop", 200), ("busy.shop", 200)] {
            let serves = async || call(&mesh.proxy, host, "text/plain").await == Some(status);
            until(&format!("{host} responds with {status}"), serves).await;
        }
        mesh
    }

    /// Calls the services without end.
    pub(super) fn call(&mut self) {
        for host in CALLED {
            let proxy = self.proxy.clone();
            self.tasks.spawn(async move {
                loop {
                    call(&proxy, host, "text/plain").await;
                    sleep(PAUSE).await;
                }
            });
        }
    }
}

fn addresses() -> [String; 4] {
    [(); 4].map(|()| format!("127.0.0.1:{}", free_port()))
}

/// Serves every request slowly; returns the address.
async fn slow_program(tasks: &mut JoinSet<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let router = Router::new().fallback(|| sleep(SLOW));
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

/// A file of endpoints: those of `sick` and `far` do not listen.
fn endpoints(program: &str) -> String {
    let silent = format!("127.0.0.1:{}", free_port());
    let of = |service: &str, address: &str, region: &str| {
        format!(
            "kind: Endpoints\nservice: shop/{service}\nendpoints: [{{instance: {service}-0, address: '{address}', region: {region}}}]\n"
        )
    };
    [
        of("sick", &silent, "eu"),
        of("far", &silent, "us"),
        of("dropped", program, "eu"),
        of("planned", program, "eu"),
    ]
    .join("---\n")
}
