use std::collections::BTreeMap;

use fairmesh_model::{Confirmation, RegionShares, RegionTable, Share, TableOrigin, TrafficShares};

use super::*;
use crate::TableInput;

fn shares(to: &[(&str, &str)], dropped: &str) -> RegionShares {
    let to = to.iter().map(|(name, share)| (region(name), share.parse().unwrap()));
    RegionShares { to: to.collect(), dropped: dropped.parse().unwrap() }
}

fn by_hand(to: &[(&str, &str)], dropped: &str) -> RegionTable {
    let shares = TrafficShares { default: Some(shares(to, dropped)), ..TrafficShares::default() };
    RegionTable::new(shares, TableOrigin::ByHand)
}

fn planned(to: &[(&str, &str)], dropped: &str) -> RegionTable {
    let origin = TableOrigin::Planned(Confirmation { round: 1, at_ms: 0 });
    RegionTable { origin, ..by_hand(to, dropped) }
}

impl Fleet {
    fn compile_with(&self, table: &RegionTable, age: u64) -> ServiceTable {
        let table = Some(TableInput { table, age: Duration::from_secs(age) });
        ServiceTable::compile(&CompileInput { table, ..self.input(&self.policy) }, &Arc::default(), None)
    }
}

/// The destinations of calls by region, as a number out of 10,000. `dropped` counts dropped calls.
fn distribution(table: &ServiceTable, ask: &PickParams<'_>) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for call in 0..10_000 {
        let ask = PickParams { call_seed: mix64(call), ..*ask };
        let to = match table.pick(&ask, 0, mix64(call + 77)) {
            Ok(picked) => table.target(picked.index).location.region.to_string(),
            Err(why) => {
                assert!(matches!(*why, PickError::Dropped { .. }), "{why}");
                "dropped".to_owned()
            }
        };
        *counts.entry(to).or_default() += 1;
    }
    counts
}

#[track_caller]
fn assert_near(counts: &BTreeMap<String, u32>, expected: &[(&str, u32)]) {
    assert_eq!(counts.len(), expected.len(), "{counts:?}");
    for (name, percent) in expected {
        let found = counts.get(*name).copied().unwrap_or_default();
        assert!(found.abs_diff(percent * 100) < 200, "{name}: {counts:?}");
    }
}

fn fleet() -> Fleet {
    Fleet::replicated(&[("a", "eu"), ("b", "eu"), ("c", "us"), ("d", "us"), ("e", "asia")])
}

#[test]
fn calls_are_divided_by_region_table_shares_of_their_class() {
    let mut table = by_hand(&[("eu", "70%"), ("us", "20%")], "10%");
    table.shares.classes.insert(Label::new("bulk").unwrap(), shares(&[("asia", "100%")], "0%"));
    let compiled = fleet().compile_with(&table, 0);
    let ask = PickParams::default();
    assert_near(&distribution(&compiled, &ask), &[("eu", 70), ("us", 20), ("dropped", 10)]);
    let [bulk, other] = ["bulk", "other"].map(|class| Label::new(class).unwrap());
    assert_near(&distribution(&compiled, &PickParams { class: Some(&bulk), ..ask }), &[("asia", 100)]);
    let other = distribution(&compiled, &PickParams { class: Some(&other), ..ask });
    assert_near(&other, &[("eu", 70), ("us", 20), ("dropped", 10)]);
    table.shares.default = None;
    let compiled = fleet().compile_with(&table, 0);
    assert_near(&distribution(&compiled, &ask), &[("eu", 100)]);
}

#[test]
fn all_attempts_of_call_use_its_drawn_region_and_none_is_dropped() {
    let compiled = fleet().compile_with(&by_hand(&[("eu", "40%"), ("us", "10%")], "50%"), 0);
    let mut retried_drops = 0;
    for call in 0..1000 {
        let first = PickParams { call_seed: mix64(call), ..PickParams::default() };
        let Ok(picked) = compiled.pick(&first, 0, call) else {
            let later = PickParams { admitted: true, ..first };
            assert!(compiled.pick(&later, 0, call).is_ok());
            retried_drops += 1;
            continue;
        };
        let avoid = [picked.index];
        let second = PickParams { avoid: &avoid, admitted: true, ..first };
        let other = compiled.pick(&second, 0, call + 7).unwrap();
        assert_ne!(other.index, picked.index);
        let region_of = |index| compiled.target(index).location.region.clone();
        assert_eq!(region_of(other.index), region_of(picked.index));
    }
    assert!((400..600).contains(&retried_drops), "{retried_drops}");
}

