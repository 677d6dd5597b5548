//! What picks make of verdicts (Uber, assisted balancing; Canal Mesh §6.1).

use super::*;

/// A world in `eu` and a region further out, with as many failed probes in a row as each endpoint has.
fn world(failures: &[(&str, &str, u32)]) -> World {
    let endpoints: Vec<_> = failures.iter().map(|(id, place, _)| (*id, *place)).collect();
    let mut world = World::replicated(&endpoints);
    for (id, place, failures) in failures.iter().filter(|(_, _, failures)| *failures > 0) {
        let confidence = Verdict::confidence_of(*failures);
        let cause = "status 503".to_owned();
        let verdict = Verdict { healthy: false, since_ms: 0, confidence, cause, stale: false };
        world.health.put(region(place), InstanceId::new(id).unwrap(), verdict);
    }
    world
}

#[test]
fn an_unhealthy_endpoint_gets_no_calls_while_others_serve() {
    let mut world = world(&[("a", "eu", 3), ("b", "eu", 0), ("c", "eu", 0), ("d", "us", 0)]);
    assert_eq!(reached(&world.compile(None)), names(&["b", "c"]));
    world.endpoints[1].state = EndpointState::Lost;
    assert_eq!(reached(&world.compile(None)), names(&["c"]), "half of what serves is enough");
    world.endpoints[2].state = EndpointState::Lost;
    let panicking = world.compile(None);
    assert_eq!(reached(&panicking), names(&["a"]), "the last of a region is called whatever is said of it");
    assert_eq!(panicking.panics(), [region("eu")]);
}

#[test]
fn verdicts_against_more_than_half_are_ignored() {
    let upstream = world(&[("a", "eu", 9), ("b", "eu", 9), ("c", "eu", 0)]).compile(None);
    assert_eq!(reached(&upstream), names(&["a", "b", "c"]));
    let powerful = {
        let mut world = world(&[("a", "eu", 9), ("b", "eu", 0), ("c", "eu", 0)]);
        world.endpoints[0].weight = 3000;
        world.compile(None)
    };
    assert_eq!(reached(&powerful), names(&["a", "b", "c"]), "capacity counts, and not heads");
}

#[test]
fn a_shard_whose_only_copy_is_unhealthy_is_still_called() {
    let mut world = world(&[("a", "eu", 9), ("b", "eu", 0), ("c", "eu", 0)]);
    world.service.kind = ServiceKind::Sharded;
    let replica = |id: &str| Replica {
        instance: InstanceId::new(id).unwrap(),
        region: region("eu"),
        role: "primary".parse().unwrap(),
        state: ReplicaState::Serving,
    };
    let shards = vec![Shard { id: ShardId(0), start: ShardKey(0), replicas: vec![replica("a")] }];
    let map = ShardMap { version: 1, interval: KeyRange::ALL, shards };
    world.shards = Some(Arc::new(Shards::compile(&map)));
    let upstream = world.compile(None);
    let picked = upstream.pick(&Ask { key: Some(ShardKey(1)), ..Ask::default() }, 0, 1).unwrap();
    assert_eq!((id(&upstream, &picked).as_str(), picked.last_resort), ("a", true));
    assert!(upstream.panics().is_empty());
}

#[test]
fn an_explanation_names_who_is_unhealthy_and_why() {
    let told = |world: &World| {
        let explained = world.compile(None).explain_pick(&Ask::default(), 0, 1);
        let health = explained.steps.into_iter().filter(|step| step.title == "health");
        health.map(|step| step.detail).collect::<Vec<_>>()
    };
    let one = world(&[("a", "eu", 3), ("b", "eu", 0)]);
    assert_eq!(told(&one), ["a is unhealthy (75.0 % sure): status 503"]);
    let all = world(&[("a", "eu", 3), ("b", "eu", 3)]);
    assert!(
        told(&all)[1].starts_with("panic: more than half of the power that serves in eu"),
        "{:?}",
        told(&all)
    );
}
