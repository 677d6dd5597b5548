use bytes::Bytes;
use fairmesh_model::{
    Cursor, EndpointState, Identity, KeyRange, Prefix, Protocol, RecordKey, Replica, ReplicaState, Service,
    Shard, ShardPart,
};
use fairmesh_rib::Op;
use fairmesh_wire::shard_encoding as encoding;

use super::*;
use crate::{
    Registration, StateReport,
    testing::{TestRegistry, any_process, cart, endpoint},
};

fn replica(instance: &str) -> Replica {
    Replica {
        instance: instance.parse().unwrap(),
        region: "eu".parse().unwrap(),
        role: "primary".parse().unwrap(),
        state: ReplicaState::Serving,
    }
}

/// A map with shards that start at these keys and are held by `x`.
fn map(starts: impl IntoIterator<Item = u128>) -> ShardMap {
    let shards = (0..).zip(starts).map(|(id, start)| Shard {
        id: ShardId(id),
        start: ShardKey(start),
        replicas: vec![replica("x")],
    });
    ShardMap { version: 0, interval: KeyRange::ALL, shards: shards.collect() }
}

fn shard_move(to: &str) -> ShardMove {
    ShardMove {
        shard: ShardId(1),
        role: "primary".parse().unwrap(),
        from: Some("x".parse().unwrap()),
        to: Some(to.parse().unwrap()),
    }
}

/// Registers `x` and `y`, which are serving, and a shard map. `y` reports its loaded shards.
async fn prepare(test: &TestRegistry) {
    let sharded = Service {
        kind: ServiceKind::Sharded,
        protocol: Protocol::Grpc,
        virtual_address: None,
        identity: None,
    };
    let mut aware = endpoint("y");
    aware.endpoint.labels.insert(AWARE_LABEL.into(), "aware".into());
    let x = Registration { declaration: Some(sharded), ..endpoint("x") };
    test.registry.register(&[x, aware, endpoint("z")]).await.unwrap();
    assert_eq!(test.registry.put_shards(&cart(), &map([0, 500, 900])).await.unwrap(), 1);
}

/// Returns the copies of shard 1 with their states.
fn holders(registry: &Registry) -> Vec<(String, ReplicaState)> {
    let map = registry.shards(&cart()).unwrap();
    let position = map_edit::position(&map, ShardId(1)).unwrap();
    map.shards[position].replicas.iter().map(|r| (r.instance.to_string(), r.state)).collect()
}

fn is_held(registry: &Registry, expected: &[(&str, ReplicaState)]) -> bool {
    let mut held = holders(registry);
    held.sort_by(|a, b| a.0.cmp(&b.0));
    held.iter().map(|(i, s)| (i.as_str(), *s)).eq(expected.iter().copied())
}

#[tokio::test]
async fn deleted_shard_map_leaves_no_record_and_can_be_created_again() {
    let test = TestRegistry::new();
    prepare(&test).await;
    let stale = test.registry.delete_shards(&cart(), 7).await.unwrap_err();
    assert!(matches!(&stale, RegistryError::Conflict(e) if e.problem.contains("version 1")), "{stale}");
    test.registry.delete_shards(&cart(), 1).await.unwrap();
    let (_, left) = test.registry.node().read(&[Prefix::shards(&cart(), None)]);
    assert!(left.is_empty(), "{left:?}");
    assert!(matches!(test.registry.shards(&cart()), Err(RegistryError::NotFound(_))));
    let again = test.registry.delete_shards(&cart(), 1).await.unwrap_err();
    assert!(matches!(again, RegistryError::NotFound(_)), "{again}");
    assert_eq!(test.registry.put_shards(&cart(), &map([0, 500])).await.unwrap(), 1);
}

#[tokio::test]
async fn shard_map_write_requires_version_that_was_read() {
    let test = TestRegistry::new();
    prepare(&test).await;
    let mut changed = map([0, 400]);
    let refusal = test.registry.put_shards(&cart(), &changed).await.unwrap_err();
    assert!(matches!(&refusal, RegistryError::Conflict(e) if e.problem.contains("version 1")), "{refusal}");
    changed.version = 1;
    assert_eq!(test.registry.put_shards(&cart(), &changed).await.unwrap(), 2);
    let revision = test.revision();
    assert_eq!(test.registry.put_shards(&cart(), &changed).await.unwrap(), 2, "it equals the present map");
    assert_eq!(test.revision(), revision);

    let gap = ShardMap { version: 2, ..map([5]) };
    let refusal = test.registry.put_shards(&cart(), &gap).await.unwrap_err();
    assert_eq!(refusal.reason().field, "shards[0].start");
}

