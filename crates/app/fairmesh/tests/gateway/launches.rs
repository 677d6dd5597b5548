//! A service grows, no backend has room, and the provider's command starts one.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_test_support::{eventually_async as until, free_port};
use fairmesh_wire::{
    handshake::Connection,
    v1::{GatewayServiceCounts, ReportGatewayRequest},
};
use tokio::time::{Instant, interval};

use crate::{
    loads::{Callers, Fleet, Quota, alert_of, start_replica},
    mesh::{Mesh, Options, serve_pod},
};

/// Longest time from the alert until the new backend has calls: the figure of the issue.
const NEW: Duration = Duration::from_secs(45);

/// The name that the control plane gives to the first launched backend.
const LAUNCHED: &str = "launched-1";

/// A launcher that notes its runs, and prints this address of a replica. Returns the option of the control plane.
fn launcher(folder: &Path, address: SocketAddr) -> &'static str {
    let (script, runs) = (folder.join("launcher"), folder.join("runs"));
    let text = format!(
        "#!/bin/sh\necho $FAIRMESH_BACKEND $FAIRMESH_ZONE $FAIRMESH_SERVICE >> {}\necho {address}\n",
        runs.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    format!("--gateway-launcher {}", script.display()).leak()
}

/// Reports the load of replicas once a second, each with its backend, in place of processes: red/web has few calls, or many. The
/// launched backend has none yet.
async fn report(
    connection: Connection,
    replicas: Arc<Mutex<Vec<(String, String)>>>,
    is_busy: Arc<AtomicBool>,
) {
    let mut seconds = interval(Duration::from_secs(1));
    loop {
        seconds.tick().await;
        let is_busy = is_busy.load(Relaxed);
        let replicas = replicas.lock().unwrap().clone();
        for (backend, address) in replicas {
            let (requests, cpu_us) = match backend.as_str() {
                LAUNCHED => (0, 20_000),
                _ if is_busy => (450, 900_000),
                _ => (100, 200_000),
            };
            let counts = GatewayServiceCounts { service: "red/web".into(), requests, ..Default::default() };
            let report = ReportGatewayRequest {
                address,
                backend,
                span_ms: 1_000,
                cpu_us,
                limit_millicores: 1_000,
                requests,
                services: vec![counts],
                ..Default::default()
            };
            connection.signals().report_gateway(report).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reported_growth_runs_the_launcher_once_and_completes_the_record() {
    let folder = tempfile::tempdir().unwrap();
    let launched = SocketAddr::from(([10, 66, 0, 9], 7440));
    let control = launcher(folder.path(), launched);
    let options = Options { control, ..Options::default() };
    let Some(mesh) = Mesh::start_with(serve_pod().await, options).await else { return };
    let mut records = "{kind: GatewayService, service: red/web, homeZone: a}\n".to_owned();
    let backends =
        [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b"), ("b3", "b"), ("b4", "b"), ("b5", "b")];
    for (number, (name, zone)) in backends.iter().enumerate() {
        records += &format!(
            "---\n{{kind: GatewayBackend, name: {name}, zone: {zone}, replicas: ['10.66.0.{number}:7440']}}\n"
        );
    }
    mesh.cli(&["apply", "-f", "-"], &records).await.ok();
    let placement = async || {
        let listed = mesh.cli(&["get", "gateway-services", "red/web", "-o", "json"], "").await.json();
        listed[0]["placement"].clone()
    };
    until("red/web has both backends at home", async || {
        placement().await["zones"]["a"].as_array().is_some_and(|home| home.len() == 2)
    })
    .await;
    let replicas = ["a1", "a2"].iter().enumerate();
    let replicas = replicas.map(|(number, name)| ((*name).to_owned(), format!("10.66.0.{number}:7440")));
    let replicas = Arc::new(Mutex::new(replicas.collect::<Vec<_>>()));
    let is_busy = Arc::<AtomicBool>::default();
    let reports =
        tokio::spawn(report(mesh.gateway_connection().await, Arc::clone(&replicas), Arc::clone(&is_busy)));
    until("both report", async || {
        let status = mesh.cli(&["gateway", "status", "--json"], "").await.json();
        status.as_array().unwrap().iter().filter(|one| one["load"]["replicas"] == 1).count() == 2
    })
    .await;
    is_busy.store(true, Relaxed);

    until("the record of the new backend is complete", async || {
        let listed = mesh.cli(&["get", "gateway-backends", "-o", "json"], "").await.json();
        let listed = listed.as_array().unwrap().iter().find(|one| one["name"] == "launched-1").cloned();
        listed.is_some_and(|one| one["replicas"][0] == launched.to_string() && one["zone"] == "a")
    })
    .await;
    replicas.lock().unwrap().push((LAUNCHED.to_owned(), launched.to_string()));
    until("red/web has the new backend", async || {
        let home = placement().await["zones"]["a"].as_array().cloned().unwrap_or_default();
        home.iter().any(|name| name == "launched-1")
    })
    .await;
    let runs = fs::read_to_string(folder.path().join("runs")).unwrap();
    assert_eq!(runs, "launched-1 a red/web\n");
    reports.abort();
}

#[ignore = "a minute; make soak runs it"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growing_service_gets_a_backend_that_the_launcher_starts() {
    let folder = tempfile::tempdir().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (control, runs) = (launcher(folder.path(), address), folder.path().join("runs"));
    let Some(fleet) = Fleet::start_with(&["a1", "a2"], Options { control, ..Options::default() }).await
    else {
        return;
    };
    let quota = Quota::new("launched").unwrap();
    until("all replicas report", async || {
        let status = fleet.status().await;
        let loads = status.as_array().unwrap().iter().map(|one| &one["load"]);
        loads.filter(|load| load["replicas"] == 1 && load["limitCores"] == 0.1).count() == 2
    })
    .await;
    let callers = Callers::start(fleet.virtual_address);
    until("a backend has an alert", async || alert_of(&fleet.status().await).is_some()).await;
    let alerted = Instant::now();
    // The script stands for what starts a machine.
    until("the launcher runs", async || fs::read_to_string(&runs).is_ok_and(|runs| runs.ends_with('\n')))
        .await;
    let replica = start_replica(&fleet.mesh, "launched-1", address);
    quota.take(replica.pid());
    until("red/web has the new backend", async || fleet.placement().await == (3, 1)).await;
    until("the new backend gets calls", async || {
        let status = fleet.status().await;
        let launched = status.as_array().unwrap().iter().find(|one| one["backend"] == "launched-1").unwrap();
        let services = launched["load"]["services"].as_array().into_iter().flatten();
        services.into_iter().any(|one| one["requestsPerSecond"].as_f64() > Some(0.1))
    })
    .await;
    let took = alerted.elapsed();
    println!("alert to calls at the new backend: {took:?}");
    assert!(took <= NEW, "{took:?}");
    assert_eq!(fs::read_to_string(&runs).unwrap(), "launched-1 a red/web\n");
    assert_eq!(callers.stop().await, 0, "failed calls");
    drop((replica, quota));
}
