//! Effect of health verdicts on picks (Uber, assisted balancing; Canal Mesh §6.1).

use super::*;

/// A fleet in `eu` and one further region, given the number of consecutive failed probes of each endpoint.
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
fn unhealthy_endpoint_gets_no_calls_while_others_serve() {
    let mut fleet = fleet(&[("a", "eu", 3), ("b", "eu", 0), ("c", "eu", 0)]);
    assert_eq!(reached(&fleet.compile(None)), names(&["b", "c"]));
    fleet.endpoints[1].state = EndpointState::Lost;
    assert_eq!(reached(&fleet.compile(None)), names(&["c"]), "half of the capacity may be excluded");
    fleet.endpoints[2].state = EndpointState::Lost;
    let panicking = fleet.compile(None);
    assert_eq!(reached(&panicking), names(&["a"]), "the last endpoint is called in spite of its verdict");
    assert_eq!(panicking.contested_regions(), [(region("eu"), Standing::Panic)]);
}

#[test]
fn verdicts_against_most_endpoints_are_ignored_without_other_ring() {
    let table = fleet(&[("a", "eu", 9), ("b", "eu", 9), ("c", "eu", 0)]).compile(None);
    assert_eq!(reached(&table), names(&["a", "b", "c"]));
    let powerful = {
        let mut fleet = fleet(&[("a", "eu", 9), ("b", "eu", 0), ("c", "eu", 0)]);
        fleet.endpoints[0].weight = 3000;
        fleet.compile(None)
    };
    assert_eq!(reached(&powerful), names(&["a", "b", "c"]), "capacity counts, not the number of endpoints");
}

/// Returns how many of 1000 calls without a key reach each region.
fn shares(table: &ServiceTable) -> BTreeMap<String, u32> {
    let mut shares = BTreeMap::new();
    for seed in 0..1000 {
        let params = PickParams { call_seed: seed, ..PickParams::default() };
        let picked = table.pick(&params, 1, seed).unwrap();
        *shares.entry(table.target(picked.index).location.region.to_string()).or_default() += 1;
    }
    shares
}

#[test]
fn calls_of_unhealthy_region_go_to_next_locality_ring() {
    let all = fleet(&[("a", "eu", 9), ("b", "eu", 3), ("c", "us", 0), ("d", "us", 0)]).compile(None);
    assert_eq!(reached(&all), names(&["c", "d"]));
    assert_eq!(all.contested_regions(), [(region("eu"), Standing::Believed)]);
    let most = fleet(&[("a", "eu", 9), ("b", "eu", 9), ("c", "eu", 0), ("d", "us", 0)]).compile(None);
    assert_eq!(reached_by_calls(&most), names(&["c", "d"]));
    let home = shares(&most)["eu"];
    assert!((430..=500).contains(&home), "1.4 times a third stays, not {home} of 1000");
    assert!(most.numbers().is_err(), "the kernel form leaves such calls to the proxy");
}

fn reached_by_calls(table: &ServiceTable) -> BTreeSet<String> {
    let pick = |seed| {
        let params = PickParams { call_seed: seed, ..PickParams::default() };
        table.pick(&params, 1, seed).unwrap()
    };
    (0..500).map(|seed| id(table, &pick(seed))).collect()
}

#[test]
fn own_successful_calls_overrule_verdicts_of_faulty_checker() {
    let mut fleet = fleet(&[("a", "eu", 0), ("b", "eu", 0), ("c", "us", 0), ("d", "us", 0)]);
    let before = fleet.compile(None);
    for seed in 0..20 {
        let picked = before.pick(&PickParams::default(), 1, seed).unwrap();
        before.begin(picked.index);
        before.finish(picked.index, Outcome::Ok, 1);
    }
    for id in ["a", "b"] {
        let verdict =
            Verdict { healthy: false, since_ms: 0, confidence: 950, cause: String::new(), stale: false };
        fleet.health.put(region("eu"), InstanceId::new(id).unwrap(), verdict);
    }
    let wrong = fleet.compile(Some(&before));
    assert_eq!((reached(&wrong), wrong.contested_regions()[0].1), (names(&["a", "b"]), Standing::Refuted));
    assert!(!wrong.is_evidence_outdated(&fleet.input(&fleet.policy)));
    for seed in 0..20 {
        let picked = wrong.pick(&PickParams::default(), 2, seed).unwrap();
        wrong.begin(picked.index);
        wrong.finish(picked.index, Outcome::Failed, 2);
    }
    assert!(wrong.is_evidence_outdated(&fleet.input(&fleet.policy)));
    let right = fleet.compile(Some(&wrong));
    assert_eq!((reached(&right), right.contested_regions()[0].1), (names(&["c", "d"]), Standing::Believed));
}