#[tokio::test]
async fn written_shard_map_replaces_unreadable_one() {
    let test = TestRegistry::new();
    prepare(&test).await;
    let ranges = RecordKey::ShardManifest(cart(), ShardPart::Ranges).to_string();
    for damage in [Op::put(ranges.clone(), Bytes::from_static(&[0xff])), Op::delete(ranges.clone())] {
        let before = test.registry.shards(&cart()).unwrap();
        test.registry.write(vec![damage]).await.unwrap();
        let unreadable = test.registry.shards(&cart()).unwrap_err();
        assert!(unreadable.to_string().contains("cannot be read"), "{unreadable}");
        test.registry.split_shard(&cart(), ShardId(1), None).await.unwrap_err();
        let version =
            test.registry.put_shards(&cart(), &ShardMap { version: 0, ..map([0, 400]) }).await.unwrap();
        assert!(version > before.version, "readers know earlier versions");
        let written = test.registry.shards(&cart()).unwrap();
        let (_, entries) = test.node.read(&[Prefix::shards(&cart(), None)]);
        assert_eq!(entries.len(), encoding::encode_map(&cart(), &written).len(), "nothing else is left");
    }
}

#[tokio::test]
async fn shard_map_requires_service_declared_sharded() {
    let test = TestRegistry::new();
    let refusal = test.registry.put_shards(&cart(), &map([0])).await.unwrap_err();
    assert!(matches!(refusal, RegistryError::NotFound(_)), "{refusal}");
    test.registry.register(&[endpoint("x")]).await.unwrap();
    let refusal = test.registry.put_shards(&cart(), &map([0])).await.unwrap_err();
    assert!(matches!(refusal, RegistryError::Refused(_)), "{refusal}");
    assert!(matches!(test.registry.shards(&cart()), Err(RegistryError::NotFound(_))));
}

#[tokio::test]
async fn shard_split_and_merge_leave_no_unused_chunk() {
    let test = TestRegistry::new();
    prepare(&test).await;
    assert_eq!(test.registry.split_shard(&cart(), ShardId(1), Some(ShardKey(618))).await.unwrap(), 2);
    let split = test.registry.shards(&cart()).unwrap();
    let starts: Vec<_> = split.shards.iter().map(|s| (s.id.0, s.start.0)).collect();
    assert_eq!(starts, [(0, 0), (1, 500), (3, 618), (2, 900)]);
    test.registry.split_shard(&cart(), ShardId(0), None).await.unwrap();
    assert_eq!(test.registry.shards(&cart()).unwrap().shards[1].start, ShardKey(250));
    assert_eq!(test.registry.merge_shards(&cart(), ShardId(1)).await.unwrap(), 4);
    for at in [500, 900, 0] {
        let refusal = test.registry.split_shard(&cart(), ShardId(1), Some(ShardKey(at))).await.unwrap_err();
        assert!(matches!(&refusal, RegistryError::Invalid(e) if e.field == "at"), "{refusal}");
    }
    let refusal = test.registry.merge_shards(&cart(), ShardId(2)).await.unwrap_err();
    assert!(refusal.to_string().contains("last shard"), "{refusal}");
    assert!(matches!(
        test.registry.split_shard(&cart(), ShardId(77), None).await,
        Err(RegistryError::NotFound(_))
    ));

    let map = test.registry.shards(&cart()).unwrap();
    let (_, entries) = test.node.read(&[Prefix::shards(&cart(), None)]);
    assert_eq!(entries.len(), encoding::encode_map(&cart(), &map).len());
}

#[tokio::test]
async fn shards_with_different_holders_do_not_merge() {
    let test = TestRegistry::new();
    prepare(&test).await;
    let mut map = ShardMap { version: 1, ..map([0, 500, 900]) };
    map.shards[1].replicas.push(replica("z"));
    test.registry.put_shards(&cart(), &map).await.unwrap();
    let refusal = test.registry.merge_shards(&cart(), ShardId(0)).await.unwrap_err();
    assert!(matches!(refusal, RegistryError::Refused(_)), "{refusal}");
}

#[tokio::test]
async fn shard_map_larger_than_write_batch_is_created_and_replaced() {
    let test = TestRegistry::new();
    let sharded = Service {
        kind: ServiceKind::Sharded,
        protocol: Protocol::Grpc,
        virtual_address: None,
        identity: None,
    };
    let x = Registration { declaration: Some(sharded), ..endpoint("x") };
    test.registry.register(&[x]).await.unwrap();
    for (factor, version) in [(7, 0), (9, 1)] {
        let large = ShardMap { version, ..map((0..200_000).map(|start| start * factor)) };
        assert_eq!(test.registry.put_shards(&cart(), &large).await.unwrap(), version + 1);
        assert_eq!(test.registry.shards(&cart()).unwrap().shards, large.shards);
    }
}

