//! The order in which a caller uses regions, and endpoints that should not be called.

use super::*;

#[test]
fn first_locality_ring_with_serving_endpoint_is_used() {
    let everywhere = [("a", "eu"), ("b", "near"), ("c", "us"), ("d", "asia"), ("e", "moon")];
    // `eu` and `near` are within 5 ms, `us` is within 80 ms; `asia`, and `moon` with its unknown distance, are beyond.
    for (from, expected) in [(0, &["a", "b"][..]), (2, &["c"]), (3, &["d", "e"])] {
        let table = Fleet::replicated(&everywhere[from..]).compile(None);
        assert_eq!(reached(&table), names(expected));
    }
}

#[test]
fn only_nearest_endpoints_share_calls_while_all_are_healthy() {
    let mut fleet = Fleet::replicated(&[("a", "eu"), ("b", "eu"), ("far", "us"), ("leaving", "eu")]);
    fleet.endpoints[3].state = EndpointState::Draining;
    let nearest = |fleet: &Fleet| -> BTreeSet<String> {
        let table = fleet.compile(None);
        table.nearest().iter().map(|&index| table.target(index).instance.to_string()).collect()
    };
    assert_eq!(nearest(&fleet), names(&["a", "b"]));
    assert_eq!(nearest(&fleet), reached(&fleet.compile(None)));
    fleet.service.kind = ServiceKind::ConsistentHash;
    assert_eq!(nearest(&fleet), names(&[]), "keys decide, not load");
    fleet.endpoints.clear();
    fleet.service.kind = ServiceKind::Replicated;
    assert_eq!(nearest(&fleet), names(&[]));
}

#[test]
fn draining_regions_rank_last_except_for_their_own_callers() {
    let mut fleet = Fleet::replicated(&[("a", "eu"), ("b", "near"), ("c", "asia")]);
    let drain = |fleet: &mut Fleet, name| {
        fleet.regions.regions.insert(region(name), RegionInfo { draining: true, ..RegionInfo::default() });
    };
    drain(&mut fleet, "near");
    assert_eq!(reached(&fleet.compile(None)), names(&["a"]));
    fleet.endpoints.remove(0);
    assert_eq!(
        reached(&fleet.compile(None)),
        names(&["c"]),
        "asia, although far, comes before the draining region"
    );
    fleet.endpoints.remove(1);
    assert_eq!(reached(&fleet.compile(None)), names(&["b"]));
    drain(&mut fleet, "eu");
    fleet.endpoints.extend([endpoint("a", "eu"), endpoint("c", "asia")]);
    assert_eq!(reached(&fleet.compile(None)), names(&["a"]));
    let told: Vec<_> = fleet.compile(None).explain_pick(&PickParams::default(), 0, 1).steps;
    let told: Vec<_> = told.iter().flat_map(|step| step.detail.split("; ")).collect();
    let says =
        |begin: &str, words: &str| told.iter().any(|text| text.starts_with(begin) && text.contains(words));
    assert!(says("eu is here", "draining, which moves callers of other regions only"), "{told:?}");
    assert!(says("near is", "draining, so used last"), "{told:?}");
}

#[test]
fn call_under_local_only_policy_fails_rather_than_leave_region() {
    let mut fleet = Fleet::replicated(&[("b", "near")]);
    fleet.policy.locality.local_only = true;
    let refused = fleet.compile(None).pick(&PickParams::default(), 0, 1);
    assert_eq!(refused, Err(PickError::NoneInRegion { region: region("eu") }.into()));
    fleet.endpoints.push(endpoint("a", "eu"));
    assert_eq!(reached(&fleet.compile(None)), names(&["a"]));
}

