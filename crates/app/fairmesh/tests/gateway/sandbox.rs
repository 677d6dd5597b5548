//! A service whose calls take backends down is moved to the sandbox, and no further.

use std::time::Duration;

use fairmesh_test_support::eventually_async as until;
use rustix::process::Signal;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    loads::{Fleet, call},
    mesh::Options,
};

/// Longest time from the last crash until the service is served in the sandbox.
const MOVED: Duration = Duration::from_secs(25);

/// The backends of red/web in its home zone.
async fn home(fleet: &Fleet) -> Vec<String> {
    let listed = fleet.mesh.cli(&["get", "gateway-services", "red/web", "-o", "json"], "").await.json();
    let names = listed[0]["placement"]["zones"]["a"].as_array().cloned().unwrap_or_default();
    names.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_that_takes_its_backends_down_is_moved_to_the_sandbox_alone() {
    let names = ["a1", "a2", "a3", "sandbox"];
    let Some(mut fleet) = Fleet::start_with(&names, Options::default()).await else { return };
    until("all replicas report", async || {
        let status = fleet.status().await;
        status.as_array().unwrap().iter().filter(|one| one["load"]["replicas"] == 1).count() == names.len()
    })
    .await;
    let before = home(&fleet).await;
    assert!(before.len() == 2 && !before.contains(&"sandbox".to_owned()), "{before:?}");
    until("both backends have calls", async || {
        call(fleet.virtual_address).await;
        let status = fleet.status().await;
        let has_calls = |name: &String| {
            let backend = status.as_array().unwrap().iter().find(|one| one["backend"] == **name).unwrap();
            let services = backend["load"]["services"].as_array().into_iter().flatten();
            services.into_iter().any(|one| one["requestsPerSecond"].as_f64() > Some(0.1))
        };
        before.iter().all(has_calls)
    })
    .await;
    // What a query of death does.
    for (name, replica) in &mut fleet.replicas {
        if before.iter().any(|one| one == name) {
            replica.signal(Signal::KILL);
        }
    }
    let crashed = Instant::now();
    until("it is in the sandbox", async || home(&fleet).await == ["sandbox"]).await;
    until("it is served there", async || call(fleet.virtual_address).await).await;
    let took = crashed.elapsed();
    assert!(took <= MOVED, "{took:?}");
    let status = fleet.status().await;
    let backends = status.as_array().unwrap();
    let sandbox = backends.iter().find(|one| one["backend"] == "sandbox").unwrap();
    let item = &sandbox["inForce"][0];
    assert!(item["service"] == "red/web" && item["pinned"]["sandbox"] == true, "{item}");
    assert_eq!(item["pinned"]["reason"], "it took its backends down");
    let explained = fleet.gateway(&["explain", "red/web"]).await;
    assert!(explained.contains("it was moved to the sandbox"), "{explained}");
    // An operator lets it out, and it is placed among others again.
    fleet.gateway(&["move", "red/web", "--unpin"]).await;
    until("it is out of the sandbox", async || {
        let home = home(&fleet).await;
        home.len() == 2 && home.iter().all(|name| name != "sandbox")
    })
    .await;
    drop(fleet.replicas);
}
