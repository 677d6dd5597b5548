use fairmesh_model::{
    Endpoint, InstanceId, KeyRange, Protocol, Replica, ReplicaState, Role, Service, ServiceKind, Shard,
    ShardId, ShardKey, ShardMap, ShardMove,
};

use super::*;
use crate::{
    InstanceRef, RegistryError,
    testing::{TestRegistry, any_process, cart, leased},
};

fn role() -> Role {
    "primary".parse().unwrap()
}

/// Three servers and four shards; the first server holds every shard.
async fn test() -> TestRegistry {
    let test = TestRegistry::running();
    for server in ["a", "b", "c"] {
        let mut registration = leased(server);
        registration.endpoint.lease = Some(Duration::from_secs(3600));
        let (kind, protocol) = (ServiceKind::Sharded, Protocol::Grpc);
        registration.declaration = Some(Service { kind, protocol, virtual_address: None, identity: None });
        test.registry.register(&[registration]).await.unwrap();
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
    test.registry.put_shards(&cart(), &map).await.unwrap();
    test
}

/// A report for 10 s, with calls of 1 s for each shard in `shards`.
fn report(sequence: u64, shards: &[u32]) -> LoadReport {
    let work = |shard: &u32| ShardWork { shard: ShardId(*shard), role: role(), busy_us: 1_000_000 };
    let shards: Vec<_> = shards.iter().map(work).collect();
    let calls = 100 * shards.len() as u64;
    LoadReport { sequence, period_ms: 10_000, shards, rest_us: 0, calls }
}

fn options() -> PlanOptions {
    PlanOptions::new(0, 0, BTreeSet::new()).unwrap()
}

fn before(plan: &MovePlan) -> Vec<Work> {
    plan.servers.iter().map(|server| server.before).collect()
}

#[tokio::test(start_paused = true)]
async fn no_shard_moves_are_proposed_without_significant_loads() {
    let test = test().await;
    let refusal = |test: &TestRegistry| match test.registry.propose(&cart(), &options()) {
        Err(RegistryError::Refused(reason)) => reason.problem,
        other => panic!("{other:?}"),
    };
    assert!(refusal(&test).contains("0 of 3 servers"));
    assert_eq!(
        test.registry.report_load(&any_process("a"), &report(1, &[0, 1, 2, 3])),
        ReportOutcome::Counted
    );
    assert!(refusal(&test).contains("1 of 3 servers"));
    assert_eq!(test.registry.report_load(&any_process("b"), &report(1, &[])), ReportOutcome::Counted);
    let plan = test.registry.propose(&cart(), &options()).unwrap();
    assert_eq!(plan.notes, [PlanNote::Silent { servers: 1 }]);
    assert!(
        plan.moves.iter().all(|shard_move| shard_move.to == Some("b".parse().unwrap())),
        "{:?}",
        plan.moves
    );
    let few = LoadReport { calls: 3, ..report(1, &[0, 1, 2, 3]) };
    test.registry.windows().forget(&crate::testing::instance_ref("a"));
    test.registry.report_load(&any_process("a"), &few);
    assert!(refusal(&test).contains("18 calls a minute"));
    // The load of a server without a recent report is unknown again.
    tokio::time::advance(Duration::from_millis(SILENT_MS + 1)).await;
    assert!(refusal(&test).contains("0 of 3 servers"));
    assert_eq!(test.registry.load_servers(), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn load_reports_of_unregistered_processes_are_ignored() {
    let test = test().await;
    let mut newer = leased("a");
    newer.endpoint.labels.insert(Endpoint::INCARNATION.into(), "7".into());
    test.registry.register(&[newer]).await.unwrap();
    let process = |incarnation| InstanceClaim { incarnation, ..any_process("a") };
    let unregistered: InstanceClaim =
        InstanceRef { service: cart(), instance: "unregistered".parse().unwrap() }.into();
    assert_eq!(test.registry.report_load(&unregistered, &report(1, &[0])), ReportOutcome::Unknown);
    assert_eq!(test.registry.report_load(&process(6), &report(1, &[0])), ReportOutcome::Unknown);
    assert_eq!(test.registry.report_load(&process(7), &report(1, &[0])), ReportOutcome::Counted);
    let counts: Vec<_> = test.registry.load_reports().into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counts, [(ReportOutcome::Counted, 1), (ReportOutcome::Unknown, 2)]);
}

#[tokio::test(start_paused = true)]
async fn executed_shard_balance_plan_moves_load_with_shards() {
    let test = test().await;
    for (server, shards) in [("a", &[0, 1, 2, 3][..]), ("b", &[]), ("c", &[])] {
        test.registry.report_load(&any_process(server), &report(1, shards));
    }
    let made = test.registry.propose(&cart(), &options()).unwrap();
    assert_eq!(before(&made), [400_000, 0, 0]);
    assert_eq!(made.moves.len(), 2, "{:?}", made.moves);
    for shard_move in &made.moves {
        test.registry.move_shard(&cart(), shard_move).await.unwrap();
        test.until(|registry| registry.moves(&cart()).is_empty()).await;
    }
    // No report has arrived since the move, so the work measured at the former holder counts for the new one.
    let after = test.registry.propose(&cart(), &options()).unwrap();
    assert_eq!((before(&after), after.moves), (vec![200_000, 100_000, 100_000], vec![]));
}

#[tokio::test(start_paused = true)]
async fn shard_copy_is_added_and_dropped_on_request_but_last_one_stays() {
    let test = test().await;
    let instance = |name: &str| Some(name.parse::<InstanceId>().unwrap());
    let shard_move = |from, to| ShardMove { shard: ShardId(1), role: role(), from, to };
    let holders = |registry: &Registry| {
        let copies = registry.shards(&cart()).unwrap().shards[1].replicas.clone();
        copies.into_iter().map(|copy| (copy.instance.to_string(), copy.state)).collect::<Vec<_>>()
    };
    let serving = |name: &str| (name.to_owned(), ReplicaState::Serving);
    test.registry.move_shard(&cart(), &shard_move(None, instance("b"))).await.unwrap();
    test.until(|r| r.moves(&cart()).is_empty() && holders(r) == [serving("a"), serving("b")]).await;
    test.registry.move_shard(&cart(), &shard_move(instance("a"), None)).await.unwrap();
    test.until(|r| r.moves(&cart()).is_empty() && holders(r) == [serving("b")]).await;

    let last = test.registry.move_shard(&cart(), &shard_move(instance("b"), None)).await.unwrap_err();
    assert!(matches!(last, RegistryError::Refused(_)) && last.reason().field == "from", "{last}");
    let nothing = test.registry.move_shard(&cart(), &shard_move(None, None)).await.unwrap_err();
    assert!(matches!(nothing, RegistryError::Invalid(_)), "{nothing}");
}