#[test]
fn rings_decide_when_region_drawn_from_table_cannot_serve() {
    let table = by_hand(&[("us", "100%")], "0%");
    let mut fleet = fleet();
    for endpoint in fleet.endpoints.iter_mut().filter(|endpoint| endpoint.location.region == region("us")) {
        endpoint.state = EndpointState::Draining;
    }
    let ask = PickParams::default();
    assert_near(&distribution(&fleet.compile_with(&table, 0), &ask), &[("eu", 100)]);
    fleet.endpoints.retain(|endpoint| endpoint.location.region != region("us"));
    assert_near(&distribution(&fleet.compile_with(&table, 0), &ask), &[("eu", 100)]);
    // This call failed at the only endpoint in the region.
    let fleet = Fleet::replicated(&[("a", "eu"), ("c", "us")]);
    let compiled = fleet.compile_with(&table, 0);
    let first = compiled.pick(&ask, 0, 1).unwrap();
    assert_eq!(id(&compiled, &first), "c");
    let avoid = [first.index];
    let second = compiled.pick(&PickParams { avoid: &avoid, admitted: true, ..ask }, 0, 2).unwrap();
    assert_eq!(id(&compiled, &second), "a");
}

#[test]
fn planned_region_table_spreads_calls_of_lost_region_by_capacity() {
    let table = planned(&[("eu", "100%")], "0%");
    let mut fleet = fleet();
    let ask = PickParams::default();
    let compiled = fleet.compile_with(&table, 0);
    assert_near(&distribution(&compiled, &ask), &[("eu", 100)]);
    // Two of the other regions' endpoints are in `us`, and one is in `asia`.
    for index in compiled.candidates().filter(|known| known.target.location.region == region("eu")) {
        compiled.begin(index.index);
        compiled.finish(index.index, Outcome::Unreachable, 0);
    }
    assert_near(&distribution(&compiled, &ask), &[("us", 67), ("asia", 33)]);
    let to = |call| compiled.pick(&PickParams { call_seed: mix64(call), ..ask }, 0, call).unwrap().index;
    assert!((0..100).all(|call| to(call) == to(call)), "all attempts of a call draw the same");
    for endpoint in fleet.endpoints.iter_mut().filter(|endpoint| endpoint.location.region == region("eu")) {
        endpoint.state = EndpointState::Lost;
    }
    assert_near(&distribution(&fleet.compile_with(&table, 0), &ask), &[("us", 67), ("asia", 33)]);
    let by_hand = by_hand(&[("eu", "100%")], "0%");
    assert_near(&distribution(&fleet.compile_with(&by_hand, 0), &ask), &[("us", 100)]);
    fleet.policy.locality.rings = vec![Ring::Region, Ring::Within(Duration::from_millis(100))];
    assert_near(&distribution(&fleet.compile_with(&table, 0), &ask), &[("us", 100)]);
}

#[test]
fn call_that_failed_in_drawn_region_moves_to_nearest_other_region() {
    let fleet = Fleet::replicated(&[("a", "eu"), ("c", "us"), ("e", "asia")]);
    let compiled = fleet.compile_with(&planned(&[("eu", "100%")], "0%"), 0);
    for call in 0..100 {
        let first = PickParams { call_seed: mix64(call), ..PickParams::default() };
        let avoid = [compiled.pick(&first, 0, call).unwrap().index];
        let second = PickParams { avoid: &avoid, admitted: true, ..first };
        assert_eq!(id(&compiled, &compiled.pick(&second, 0, call).unwrap()), "c");
    }
}

#[test]
fn keys_of_lost_region_spread_over_others_and_keep_endpoint() {
    let mut fleet = fleet();
    fleet.service.kind = ServiceKind::ConsistentHash;
    for endpoint in fleet.endpoints.iter_mut().filter(|endpoint| endpoint.location.region == region("eu")) {
        endpoint.state = EndpointState::Lost;
    }
    let compiled = fleet.compile_with(&planned(&[("eu", "100%")], "0%"), 0);
    let mut counts = BTreeMap::new();
    for key in 0..3_000_u64 {
        let ask =
            |seed| PickParams { key: Some(ShardKey(key.into())), call_seed: seed, ..PickParams::default() };
        let picked = compiled.pick(&ask(key), 0, key).unwrap().index;
        assert_eq!(compiled.pick(&ask(key + 1), 0, key + 9).unwrap().index, picked);
        *counts.entry(compiled.target(picked).location.region.to_string()).or_insert(0_u32) += 1;
    }
    assert!(counts["us"].abs_diff(2_000) < 150 && counts["asia"].abs_diff(1_000) < 150, "{counts:?}");
}

