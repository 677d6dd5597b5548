//! An agent that is killed and restarted continues to report what its programs have applied.

use std::time::Duration;

use fairmesh_calls::{discovery::ServiceState, forwarding::service_state};
use fairmesh_client::{Mesh, ServiceHandle};
use fairmesh_model::Protocol;
use fairmesh_server::Drained;
use serde_json::json;
use tokio::time::Instant;

use crate::harness::{Kind, Load, Spec, World, beside_others, until};

/// Longest time of a drain that waits only for acknowledgements, and for the time that a restarted agent gives its
/// programs to return: far below the drain's deadline.
const PROMPT: Duration = Duration::from_secs(12);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_caller_acknowledges_endpoint_drain_after_agent_restart() {
    let _machine = beside_others().await;
    let mut world = World::start("{kind: Service, name: shop/quiet}").await;
    let (mesh, bystander) = (world.mesh().await, world.mesh().await);
    let quiet = bystander.service("shop/quiet").unwrap();
    quiet.prepare().await.unwrap();
    let stays = Spec::new("shop/one", "stays", Protocol::Http1).here(&world).await;
    let load = Load::start(Load::of(&mesh.service("shop/one").unwrap(), &[(Kind::Get, 1), (Kind::Post, 2)]));
    for round in 0..4 {
        let drained = format!("drained-{round}");
        let server = Spec::new("shop/one", &drained, Protocol::Http1).here(&world).await;
        load.reaches(&drained).await;
        // The last change that the bystander receives before the agent dies. No later change concerns the bystander, so
        // it must acknowledge its current revision again.
        let held = change(&world, &quiet, round).await;
        if round % 2 == 0 {
            world.is_saved("shop/quiet", held).await;
        }
        world.agent.kill().await;
        if round == 3 {
            world.apply("{kind: Service, name: shop/new}").await.ok();
        }
        world.agent.restart();
        world.agent_is_up().await;
        for caller in [&mesh, &bystander] {
            in_touch(caller).await;
        }

        drain(&world, &drained).await;
        let gets_none = async || {
            let before = load.tally().answered_by(&drained);
            load.goes_on(100).await;
            load.tally().answered_by(&drained) == before
        };
        // Calls picked before the drain may end after it.
        until("what was decided before has ended", gets_none).await;
        assert!(gets_none().await, "it still gets calls");
        drop(server);
    }
    load.stop_unharmed().await;
    let start = Instant::now();
    assert_eq!(stays.stop().await, Drained::CallersMoved);
    assert!(start.elapsed() < PROMPT, "the last took {:?}", start.elapsed());
}

/// Changes a service's policy and waits until a caller applies it; returns the revision.
async fn change(world: &World, service: &ServiceHandle, round: u32) -> u64 {
    let revision = || match &*service_state(service) {
        ServiceState::Ready(ready) => ready.revision,
        _ => 0,
    };
    let before = revision();
    let policy = format!("{{kind: Policy, service: {}, timeout: {}s}}", service.name(), round + 1);
    world.apply(&policy).await.ok();
    until("the caller goes by the change", async || revision() > before).await;
    revision()
}

async fn drain(world: &World, instance: &str) {
    let start = Instant::now();
    let answer = world.cli(&["drain", "shop/one", instance, "--deadline", "20s", "--json"]).await;
    let took = start.elapsed();
    let answer = answer.json();
    assert_eq!((&answer["callersMoved"], &answer["behind"]), (&json!(true), &json!([])));
    assert!(took < PROMPT, "{instance} took {took:?}");
}

/// Waits until a caller follows the agent again.
async fn in_touch(caller: &Mesh) {
    until("the caller is in touch", async || caller.stats().data_age.is_zero()).await;
}
