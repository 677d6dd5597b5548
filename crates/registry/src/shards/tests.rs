use fairmesh_model::{
    Cursor, EndpointState, Identity, KeyRange, Prefix, Protocol, RecordKey, Replica, ReplicaState, Service,
    Shard,
};
use fairmesh_wire::shards as encoding;

use super::*;
use crate::{
    Registration, StateReport,
    testing::{Bench, anyone, cart, endpoint},
};

fn replica(instance: &str) -> Replica {
    Replica {
        instance: instance.parse().unwrap(),
        region: "eu".parse().unwrap(),
        role: "primary".parse().unwrap(),
        state: ReplicaState::Serving,
    }
}

/// Shards that start at these keys, held by `x`.
fn map(starts: impl IntoIterator<Item = u128>) -> ShardMap {
    let shards = (0..).zip(starts).map(|(id, start)| Shard {
        id: ShardId(id),
        start: ShardKey(start),
        replicas: vec![replica("x")],
    });
    ShardMap { version: 0, interval: KeyRange::ALL, shards: shards.collect() }
}

fn wish(to: &str) -> ShardMove {
    ShardMove {
        shard: ShardId(1),
        role: "primary".parse().unwrap(),
        from: Some("x".parse().unwrap()),
        to: Some(to.parse().unwrap()),
    }
}

/// `x` and `y` run, `y` says itself when it has loaded a shard, and there is a map.
async fn prepare(bench: &Bench) {
    let sharded = Service { kind: ServiceKind::Sharded, protocol: Protocol::Grpc, virtual_address: None };
    let mut aware = endpoint("y");
    aware.endpoint.labels.insert(AWARE_LABEL.into(), "aware".into());
    let x = Registration { declaration: Some(sharded), ..endpoint("x") };
    bench.registry.register(&[x, aware, endpoint("z")]).await.unwrap();
    assert_eq!(bench.registry.put_shards(&cart(), &map([0, 500, 900])).await.unwrap(), 1);
}

/// Who holds shard 1, and how.
fn holders(registry: &Registry) -> Vec<(String, ReplicaState)> {
    let map = registry.shards(&cart()).unwrap();
    let position = edit::position(&map, ShardId(1)).unwrap();
    map.shards[position].replicas.iter().map(|r| (r.instance.to_string(), r.state)).collect()
}

fn is_held(registry: &Registry, expected: &[(&str, ReplicaState)]) -> bool {
    let mut held = holders(registry);
    held.sort_by(|a, b| a.0.cmp(&b.0));
    held.iter().map(|(i, s)| (i.as_str(), *s)).eq(expected.iter().copied())
}

#[tokio::test]
async fn a_map_is_replaced_only_by_who_has_read_it() {
    let bench = Bench::new();
    prepare(&bench).await;
    let mut changed = map([0, 400]);
    let refusal = bench.registry.put_shards(&cart(), &changed).await.unwrap_err();
    assert!(matches!(&refusal, RegistryError::Conflict(e) if e.problem.contains("version 1")), "{refusal}");
    changed.version = 1;
    assert_eq!(bench.registry.put_shards(&cart(), &changed).await.unwrap(), 2);
    let revision = bench.revision();
    assert_eq!(bench.registry.put_shards(&cart(), &changed).await.unwrap(), 2, "it says what is there");
    assert_eq!(bench.revision(), revision);

    let gap = ShardMap { version: 2, ..map([5]) };
    let refusal = bench.registry.put_shards(&cart(), &gap).await.unwrap_err();
    assert_eq!(refusal.reason().field, "shards[0].start");
}

#[tokio::test]
async fn only_a_service_that_is_declared_sharded_has_a_map() {
    let bench = Bench::new();
    let refusal = bench.registry.put_shards(&cart(), &map([0])).await.unwrap_err();
    assert!(matches!(refusal, RegistryError::NotFound(_)), "{refusal}");
    bench.registry.register(&[endpoint("x")]).await.unwrap();
    let refusal = bench.registry.put_shards(&cart(), &map([0])).await.unwrap_err();
    assert!(matches!(refusal, RegistryError::Refused(_)), "{refusal}");
    assert!(matches!(bench.registry.shards(&cart()), Err(RegistryError::NotFound(_))));
}