#[test]
fn drains_and_policy_take_precedence_over_region_tables() {
    let table = by_hand(&[("eu", "40%"), ("us", "40%"), ("asia", "20%")], "0%");
    let ask = PickParams::default();
    let mut fleet = fleet();
    let draining = RegionInfo { draining: true, ..RegionInfo::default() };
    fleet.regions.regions.insert(region("us"), draining.clone());
    assert_near(&distribution(&fleet.compile_with(&table, 0), &ask), &[("eu", 67), ("asia", 33)]);
    fleet.regions.regions.insert(region("eu"), draining);
    let counts = distribution(&fleet.compile_with(&table, 0), &ask);
    assert_near(&counts, &[("eu", 67), ("asia", 33)]);
    fleet.regions.regions.clear();
    fleet.policy.locality.rings = vec![Ring::Within(Duration::from_millis(100)), Ring::Region];
    fleet.policy.locality.rings = vec![Ring::Region];
    assert_near(&distribution(&fleet.compile_with(&table, 0), &ask), &[("eu", 100)]);
    fleet.policy.locality.local_only = true;
    let compiled = fleet.compile_with(&by_hand(&[("us", "50%")], "50%"), 0);
    assert!(!compiled.has_region_table());
    assert_near(&distribution(&compiled, &ask), &[("eu", 100)]);
}

#[test]
fn unconfirmed_region_table_first_stops_dropping_then_expires() {
    let ask = PickParams::default();
    let (to, dropped) = (&[("eu", "40%"), ("us", "40%")], "20%");
    for (age, expected) in [
        (59, &[("eu", 40), ("us", 40), ("dropped", 20)][..]),
        (60, &[("eu", 50), ("us", 50)]),
        (899, &[("eu", 50), ("us", 50)]),
        (900, &[("eu", 100)]),
    ] {
        assert_near(&distribution(&fleet().compile_with(&planned(to, dropped), age), &ask), expected);
    }
    let by_hand = fleet().compile_with(&by_hand(to, dropped), 1_000_000);
    assert_near(&distribution(&by_hand, &ask), &[("eu", 40), ("us", 40), ("dropped", 20)]);
}

#[test]
fn subset_has_few_endpoints_in_regions_with_small_shares() {
    let many = |place: &str| (0..100).map(|i| endpoint(&format!("{place}-{i}"), place)).collect::<Vec<_>>();
    let fleet = Fleet::new(ServiceKind::Replicated, [many("eu"), many("us"), many("asia")].concat());
    let mut table = by_hand(&[("eu", "69%"), ("us", "30%"), ("asia", "1%")], "0%");
    let members = |table: &RegionTable| {
        let compiled = fleet.compile_with(table, 0);
        assert!(compiled.numbers().is_err());
        ["eu", "us", "asia"].map(|place| {
            let members = compiled.nearest().iter().map(|index| compiled.target(*index));
            members.filter(|target| target.location.region == region(place)).count()
        })
    };
    assert_eq!(members(&table), [14, 6, 2], "of a subset of 20");
    table.subsets = [("eu", 40), ("us", 10), ("asia", 1_000)].map(|(name, n)| (region(name), n)).into();
    assert_eq!(members(&table), [28, 6, 10], "the table's subset where it is the greater one");
}

#[test]
fn key_stays_in_its_region_and_changed_table_shares_move_few_keys() {
    let endpoints = ["eu", "us", "asia"].map(|place| endpoint(&format!("in-{place}"), place));
    let fleet = Fleet::new(ServiceKind::ConsistentHash, endpoints.to_vec());
    let regions = |table: &RegionTable| -> Vec<String> {
        let compiled = fleet.compile_with(table, 0);
        let region_of = |key: u64| {
            let pick = |call_seed| {
                let ask = PickParams { key: Some(ShardKey(key.into())), call_seed, ..PickParams::default() };
                compiled.target(compiled.pick(&ask, 0, call_seed).unwrap().index).location.region.to_string()
            };
            assert_eq!(pick(1), pick(2), "the seed does not matter");
            pick(1)
        };
        (0..10_000).map(region_of).collect()
    };
    let before = regions(&by_hand(&[("asia", "20%"), ("eu", "50%"), ("us", "30%")], "0%"));
    let count = |name: &str| before.iter().filter(|region| *region == name).count();
    assert!(count("eu").abs_diff(5000) < 200 && count("us").abs_diff(3000) < 200, "{}", count("eu"));
    let after = regions(&by_hand(&[("asia", "20%"), ("eu", "40%"), ("us", "40%")], "0%"));
    let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    assert!(moved.abs_diff(1000) < 400, "{moved}: a tenth has to move");
}