#[tokio::test]
async fn impossible_shard_move_is_refused_with_hint() {
    let test = TestRegistry::new();
    prepare(&test).await;
    let stranger = ShardMove { from: Some("z".parse().unwrap()), ..shard_move("y") };
    let elsewhere = ShardMove { shard: ShardId(77), ..shard_move("y") };
    for (shard_move, field) in [
        (shard_move("unregistered"), "to"),
        (shard_move("x"), "to"),
        (stranger, "from"),
        (elsewhere, "shard"),
    ] {
        let refusal = test.registry.move_shard(&cart(), &shard_move).await.unwrap_err();
        assert_eq!(refusal.reason().field, field, "{refusal}");
        assert!(!refusal.reason().hint.is_empty());
    }
    let draining = StateReport { claim: any_process("z"), state: EndpointState::Draining };
    test.registry.report(&[draining]).await.unwrap();
    assert!(matches!(
        test.registry.move_shard(&cart(), &shard_move("z")).await,
        Err(RegistryError::Refused(_))
    ));

    test.registry.move_shard(&cart(), &shard_move("y")).await.unwrap();
    test.registry.move_shard(&cart(), &shard_move("y")).await.unwrap();
    let other = ShardMove { to: Some("z".parse().unwrap()), ..shard_move("y") };
    assert!(matches!(test.registry.move_shard(&cart(), &other).await, Err(RegistryError::Refused(_))));
    let refusal = test.registry.split_shard(&cart(), ShardId(1), None).await.unwrap_err();
    assert!(refusal.to_string().contains("from x to y"), "{refusal}");
    // Before any copy has started, the shard cannot merge with either neighbour.
    for lower in [ShardId(1), ShardId(0)] {
        let refusal = test.registry.merge_shards(&cart(), lower).await.unwrap_err();
        assert!(refusal.to_string().contains("from x to y"), "{refusal}");
    }
}

#[tokio::test]
async fn shard_move_starts_target_before_it_stops_source() {
    use ReplicaState::{Serving, Starting, Stopping};
    let test = TestRegistry::running();
    prepare(&test).await;
    let caller = test.node.watch("checkout", Identity::Anonymous);
    caller.subscribe(Prefix::shards(&cart(), None), None);
    let acknowledge = || {
        if let Some(update) = caller.pull() {
            caller.ack(&Cursor::at(update.revision));
        }
    };
    acknowledge();

    test.registry.move_shard(&cart(), &shard_move("y")).await.unwrap();
    test.until(|r| is_held(r, &[("x", Serving), ("y", Starting)])).await;
    assert_eq!(test.registry.list_moves(&cart()).unwrap()[0].phase, Phase::Starting);
    // A report of another shard does not count.
    test.registry.report_shards(&any_process("y"), [ShardId(0)]).unwrap();
    test.registry.report_shards(&any_process("y"), [ShardId(0), ShardId(1)]).unwrap();
    test.until(|r| is_held(r, &[("x", Stopping), ("y", Serving)])).await;

    assert_eq!(test.registry.list_moves(&cart()).unwrap()[0].phase, Phase::Publishing);
    let published = test.revision();
    acknowledge();
    test.until(|r| is_held(r, &[("y", Serving)])).await;
    assert_eq!(test.revision(), published + 1, "map and move end in one batch");
    assert_eq!(test.registry.list_moves(&cart()).unwrap(), []);
}

#[tokio::test]
async fn readiness_report_from_before_move_is_ignored() {
    use ReplicaState::{Serving, Starting};
    let test = TestRegistry::running();
    prepare(&test).await;
    test.registry.move_shard(&cart(), &shard_move("y")).await.unwrap();
    test.until(|r| is_held(r, &[("x", Serving), ("y", Starting)])).await;
    test.registry.report_shards(&any_process("y"), [ShardId(1)]).unwrap();
    test.until(|r| is_held(r, &[("y", Serving)])).await;
    let back = ShardMove { from: Some("y".parse().unwrap()), ..shard_move("x") };
    test.registry.move_shard(&cart(), &back).await.unwrap();
    test.until(|r| is_held(r, &[("x", Serving)]) && r.moves(&cart()).is_empty()).await;

    test.registry.move_shard(&cart(), &shard_move("y")).await.unwrap();
    test.until(|r| is_held(r, &[("x", Serving), ("y", Starting)])).await;
    let revision = test.revision();
    // Once this write and another move have finished, the executor has read the state again.
    let other = ShardMove { shard: ShardId(0), ..shard_move("z") };
    test.registry.move_shard(&cart(), &other).await.unwrap();
    test.until(|r| r.moves(&cart()).len() == 1).await;
    assert!(test.revision() > revision && is_held(&test.registry, &[("x", Serving), ("y", Starting)]));
}

