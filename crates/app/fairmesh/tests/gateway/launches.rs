//! A service grows, no backend has room, and the provider's command starts one.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt as _, time::Duration};

use fairmesh_test_support::{eventually_async as until, free_port};
use tokio::time::Instant;

use crate::{
    loads::{Callers, Fleet, Quota, alert_of, start_replica},
    mesh::Options,
};

/// Longest time from the alert until the new backend has calls: the figure of the issue.
const NEW: Duration = Duration::from_secs(45);

#[ignore = "a minute; make soak runs it"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growing_service_gets_a_backend_that_the_launcher_starts() {
    let folder = tempfile::tempdir().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (script, runs) = (folder.path().join("launcher"), folder.path().join("runs"));
    let text = format!(
        "#!/bin/sh\necho $FAIRMESH_BACKEND $FAIRMESH_ZONE $FAIRMESH_SERVICE >> {}\necho {address}\n",
        runs.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let control = format!("--gateway-launcher {}", script.display()).leak();
    let Some(fleet) = Fleet::start_with(&["a1", "a2"], Options { control, ..Options::default() }).await
    else {
        return;
    };
    let quota = Quota::new("launched").unwrap();
    until("all replicas report", async || {
        let status = fleet.status().await;
        let loads = status.as_array().unwrap().iter().map(|one| &one["load"]);
        loads.filter(|load| load["replicas"] == 1 && load["limitCores"] == 0.2).count() == 2
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