#[test]
fn sharded_calls_are_divided_among_regions_with_shard_copy() {
    let endpoints = ["eu", "us", "asia"].map(|place| endpoint(&format!("in-{place}"), place));
    let mut fleet = Fleet::new(ServiceKind::Sharded, endpoints.to_vec());
    let copy = |place: &str| Replica {
        instance: InstanceId::new(format!("in-{place}")).unwrap(),
        region: region(place),
        role: "primary".parse().unwrap(),
        state: ReplicaState::Serving,
    };
    let shard = |id, start, places: &[&str]| Shard {
        id: ShardId(id),
        start: ShardKey(start),
        replicas: places.iter().map(|place| copy(place)).collect(),
    };
    let shards =
        vec![shard(0, 0, &["eu", "us", "asia"]), shard(1, 100, &["us", "asia"]), shard(2, 200, &["asia"])];
    let map = ShardMap { version: 1, interval: KeyRange::ALL, shards };
    fleet.shards = Some(Arc::new(ShardTable::compile(&map)));
    let compiled = fleet.compile_with(&by_hand(&[("asia", "10%"), ("eu", "60%"), ("us", "30%")], "0%"), 0);
    let of = |key| distribution(&compiled, &PickParams { key: Some(ShardKey(key)), ..PickParams::default() });
    assert_near(&of(5), &[("asia", 10), ("eu", 60), ("us", 30)]);
    assert_near(&of(105), &[("asia", 25), ("us", 75)]);
    assert_near(&of(205), &[("asia", 100)]);
    let elsewhere = fleet.compile_with(&by_hand(&[("eu", "100%")], "0%"), 0);
    let ask = PickParams { key: Some(ShardKey(105)), ..PickParams::default() };
    assert_near(&distribution(&elsewhere, &ask), &[("us", 100)]);
}

#[test]
fn explanation_shows_region_table_shares_and_drawn_region() {
    let compiled = fleet().compile_with(&by_hand(&[("eu", "70%"), ("us", "20%")], "10%"), 0);
    let steps = |call_seed| {
        let explained = compiled.explain_pick(&PickParams { call_seed, ..PickParams::default() }, 0, 1);
        let shown = explained.steps.into_iter().filter(|step| ["table", "draw"].contains(&step.title));
        shown.map(|step| step.detail).collect::<Vec<_>>()
    };
    let all: BTreeSet<_> = (0..100).flat_map(|call| steps(mix64(call))).collect();
    let expected = [
        "in the 10% that are dropped",
        "to eu",
        "to us",
        "written by hand; calls without a class of its own: eu 70%, us 20%, dropped 10%",
    ];
    assert_eq!(all, names(&expected));
    assert_eq!(Share::ALL.to_string(), "100%");
}

#[test]
fn calls_within_region_are_divided_among_zones_by_callers_zone() {
    let mut fleet = fleet();
    let zone = |name: &str| fairmesh_model::Zone::new(name).unwrap();
    for (endpoint, name) in fleet.endpoints.iter_mut().zip(["a", "b", "a", "b", "a"]) {
        endpoint.location.zone = Some(zone(name));
    }
    let mut table = planned(&[("eu", "80%"), ("us", "20%")], "0%");
    let half = |share: &str| share.parse::<Share>().unwrap();
    table.zones.insert(zone("a"), [(zone("a"), half("75%")), (zone("b"), half("25%"))].into());
    let by_zone = |fleet: &Fleet| {
        let compiled = fleet.compile_with(&table, 0);
        let mut counts = BTreeMap::new();
        for call in 0..10_000 {
            let ask = PickParams { call_seed: mix64(call), ..PickParams::default() };
            let picked = compiled.pick(&ask, 0, mix64(call + 77)).unwrap();
            let location = &compiled.target(picked.index).location;
            *counts.entry(format!("{}/{}", location.region, location.zone.as_ref().unwrap())).or_default() +=
                1;
        }
        counts
    };
    fleet.location.zone = Some(zone("a"));
    let alike = [("eu/a", 40), ("eu/b", 40), ("us/a", 10), ("us/b", 10)];
    assert_near(&by_zone(&fleet), &alike);
    fleet.policy.locality.zone_first = true;
    assert_near(&by_zone(&fleet), &[("eu/a", 60), ("eu/b", 20), ("us/a", 10), ("us/b", 10)]);
    let explained = fleet.compile_with(&table, 0).explain_pick(&PickParams::default(), 0, 1).steps;
    let shown = explained.into_iter().find(|step| step.title == "table").map(|step| step.detail);
    let expected = "planned; calls without a class of its own: eu 80%, us 20%; those that stay, of callers in zone a: a 75%, b 25%";
    assert_eq!(shown.as_deref(), Some(expected));
    fleet.location.zone = Some(zone("c"));
    assert_near(&by_zone(&fleet), &alike);
    fleet.location.zone = Some(zone("a"));
    fleet.endpoints[0].state = EndpointState::Draining;
    assert_near(&by_zone(&fleet), &[("eu/b", 80), ("us/a", 10), ("us/b", 10)]);
}