#[test]
fn mostly_ejected_region_shares_its_calls_with_next_locality_ring() {
    let places: Vec<(String, &str)> =
        (0..6).map(|i| (format!("i{i}"), "eu")).chain((0..6).map(|i| (format!("u{i}"), "us"))).collect();
    let places: Vec<(&str, &str)> = places.iter().map(|(id, place)| (id.as_str(), *place)).collect();
    for policy in [BalancingPolicy::Score, BalancingPolicy::LeastRequest, BalancingPolicy::RoundRobin] {
        let mut fleet = Fleet::replicated(&places);
        fleet.policy.balancing.policy = policy;
        let table = fleet.compile(None);
        let fail = |instances: &[&str]| {
            for candidate in table.candidates().filter(|c| instances.contains(&c.target.instance.as_str())) {
                for _ in 0..5 {
                    table.begin(candidate.index);
                    table.finish(candidate.index, Outcome::Failed, 1);
                }
            }
        };
        fail(&["i0", "i1", "i2", "i3"]);
        let home = shares(&table)["eu"];
        assert!((430..=680).contains(&home), "{policy:?}: {home} of 1000 stay at a third of the endpoints");
        assert!(reached_by_calls(&table).is_disjoint(&names(&["i0", "i1", "i2", "i3"])), "{policy:?}");
        fail(&["i4", "i5"]);
        assert_eq!(shares(&table).get("eu"), None, "{policy:?}: all of the region fails");
        fail(&["u0", "u1", "u2", "u3", "u4", "u5"]);
        assert_eq!(shares(&table).get("us"), None, "{policy:?}: no ring serves, so none is avoided");
    }
}

#[test]
fn endpoints_with_expired_leases_get_calls_if_most_leases_expired() {
    let mut fleet = Fleet::replicated(&[("a", "eu"), ("b", "eu"), ("c", "eu"), ("d", "eu"), ("e", "eu")]);
    let expire = |endpoint: &mut Endpoint| {
        endpoint.state = EndpointState::Lost;
        endpoint.labels.insert(Endpoint::LOST.to_owned(), format!("5 {}", Endpoint::EXPIRED));
    };
    fleet.endpoints[..2].iter_mut().for_each(expire);
    assert_eq!(reached(&fleet.compile(None)), names(&["c", "d", "e"]), "the others carry the calls");
    fleet.endpoints[..4].iter_mut().for_each(expire);
    let most = fleet.compile(None);
    assert_eq!(reached(&most), names(&["a", "b", "c", "d", "e"]));
    assert!(!most.pick(&PickParams::default(), 1, 1).unwrap().last_resort);
    fleet.endpoints[0].labels.insert(Endpoint::DRAINED.to_owned(), "5 root".to_owned());
    assert_eq!(reached(&fleet.compile(None)), names(&["b", "c", "d", "e"]), "but not one that was drained");
}

#[test]
fn shard_whose_only_copy_is_unhealthy_is_still_called() {
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
    assert!(table.contested_regions().is_empty());
}

#[test]
fn explain_lists_unhealthy_endpoints_with_causes() {
    let health_steps = |fleet: &Fleet| {
        let explained = fleet.compile(None).explain_pick(&PickParams::default(), 0, 1);
        let health = explained.steps.into_iter().filter(|step| step.title == "health");
        health.map(|step| step.detail).collect::<Vec<_>>()
    };
    let one = fleet(&[("a", "eu", 3), ("b", "eu", 0)]);
    assert_eq!(health_steps(&one), ["a is unhealthy (75.0 % certain): status 503"]);
    let all = fleet(&[("a", "eu", 3), ("b", "eu", 3)]);
    assert!(
        health_steps(&all)[1].starts_with("panic: more than half of the capacity in eu"),
        "{:?}",
        health_steps(&all)
    );
}