#[tokio::test]
async fn a_shard_splits_and_merges_and_leaves_no_chunk_behind() {
    let bench = Bench::new();
    prepare(&bench).await;
    assert_eq!(bench.registry.split_shard(&cart(), ShardId(1), Some(ShardKey(618))).await.unwrap(), 2);
    let split = bench.registry.shards(&cart()).unwrap();
    let starts: Vec<_> = split.shards.iter().map(|s| (s.id.0, s.start.0)).collect();
    assert_eq!(starts, [(0, 0), (1, 500), (3, 618), (2, 900)]);
    bench.registry.split_shard(&cart(), ShardId(0), None).await.unwrap();
    assert_eq!(bench.registry.shards(&cart()).unwrap().shards[1].start, ShardKey(250));
    assert_eq!(bench.registry.merge_shards(&cart(), ShardId(1)).await.unwrap(), 4);
    for at in [500, 900, 0] {
        let refusal = bench.registry.split_shard(&cart(), ShardId(1), Some(ShardKey(at))).await.unwrap_err();
        assert!(matches!(&refusal, RegistryError::Invalid(e) if e.field == "at"), "{refusal}");
    }
    let refusal = bench.registry.merge_shards(&cart(), ShardId(2)).await.unwrap_err();
    assert!(refusal.to_string().contains("last shard"), "{refusal}");
    assert!(matches!(
        bench.registry.split_shard(&cart(), ShardId(77), None).await,
        Err(RegistryError::NotFound(_))
    ));

    let map = bench.registry.shards(&cart()).unwrap();
    let (_, entries) = bench.node.read(&[Prefix::shards(&cart(), None)]);
    assert_eq!(entries.len(), encoding::encode_map(&cart(), &map).len());
}

#[tokio::test]
async fn shards_that_are_held_differently_do_not_merge() {
    let bench = Bench::new();
    prepare(&bench).await;
    let mut map = ShardMap { version: 1, ..map([0, 500, 900]) };
    map.shards[1].replicas.push(replica("z"));
    bench.registry.put_shards(&cart(), &map).await.unwrap();
    let refusal = bench.registry.merge_shards(&cart(), ShardId(0)).await.unwrap_err();
    assert!(matches!(refusal, RegistryError::Refused(_)), "{refusal}");
}

#[tokio::test]
async fn a_map_larger_than_a_batch_is_created_and_replaced() {
    let bench = Bench::new();
    let sharded = Service { kind: ServiceKind::Sharded, protocol: Protocol::Grpc, virtual_address: None };
    let x = Registration { declaration: Some(sharded), ..endpoint("x") };
    bench.registry.register(&[x]).await.unwrap();
    for (factor, version) in [(7, 0), (9, 1)] {
        let large = ShardMap { version, ..map((0..200_000).map(|start| start * factor)) };
        assert_eq!(bench.registry.put_shards(&cart(), &large).await.unwrap(), version + 1);
        assert_eq!(bench.registry.shards(&cart()).unwrap().shards, large.shards);
    }
}

#[tokio::test]
async fn a_move_that_cannot_be_is_refused_with_a_hint() {
    let bench = Bench::new();
    prepare(&bench).await;
    let stranger = ShardMove { from: Some("z".parse().unwrap()), ..wish("y") };
    let elsewhere = ShardMove { shard: ShardId(77), ..wish("y") };
    for (wish, field) in [(wish("nobody"), "to"), (wish("x"), "to"), (stranger, "from"), (elsewhere, "shard")]
    {
        let refusal = bench.registry.move_shard(&cart(), &wish).await.unwrap_err();
        assert_eq!(refusal.reason().field, field, "{refusal}");
        assert!(!refusal.reason().hint.is_empty());
    }
    let draining = StateReport { who: anyone("z"), state: EndpointState::Draining };
    bench.registry.report(&[draining]).await.unwrap();
    assert!(matches!(bench.registry.move_shard(&cart(), &wish("z")).await, Err(RegistryError::Refused(_))));

    bench.registry.move_shard(&cart(), &wish("y")).await.unwrap();
    bench.registry.move_shard(&cart(), &wish("y")).await.unwrap();
    let other = ShardMove { to: Some("z".parse().unwrap()), ..wish("y") };
    assert!(matches!(bench.registry.move_shard(&cart(), &other).await, Err(RegistryError::Refused(_))));
    let refusal = bench.registry.split_shard(&cart(), ShardId(1), None).await.unwrap_err();
    assert!(refusal.to_string().contains("from x to y"), "{refusal}");
    // Nor does it merge, from either side, though no copy has been started yet.
    for lower in [ShardId(1), ShardId(0)] {
        let refusal = bench.registry.merge_shards(&cart(), lower).await.unwrap_err();
        assert!(refusal.to_string().contains("from x to y"), "{refusal}");
    }
}

