use fairmesh_model::{
    Endpoint, InstanceId, KeyRange, Protocol, Replica, ReplicaState, Role, Service, ServiceKind, Shard,
    ShardId, ShardKey, ShardMap, ShardMove,
};

use super::*;
use crate::{
    InstanceRef, RegistryError,
    testing::{Bench, anyone, cart, leased},
};

fn role() -> Role {
    "primary".parse().unwrap()
}

/// Three servers of four shards, all of which the first one holds.
async fn bench() -> Bench {
    let bench = Bench::running();
    for server in ["a", "b", "c"] {
        let mut registration = leased(server);
        registration.endpoint.lease = Some(Duration::from_secs(3600));
        let (kind, protocol) = (ServiceKind::Sharded, Protocol::Grpc);
        registration.declaration = Some(Service { kind, protocol, virtual_address: None });
        bench.registry.register(&[registration]).await.unwrap();
    }
    let shard = |id: u32| Shard {
        id: ShardId(id),
        start: ShardKey(u128::from(id) * 100),
        replicas: vec![Replica {
            instance: "a".parse().unwrap(),
            region: "eu".parse().unwrap(),
            role: role(),
            state: ReplicaState::Serving,
        }],
    };
    let map = ShardMap { version: 0, interval: KeyRange::ALL, shards: (0..4).map(shard).collect() };
    bench.registry.put_shards(&cart(), &map).await.unwrap();
    bench
}

/// What a server says of 10 s in which calls for these shards were under way for 1 s each.
fn report(sequence: u64, shards: &[u32]) -> LoadReport {
    let work = |shard: &u32| ShardWork { shard: ShardId(*shard), role: role(), busy_us: 1_000_000 };
    let shards: Vec<_> = shards.iter().map(work).collect();
    let calls = 100 * shards.len() as u64;
    LoadReport { sequence, period_ms: 10_000, shards, rest_us: 0, calls }
}

fn terms() -> Terms {
    Terms::new(0, 0, BTreeSet::new()).unwrap()
}

fn before(plan: &Plan) -> Vec<Work> {
    plan.servers.iter().map(|server| server.before).collect()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_proposed_while_loads_are_unknown_or_chance() {
    let bench = bench().await;
    let refusal = |bench: &Bench| match bench.registry.propose(&cart(), &terms()) {
        Err(RegistryError::Refused(reason)) => reason.problem,
        other => panic!("{other:?}"),
    };
    assert!(refusal(&bench).contains("0 of 3 servers"));
    assert_eq!(bench.registry.report_load(&anyone("a"), &report(1, &[0, 1, 2, 3])), Taken::Counted);
    assert!(refusal(&bench).contains("1 of 3 servers"));
    assert_eq!(bench.registry.report_load(&anyone("b"), &report(1, &[])), Taken::Counted);
    let plan = bench.registry.propose(&cart(), &terms()).unwrap();
    assert_eq!(plan.notes, [Note::Silent { servers: 1 }]);
    assert!(plan.moves.iter().all(|wish| wish.to == Some("b".parse().unwrap())), "{:?}", plan.moves);
    let few = LoadReport { calls: 3, ..report(1, &[0, 1, 2, 3]) };
    bench.registry.windows().forget(&crate::testing::who("a"));
    bench.registry.report_load(&anyone("a"), &few);
    assert!(refusal(&bench).contains("18 calls a minute"));
    // Who is silent for long is unknown again.
    tokio::time::advance(Duration::from_millis(SILENT_MS + 1)).await;
    assert!(refusal(&bench).contains("0 of 3 servers"));
    assert_eq!(bench.registry.load_servers(), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn reports_of_strangers_and_of_earlier_processes_are_counted_and_ignored() {
    let bench = bench().await;
    let mut newer = leased("a");
    newer.endpoint.labels.insert(Endpoint::INCARNATION.into(), "7".into());
    bench.registry.register(&[newer]).await.unwrap();
    let process = |incarnation| Claim { incarnation, ..anyone("a") };
    let nobody: Claim = InstanceRef { service: cart(), instance: "nobody".parse().unwrap() }.into();
    assert_eq!(bench.registry.report_load(&nobody, &report(1, &[0])), Taken::Unknown);
    assert_eq!(bench.registry.report_load(&process(6), &report(1, &[0])), Taken::Unknown);
    assert_eq!(bench.registry.report_load(&process(7), &report(1, &[0])), Taken::Counted);
    let counts: Vec<_> = bench.registry.load_reports().into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counts, [(Taken::Counted, 1), (Taken::Unknown, 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_plan_is_carried_out_by_moves_and_the_load_moves_with_the_shards_at_once() {
    let bench = bench().await;
    for (server, shards) in [("a", &[0, 1, 2, 3][..]), ("b", &[]), ("c", &[])] {
        bench.registry.report_load(&anyone(server), &report(1, shards));
    }
    let made = bench.registry.propose(&cart(), &terms()).unwrap();
    assert_eq!(before(&made), [400_000, 0, 0]);
    assert_eq!(made.moves.len(), 2, "{:?}", made.moves);
    for wish in &made.moves {
        bench.registry.move_shard(&cart(), wish).await.unwrap();
        bench.until(|registry| registry.moves(&cart()).is_empty()).await;
    }
    // Nobody has reported since: what was measured at the former holder counts for the present one.
    let after = bench.registry.propose(&cart(), &terms()).unwrap();
    assert_eq!((before(&after), after.moves), (vec![200_000, 100_000, 100_000], vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_added_and_dropped_and_the_last_one_stays() {
    let bench = bench().await;
    let instance = |name: &str| Some(name.parse::<InstanceId>().unwrap());
    let wish = |from, to| ShardMove { shard: ShardId(1), role: role(), from, to };
    let holders = |registry: &Registry| {
        let copies = registry.shards(&cart()).unwrap().shards[1].replicas.clone();
        copies.into_iter().map(|copy| (copy.instance.to_string(), copy.state)).collect::<Vec<_>>()
    };
    let serving = |name: &str| (name.to_owned(), ReplicaState::Serving);
    bench.registry.move_shard(&cart(), &wish(None, instance("b"))).await.unwrap();
    bench.until(|r| r.moves(&cart()).is_empty() && holders(r) == [serving("a"), serving("b")]).await;
    bench.registry.move_shard(&cart(), &wish(instance("a"), None)).await.unwrap();
    bench.until(|r| r.moves(&cart()).is_empty() && holders(r) == [serving("b")]).await;

    let last = bench.registry.move_shard(&cart(), &wish(instance("b"), None)).await.unwrap_err();
    assert!(matches!(last, RegistryError::Refused(_)) && last.reason().field == "from", "{last}");
    let nothing = bench.registry.move_shard(&cart(), &wish(None, None)).await.unwrap_err();
    assert!(matches!(nothing, RegistryError::Invalid(_)), "{nothing}");
}