#[test]
fn last_locality_ring_with_bound_excludes_farther_regions() {
    let mut fleet = Fleet::replicated(&[("d", "asia")]);
    fleet.policy.locality.rings = vec![Ring::Within(Duration::from_millis(100))];
    let refused = fleet.compile(None).pick(&PickParams::default(), 0, 1).unwrap_err();
    assert!(matches!(*refused, PickError::NoneInRegion { .. }));
    fleet.endpoints.push(endpoint("e", "moon"));
    assert_eq!(reached(&fleet.compile(None)), names(&["e"]));
}

/// Returns the ring of each region with an endpoint, by name.
fn rings_of(fleet: &Fleet) -> Vec<(String, Option<u16>)> {
    let table = fleet.compile(None);
    table.locality.regions().map(|(region, distance)| (region.to_string(), distance.ring)).collect()
}

#[test]
fn named_locality_rings_come_from_topology() {
    let mut fleet =
        Fleet::replicated(&[("a", "eu"), ("b", "near"), ("c", "us"), ("d", "asia"), ("e", "moon")]);
    let info = |continent: &str, neighbours: &[&str]| RegionInfo {
        continent: continent.into(),
        neighbours: neighbours.iter().map(|name| region(name)).collect(),
        draining: false,
    };
    fleet.regions.regions = [
        ("eu", info("europe", &["us"])),
        ("near", info("europe", &[])),
        ("us", info("america", &[])),
        ("asia", info("", &["eu"])),
    ]
    .map(|(name, info)| (region(name), info))
    .into();
    let mut rings = |rings: &[Ring]| {
        fleet.policy.locality.rings = rings.to_vec();
        rings_of(&fleet)
    };
    let of = |asia, eu, moon, near, us| {
        let rings = [("asia", asia), ("eu", eu), ("moon", moon), ("near", near), ("us", us)];
        rings.map(|(name, ring): (&str, Option<u16>)| (name.to_owned(), ring)).to_vec()
    };
    let (region, neighbours, continent, any) = (Ring::Region, Ring::Neighbours, Ring::Continent, Ring::Any);
    let within = |ms| Ring::Within(Duration::from_millis(ms));
    let all = rings(&[region, neighbours, continent, any]);
    assert_eq!(
        all,
        of(Some(3), Some(0), Some(3), Some(2), Some(1)),
        "asia names eu, and eu does not name asia"
    );
    let mixed = rings(&[region, within(100), continent, within(250)]);
    assert_eq!(
        mixed,
        of(Some(3), Some(0), Some(3), Some(1), Some(1)),
        "unknown distances are in the last bound"
    );
    let bounded = rings(&[within(100), continent]);
    assert_eq!(bounded, of(None, Some(0), None, Some(0), Some(0)), "a name as the last ring excludes");
    assert_eq!(rings(&[continent]), of(None, Some(0), None, Some(0), None), "no continent is none in common");
}

#[test]
fn measured_region_distances_are_used_if_none_is_declared() {
    let mut fleet = Fleet::replicated(&[("a", "eu"), ("c", "us"), ("e", "moon")]);
    let ring = |fleet: &Fleet, name: &str| rings_of(fleet).into_iter().find(|(of, _)| of == name).unwrap().1;
    assert_eq!((ring(&fleet, "us"), ring(&fleet, "moon")), (Some(2), Some(3)));
    let distance = MeasuredDistance { round_trip: Duration::from_millis(4), measured_at_ms: 1 };
    let to = ["us", "moon"].map(|name| (region(name), distance));
    fleet.round_trips.set_measured(region("eu"), Some(MeasuredDistances { to: to.into() }));
    assert_eq!((ring(&fleet, "us"), ring(&fleet, "moon")), (Some(2), Some(0)), "us is declared");
    fleet.round_trips.set_measured(region("eu"), None);
    fleet
        .round_trips
        .set_measured(region("moon"), Some(MeasuredDistances { to: [(region("eu"), distance)].into() }));
    assert_eq!(ring(&fleet, "moon"), Some(0), "the reverse direction");
}

