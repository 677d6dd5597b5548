//! Effect of verdicts on picks (Uber, assisted balancing; Canal Mesh §6.1).

use super::*;

/// A fleet in `eu` and a region further out, with the number of consecutive failed probes of each endpoint.
fn fleet(failures: &[(&str, &str, u32)]) -> Fleet {
    let endpoints: Vec<_> = failures.iter().map(|(id, place, _)| (*id, *place)).collect();
    let mut fleet = Fleet::replicated(&endpoints);
    for (id, place, failures) in failures.iter().filter(|(_, _, failures)| *failures > 0) {
        let confidence = Verdict::confidence_of(*failures);
        let cause = "status 503".to_owned();
        let verdict = Verdict { healthy: false, since_ms: 0, confidence, cause, stale: false };
        fleet.health.put(region(place), InstanceId::new(id).unwrap(), verdict);
    }
    fleet
}

#[test]
fn an_unhealthy_endpoint_gets_no_calls_while_others_serve() {
    let mut fleet = fleet(&[("a", "eu", 3), ("b", "eu", 0), ("c", "eu", 0), ("d", "us", 0)]);
    assert_eq!(reached(&fleet.compile(None)), names(&["b", "c"]));
    fleet.endpoints[1].state = EndpointState::Lost;
    assert_eq!(reached(&fleet.compile(None)), names(&["c"]), "half of the capacity may be excluded");
    fleet.endpoints[2].state = EndpointState::Lost;
    let panicking = fleet.compile(None);
    assert_eq!(
        reached(&panicking),
        names(&["a"]),
        "the last endpoint of a region is called in spite of its verdict"
    );
    assert_eq!(panicking.panicking_regions(), [region("eu")]);
}

#[test]
fn verdicts_against_more_than_half_are_ignored() {
    let table = fleet(&[("a", "eu", 9), ("b", "eu", 9), ("c", "eu", 0)]).compile(None);
    assert_eq!(reached(&table), names(&["a", "b", "c"]));
    let powerful = {
        let mut fleet = fleet(&[("a", "eu", 9), ("b", "eu", 0), ("c", "eu", 0)]);
        fleet.endpoints[0].weight = 3000;
        fleet.compile(None)
    };
    assert_eq!(reached(&powerful), names(&["a", "b", "c"]), "capacity counts, not the number of endpoints");
}

#[test]
fn a_shard_whose_only_copy_is_unhealthy_is_still_called() {
    let mut fleet = fleet(&[("a", "eu", 9), ("b", "eu", 0), ("c", "eu", 0)]);
    fleet.service.kind = ServiceKind::Sharded;
    let replica = |id: &str| Replica {
        instance: InstanceId::new(id).unwrap(),
        region: region("eu"),
        role: "primary".parse().unwrap(),
        state: ReplicaState::Serving,
    };
    let shards = vec![Shard { id: ShardId(0), start: ShardKey(0), replicas: vec![replica("a")] }];
    let map = ShardMap { version: 1, interval: KeyRange::ALL, shards };
    fleet.shards = Some(Arc::new(ShardTable::compile(&map)));
    let table = fleet.compile(None);
    let picked = table.pick(&PickParams { key: Some(ShardKey(1)), ..PickParams::default() }, 0, 1).unwrap();
    assert_eq!((id(&table, &picked).as_str(), picked.last_resort), ("a", true));
    assert!(table.panicking_regions().is_empty());
}

#[test]
fn an_explanation_lists_unhealthy_endpoints_with_causes() {
    let health_steps = |fleet: &Fleet| {
        let explained = fleet.compile(None).explain_pick(&PickParams::default(), 0, 1);
        let health = explained.steps.into_iter().filter(|step| step.title == "health");
        health.map(|step| step.detail).collect::<Vec<_>>()
    };
    let one = fleet(&[("a", "eu", 3), ("b", "eu", 0)]);
    assert_eq!(health_steps(&one), ["a is unhealthy (75.0 % certain): status 503"]);
    let all = fleet(&[("a", "eu", 3), ("b", "eu", 3)]);
    assert!(
        health_steps(&all)[1].starts_with("panic: more than half of the capacity that serves in eu"),
        "{:?}",
        health_steps(&all)
    );
}