#[tokio::test(start_paused = true)]
async fn hanging_caller_delays_shard_move_only_until_timeout() {
    use ReplicaState::{Serving, Stopping};
    let test = TestRegistry::running();
    prepare(&test).await;
    let hanging = test.node.watch("checkout", Identity::Anonymous);
    hanging.subscribe(Prefix::shards(&cart(), None), None);
    let begun = tokio::time::Instant::now();
    test.registry.move_shard(&cart(), &shard_move("z")).await.unwrap();
    test.until(|r| is_held(r, &[("x", Stopping), ("z", Serving)])).await;
    tokio::time::sleep(move_executor::CALLER_TIMEOUT / 2).await;
    assert!(is_held(&test.registry, &[("x", Stopping), ("z", Serving)]));
    tokio::time::sleep(move_executor::CALLER_TIMEOUT / 2).await;
    test.until(|r| is_held(r, &[("z", Serving)])).await;
    assert!(begun.elapsed() >= move_executor::CALLER_TIMEOUT);
}

#[tokio::test]
async fn shard_move_with_departed_target_is_listed_as_undone() {
    use ReplicaState::{Serving, Starting};
    let test = TestRegistry::running();
    prepare(&test).await;
    test.registry.move_shard(&cart(), &shard_move("y")).await.unwrap();
    test.until(|r| is_held(r, &[("x", Serving), ("y", Starting)])).await;
    test.registry.deregister(&[any_process("y")]).await.unwrap();
    test.until(|r| is_held(r, &[("x", Serving)])).await;
    let moves = test.registry.list_moves(&cart()).unwrap();
    assert!(matches!(moves[..], [MoveStatus { phase: Phase::Undone(_), .. }]), "{moves:?}");
    assert!(moves[0].phase.to_string().starts_with("undone: "));

    test.registry.move_shard(&cart(), &shard_move("z")).await.unwrap();
    test.until(|r| is_held(r, &[("z", Serving)])).await;
    assert_eq!(test.registry.list_moves(&cart()).unwrap(), [], "a later move replaces the memory of it");
}

#[tokio::test]
async fn shard_move_publishes_target_only_once_it_is_serving() {
    use ReplicaState::{Serving, Starting};
    let test = TestRegistry::running();
    prepare(&test).await;
    let report = |state| [StateReport { claim: any_process("z"), state }];
    test.registry.report(&report(EndpointState::Starting)).await.unwrap();
    test.registry.move_shard(&cart(), &shard_move("z")).await.unwrap();
    test.until(|r| is_held(r, &[("x", Serving), ("z", Starting)])).await;
    // Once another move to a serving target has finished, the executor has read the state of this move.
    let serving = endpoint("w");
    test.registry.register(&[serving]).await.unwrap();
    let other = ShardMove { shard: ShardId(0), ..shard_move("w") };
    test.registry.move_shard(&cart(), &other).await.unwrap();
    test.until(|r| r.moves(&cart()).len() == 1).await;
    assert!(is_held(&test.registry, &[("x", Serving), ("z", Starting)]));
    test.registry.report(&report(EndpointState::Serving)).await.unwrap();
    test.until(|r| is_held(r, &[("z", Serving)])).await;
}

#[tokio::test]
async fn restarted_control_plane_continues_shard_move() {
    use ReplicaState::Serving;
    let test = TestRegistry::new();
    prepare(&test).await;
    test.registry.move_shard(&cart(), &shard_move("z")).await.unwrap();
    assert!(test.node.get(&RecordKey::Move(cart(), ShardId(1)).to_string()).is_some());
    let again = test.restarted();
    again.run();
    again.until(|r| is_held(r, &[("z", Serving)]) && r.moves(&cart()).is_empty()).await;
}

#[tokio::test]
async fn many_shards_of_one_map_move_concurrently() {
    let test = TestRegistry::running();
    prepare(&test).await;
    let many = ShardMap { version: 1, ..map((0..40).map(|start| start * 10)) };
    test.registry.put_shards(&cart(), &many).await.unwrap();
    for shard in 0..40 {
        let shard_move = ShardMove { shard: ShardId(shard), ..shard_move("z") };
        test.registry.move_shard(&cart(), &shard_move).await.unwrap();
    }
    test.until(|r| r.moves(&cart()).is_empty()).await;
    let map = test.registry.shards(&cart()).unwrap();
    assert!(map.shards.iter().all(|shard| shard.replicas == [replica("z")]));
}

#[tokio::test]
async fn unrelated_commits_do_not_decode_shard_map_again() {
    let test = TestRegistry::new();
    prepare(&test).await;
    let held = || test.registry.shard_map(&cart()).unwrap().unwrap();
    let first = held();
    test.registry.register(&[endpoint("another")]).await.unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &held()), "an endpoint came, and the map is as it was");
    test.registry.split_shard(&cart(), ShardId(1), None).await.unwrap();
    assert_eq!(held().map.version, first.map.version + 1);
}