#[test]
fn lost_and_draining_endpoints_serve_only_as_last_resort() {
    let mut fleet = Fleet::replicated(&[("a", "eu"), ("b", "eu"), ("c", "eu"), ("d", "asia")]);
    fleet.endpoints[0].state = EndpointState::Lost;
    fleet.endpoints[1].state = EndpointState::Draining;
    fleet.endpoints[2].state = EndpointState::Starting;
    let table = fleet.compile(None);
    assert_eq!(reached(&table), names(&["d"]));
    assert!(!table.pick(&PickParams::default(), 0, 1).unwrap().last_resort);
    fleet.endpoints.pop();
    let table = fleet.compile(None);
    assert_eq!(reached(&table), names(&["a", "b"]));
    assert!(table.pick(&PickParams::default(), 0, 1).unwrap().last_resort);
    fleet.endpoints.drain(..2);
    assert_eq!(fleet.compile(None).pick(&PickParams::default(), 0, 1), Err(PickError::NoEndpoints.into()));
}

#[test]
fn call_leaves_its_ring_only_after_all_its_endpoints_failed() {
    let mut fleet = Fleet::replicated(&[("a", "eu"), ("b", "eu"), ("c", "us"), ("d", "eu")]);
    fleet.endpoints[3].state = EndpointState::Lost;
    let table = fleet.compile(None);
    let index = |name: &str| table.candidates().find(|c| c.target.instance.as_str() == name).unwrap().index;
    table.finish(index("a"), Outcome::Unreachable, 0);
    assert_eq!(reached(&table), names(&["b"]));
    table.finish(index("b"), Outcome::Unreachable, 0);
    assert_eq!(reached(&table), names(&["c"]));
    table.finish(index("c"), Outcome::Unreachable, 0);
    assert_eq!(reached(&table), names(&["a", "b"]), "the home region again, and never a lost endpoint");
    let later = table.pick(&PickParams::default(), 200_000_000, 1).unwrap();
    assert!(["a", "b"].contains(&id(&table, &later).as_str()), "penalties end");
}

#[test]
fn hashed_key_has_same_endpoint_for_all_callers_until_removed() {
    let mut fleet = Fleet::many(ServiceKind::ConsistentHash, 100);
    let homes = |fleet: &Fleet| -> Vec<String> {
        let table = fleet.compile(None);
        let at = |key| {
            table.pick(
                &PickParams { key: Some(ShardKey(key)), ..PickParams::default() },
                0,
                mix64(key as u64),
            )
        };
        (0..2000).map(|key| id(&table, &at(key).unwrap())).collect()
    };
    let before = homes(&fleet);
    fleet.client = 7;
    assert_eq!(homes(&fleet), before);
    fleet.endpoints[13].state = EndpointState::Lost;
    for (old, new) in before.iter().zip(homes(&fleet)) {
        assert!(*old == new || old == "i13");
    }
    fleet.endpoints[13].state = EndpointState::Serving;
    fleet.endpoints.push(endpoint("new", "eu"));
    let moved = before.iter().zip(homes(&fleet)).filter(|(old, new)| *old != new).collect::<Vec<_>>();
    assert!(moved.iter().all(|(_, new)| new == "new"));
    assert!((5..60).contains(&moved.len()), "{} of 2000 keys where 20 are fair", moved.len());
}

#[test]
fn hashed_key_fails_over_to_same_next_endpoint() {
    let table = Fleet::many(ServiceKind::ConsistentHash, 50).compile(None);
    let at = |avoid: &[u32], seed| {
        table
            .pick(&PickParams { key: Some(ShardKey(9)), avoid, ..PickParams::default() }, 0, seed)
            .unwrap()
            .index
    };
    let first = at(&[], 1);
    let next = at(&[first], 1);
    assert_ne!(first, next);
    table.finish(first, Outcome::Unreachable, 0);
    assert!((0..20).all(|seed| at(&[], seed) == next));
    assert_eq!(table.pick(&PickParams::default(), 0, 1), Err(PickError::KeyMissing.into()));
}
