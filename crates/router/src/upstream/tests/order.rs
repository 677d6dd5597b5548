//! In which order a caller turns to regions and to endpoints that should rather not be called.

use super::*;

#[test]
fn the_first_ring_that_holds_a_serving_endpoint_is_used() {
    let everywhere = [("a", "eu"), ("b", "near"), ("c", "us"), ("d", "asia"), ("e", "moon")];
    // Within 5 ms lie eu and near; within 80 ms us; beyond asia, and moon whose distance is unknown.
    for (from, expected) in [(0, &["a", "b"][..]), (2, &["c"]), (3, &["d", "e"])] {
        let upstream = World::replicated(&everywhere[from..]).compile(None);
        assert_eq!(reached(&upstream), names(expected));
    }
}

#[test]
fn the_nearest_are_those_that_share_calls_while_all_is_well() {
    let mut world = World::replicated(&[("a", "eu"), ("b", "eu"), ("far", "us"), ("leaving", "eu")]);
    world.endpoints[3].state = EndpointState::Draining;
    let nearest = |world: &World| -> BTreeSet<String> {
        let upstream = world.compile(None);
        upstream.nearest().iter().map(|&index| upstream.target(index).instance.to_string()).collect()
    };
    assert_eq!(nearest(&world), names(&["a", "b"]));
    assert_eq!(nearest(&world), reached(&world.compile(None)));
    world.service.kind = ServiceKind::ConsistentHash;
    assert_eq!(nearest(&world), names(&[]), "keys decide, and not load");
    world.endpoints.clear();
    world.service.kind = ServiceKind::Replicated;
    assert_eq!(nearest(&world), names(&[]));
}

#[test]
fn draining_regions_come_last_and_not_for_their_own_callers() {
    let mut world = World::replicated(&[("a", "eu"), ("b", "near"), ("c", "asia")]);
    let drain = |world: &mut World, name| {
        world.regions.regions.insert(region(name), RegionInfo { draining: true, ..RegionInfo::default() });
    };
    drain(&mut world, "near");
    assert_eq!(reached(&world.compile(None)), names(&["a"]));
    world.endpoints.remove(0);
    assert_eq!(reached(&world.compile(None)), names(&["c"]), "asia, however far, before the draining region");
    world.endpoints.remove(1);
    assert_eq!(reached(&world.compile(None)), names(&["b"]));
    drain(&mut world, "eu");
    world.endpoints.extend([endpoint("a", "eu"), endpoint("c", "asia")]);
    assert_eq!(reached(&world.compile(None)), names(&["a"]));
}

#[test]
fn local_only_fails_rather_than_leave_the_region() {
    let mut world = World::replicated(&[("b", "near")]);
    world.policy.locality.local_only = true;
    let refused = world.compile(None).pick(&Ask::default(), 0, 1);
    assert_eq!(refused, Err(Unroutable::NoneInRegion { region: region("eu") }.into()));
    world.endpoints.push(endpoint("a", "eu"));
    assert_eq!(reached(&world.compile(None)), names(&["a"]));
}

#[test]
fn a_bounded_last_ring_shuts_out_what_is_known_to_lie_beyond() {
    let mut world = World::replicated(&[("d", "asia")]);
    world.policy.locality.rings = vec![Ring { within: Some(Duration::from_millis(100)) }];
    let refused = world.compile(None).pick(&Ask::default(), 0, 1).unwrap_err();
    assert!(matches!(*refused, Unroutable::NoneInRegion { .. }));
    world.endpoints.push(endpoint("e", "moon"));
    assert_eq!(reached(&world.compile(None)), names(&["e"]));
}

#[test]
fn lost_and_draining_endpoints_serve_only_when_nothing_else_is_left_anywhere() {
    let mut world = World::replicated(&[("a", "eu"), ("b", "eu"), ("c", "eu"), ("d", "asia")]);
    world.endpoints[0].state = EndpointState::Lost;
    world.endpoints[1].state = EndpointState::Draining;
    world.endpoints[2].state = EndpointState::Starting;
    let upstream = world.compile(None);
    assert_eq!(reached(&upstream), names(&["d"]));
    assert!(!upstream.pick(&Ask::default(), 0, 1).unwrap().last_resort);
    world.endpoints.pop();
    let upstream = world.compile(None);
    assert_eq!(reached(&upstream), names(&["a", "b"]));
    assert!(upstream.pick(&Ask::default(), 0, 1).unwrap().last_resort);
    world.endpoints.drain(..2);
    assert_eq!(world.compile(None).pick(&Ask::default(), 0, 1), Err(Unroutable::NoEndpoints.into()));
}

#[test]
fn a_call_leaves_its_ring_when_everything_there_has_just_failed() {
    let mut world = World::replicated(&[("a", "eu"), ("b", "eu"), ("c", "us"), ("d", "eu")]);
    world.endpoints[3].state = EndpointState::Lost;
    let upstream = world.compile(None);
    let index =
        |name: &str| upstream.candidates().find(|c| c.target.instance.as_str() == name).unwrap().index;
    upstream.finish(index("a"), Outcome::Unreachable, 0);
    assert_eq!(reached(&upstream), names(&["b"]));
    upstream.finish(index("b"), Outcome::Unreachable, 0);
    assert_eq!(reached(&upstream), names(&["c"]));
    upstream.finish(index("c"), Outcome::Unreachable, 0);
    assert_eq!(reached(&upstream), names(&["a", "b"]), "home again, and never to a lost one");
    let later = upstream.pick(&Ask::default(), 200_000_000, 1).unwrap();
    assert!(["a", "b"].contains(&id(&upstream, &later).as_str()), "penalties end");
}

#[test]
fn a_key_stays_at_its_endpoint_whoever_calls_and_moves_only_when_that_goes() {
    let mut world = World::many(ServiceKind::ConsistentHash, 100);
    let homes = |world: &World| -> Vec<String> {
        let upstream = world.compile(None);
        let at =
            |key| upstream.pick(&Ask { key: Some(ShardKey(key)), ..Ask::default() }, 0, mix64(key as u64));
        (0..2000).map(|key| id(&upstream, &at(key).unwrap())).collect()
    };
    let before = homes(&world);
    world.client = 7;
    assert_eq!(homes(&world), before);
    world.endpoints[13].state = EndpointState::Lost;
    for (old, new) in before.iter().zip(homes(&world)) {
        assert!(*old == new || old == "i13");
    }
    world.endpoints[13].state = EndpointState::Serving;
    world.endpoints.push(endpoint("new", "eu"));
    let moved = before.iter().zip(homes(&world)).filter(|(old, new)| *old != new).collect::<Vec<_>>();
    assert!(moved.iter().all(|(_, new)| new == "new"));
    assert!((5..60).contains(&moved.len()), "{} of 2000 keys where 20 are fair", moved.len());
}

#[test]
fn a_hashed_key_fails_over_to_the_same_next_endpoint() {
    let upstream = World::many(ServiceKind::ConsistentHash, 50).compile(None);
    let at = |avoid: &[u32], seed| {
        upstream.pick(&Ask { key: Some(ShardKey(9)), role: None, avoid }, 0, seed).unwrap().index
    };
    let first = at(&[], 1);
    let next = at(&[first], 1);
    assert_ne!(first, next);
    upstream.finish(first, Outcome::Unreachable, 0);
    assert!((0..20).all(|seed| at(&[], seed) == next));
    assert_eq!(upstream.pick(&Ask::default(), 0, 1), Err(Unroutable::KeyMissing.into()));
}
