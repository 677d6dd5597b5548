//! An agent that is killed and restarted: it goes on to tell the control plane what its programs have applied.

use std::time::Duration;

use fairmesh_client::server::Drained;
use fairmesh_model::Protocol;
use serde_json::json;
use tokio::time::Instant;

use crate::harness::{Kind, Load, Spec, World, beside_others, until};

/// What a drain may take that waits for nothing but acknowledgements: far below the deadline that it is given.
const PROMPT: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_caller_acknowledges_a_drain_that_follows_a_restart_of_its_agent() {
    let _machine = beside_others().await;
    let mut world = World::start("{kind: Service, name: shop/quiet}").await;
    let mesh = world.mesh().await;
    // Follows only what never changes.
    let idle = world.mesh().await;
    let _ = idle.service("shop/quiet").unwrap().ready().await;
    let stays = Spec::new("shop/one", "stays", Protocol::Http1).here(&world).await;
    let load = Load::start(Load::of(&mesh.service("shop/one").unwrap(), &[(Kind::Get, 1), (Kind::Post, 2)]));
    for round in 0..3 {
        let drained = format!("drained-{round}");
        let server = Spec::new("shop/one", &drained, Protocol::Http1).here(&world).await;
        load.reaches(&drained).await;
        world.agent.kill().await;
        if round == 1 {
            // What changed meanwhile is news to the agent, and to its programs.
            world.apply(&format!("{{kind: Service, name: shop/new-{round}}}")).await.ok();
            world.cli(&["drain", "shop/one", &drained, "--deadline", "1ms"]).await;
        }
        world.agent.restart();
        world.agent_is_up().await;
        in_touch(&[&mesh, &idle]).await;

        let start = Instant::now();
        let answer = world.cli(&["drain", "shop/one", &drained, "--deadline", "20s", "--json"]).await;
        let took = start.elapsed();
        let answer = answer.json();
        assert_eq!((&answer["callersMoved"], &answer["behind"]), (&json!(true), &json!([])));
        assert!(took < PROMPT, "round {round} took {took:?}");
        let before = load.tally().answered_by(&drained);
        load.goes_on(100).await;
        assert_eq!(load.tally().answered_by(&drained), before, "it still gets calls");
        drop(server);
    }
    load.stop_unharmed().await;
    let start = Instant::now();
    assert_eq!(stays.stop().await, Drained::CallersMoved);
    assert!(start.elapsed() < PROMPT, "the last took {:?}", start.elapsed());
}

/// Waits until the callers follow the agent again.
async fn in_touch(callers: &[&fairmesh_client::Mesh]) {
    for caller in callers {
        until("the caller is in touch", async || caller.stats().data_age.is_zero()).await;
    }
}