#[tokio::test]
async fn a_move_makes_on_the_target_before_it_breaks_on_the_source() {
    use ReplicaState::{Serving, Starting, Stopping};
    let bench = Bench::running();
    prepare(&bench).await;
    let caller = bench.node.watch("checkout", Identity::Anonymous);
    caller.subscribe(Prefix::shards(&cart(), None), None);
    let acknowledge = || {
        if let Some(update) = caller.pull() {
            caller.ack(&Cursor::at(update.revision));
        }
    };
    acknowledge();

    bench.registry.move_shard(&cart(), &wish("y")).await.unwrap();
    bench.until(|r| is_held(r, &[("x", Serving), ("y", Starting)])).await;
    assert_eq!(bench.registry.list_moves(&cart()).unwrap()[0].phase, Phase::Starting);
    // Another shard is loaded: that does not count.
    bench.registry.report_shards(&anyone("y"), [ShardId(0)]).unwrap();
    bench.registry.report_shards(&anyone("y"), [ShardId(0), ShardId(1)]).unwrap();
    bench.until(|r| is_held(r, &[("x", Stopping), ("y", Serving)])).await;

    assert_eq!(bench.registry.list_moves(&cart()).unwrap()[0].phase, Phase::Publishing);
    let published = bench.revision();
    acknowledge();
    bench.until(|r| is_held(r, &[("y", Serving)])).await;
    assert_eq!(bench.revision(), published + 1, "map and move end in one batch");
    assert_eq!(bench.registry.list_moves(&cart()).unwrap(), []);
}

#[tokio::test]
async fn what_a_server_loaded_in_an_earlier_stay_does_not_count() {
    use ReplicaState::{Serving, Starting};
    let bench = Bench::running();
    prepare(&bench).await;
    bench.registry.move_shard(&cart(), &wish("y")).await.unwrap();
    bench.until(|r| is_held(r, &[("x", Serving), ("y", Starting)])).await;
    bench.registry.report_shards(&anyone("y"), [ShardId(1)]).unwrap();
    bench.until(|r| is_held(r, &[("y", Serving)])).await;
    let back = ShardMove { from: Some("y".parse().unwrap()), ..wish("x") };
    bench.registry.move_shard(&cart(), &back).await.unwrap();
    bench.until(|r| is_held(r, &[("x", Serving)]) && r.moves(&cart()).is_empty()).await;

    bench.registry.move_shard(&cart(), &wish("y")).await.unwrap();
    bench.until(|r| is_held(r, &[("x", Serving), ("y", Starting)])).await;
    let revision = bench.revision();
    // The reconciler has looked again once this write is answered and another move is through.
    let other = ShardMove { shard: ShardId(0), ..wish("z") };
    bench.registry.move_shard(&cart(), &other).await.unwrap();
    bench.until(|r| r.moves(&cart()).len() == 1).await;
    assert!(bench.revision() > revision && is_held(&bench.registry, &[("x", Serving), ("y", Starting)]));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_hangs_does_not_hold_a_move_up_for_ever() {
    use ReplicaState::{Serving, Stopping};
    let bench = Bench::running();
    prepare(&bench).await;
    let hanging = bench.node.watch("checkout", Identity::Anonymous);
    hanging.subscribe(Prefix::shards(&cart(), None), None);
    let begun = tokio::time::Instant::now();
    bench.registry.move_shard(&cart(), &wish("z")).await.unwrap();
    bench.until(|r| is_held(r, &[("x", Stopping), ("z", Serving)])).await;
    tokio::time::sleep(movement::PATIENCE / 2).await;
    assert!(is_held(&bench.registry, &[("x", Stopping), ("z", Serving)]));
    tokio::time::sleep(movement::PATIENCE / 2).await;
    bench.until(|r| is_held(r, &[("z", Serving)])).await;
    assert!(begun.elapsed() >= movement::PATIENCE);
}

#[tokio::test]
async fn a_move_whose_target_leaves_is_undone_and_says_so() {
    use ReplicaState::{Serving, Starting};
    let bench = Bench::running();
    prepare(&bench).await;
    bench.registry.move_shard(&cart(), &wish("y")).await.unwrap();
    bench.until(|r| is_held(r, &[("x", Serving), ("y", Starting)])).await;
    bench.registry.deregister(&[anyone("y")]).await.unwrap();
    bench.until(|r| is_held(r, &[("x", Serving)])).await;
    let moves = bench.registry.list_moves(&cart()).unwrap();
    assert!(matches!(moves[..], [MoveStatus { phase: Phase::Undone(_), .. }]), "{moves:?}");
    assert!(moves[0].phase.to_string().starts_with("undone: "));

    bench.registry.move_shard(&cart(), &wish("z")).await.unwrap();
    bench.until(|r| is_held(r, &[("z", Serving)])).await;
    assert_eq!(bench.registry.list_moves(&cart()).unwrap(), [], "a later move replaces the memory of it");
}

#[tokio::test]
async fn callers_are_not_sent_to_a_target_that_does_not_serve_yet() {
    use ReplicaState::{Serving, Starting};
    let bench = Bench::running();
    prepare(&bench).await;
    let report = |state| [StateReport { who: anyone("z"), state }];
    bench.registry.report(&report(EndpointState::Starting)).await.unwrap();
    bench.registry.move_shard(&cart(), &wish("z")).await.unwrap();
    bench.until(|r| is_held(r, &[("x", Serving), ("z", Starting)])).await;
    // Another move to one that serves gets through, so this one has been looked at.
    let serving = endpoint("w");
    bench.registry.register(&[serving]).await.unwrap();
    let other = ShardMove { shard: ShardId(0), ..wish("w") };
    bench.registry.move_shard(&cart(), &other).await.unwrap();
    bench.until(|r| r.moves(&cart()).len() == 1).await;
    assert!(is_held(&bench.registry, &[("x", Serving), ("z", Starting)]));
    bench.registry.report(&report(EndpointState::Serving)).await.unwrap();
    bench.until(|r| is_held(r, &[("z", Serving)])).await;
}

#[tokio::test]
async fn a_restarted_control_plane_carries_a_move_on() {
    use ReplicaState::Serving;
    let bench = Bench::new();
    prepare(&bench).await;
    bench.registry.move_shard(&cart(), &wish("z")).await.unwrap();
    assert!(bench.node.get(&RecordKey::Move(cart(), ShardId(1)).to_string()).is_some());
    let again = bench.restarted();
    again.run();
    again.until(|r| is_held(r, &[("z", Serving)]) && r.moves(&cart()).is_empty()).await;
}

#[tokio::test]
async fn many_shards_of_one_map_move_at_once() {
    let bench = Bench::running();
    prepare(&bench).await;
    let many = ShardMap { version: 1, ..map((0..40).map(|start| start * 10)) };
    bench.registry.put_shards(&cart(), &many).await.unwrap();
    for shard in 0..40 {
        let wish = ShardMove { shard: ShardId(shard), ..wish("z") };
        bench.registry.move_shard(&cart(), &wish).await.unwrap();
    }
    bench.until(|r| r.moves(&cart()).is_empty()).await;
    let map = bench.registry.shards(&cart()).unwrap();
    assert!(map.shards.iter().all(|shard| shard.replicas == [replica("z")]));
}

#[tokio::test]
async fn commits_that_leave_a_map_alone_do_not_have_it_decoded_again() {
    let bench = Bench::new();
    prepare(&bench).await;
    let held = || bench.registry.shard_map(&cart()).unwrap().unwrap();
    let first = held();
    bench.registry.register(&[endpoint("another")]).await.unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &held()), "an endpoint came, and the map is as it was");
    bench.registry.split_shard(&cart(), ShardId(1), None).await.unwrap();
    assert_eq!(held().map.version, first.map.version + 1);
}
