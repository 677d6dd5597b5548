use std::{sync::atomic::Ordering, time::Duration};

use fairmesh_model::{Cursor, EndpointState, Identity, Prefix, Protocol, Service, ServiceKind};

use super::*;
use crate::{
    leases::KEPT_LOST,
    testing::{Bench, TERM, anyone, cart, endpoint, leased, state, who},
};

#[tokio::test]
async fn the_first_registration_declares_the_service_and_repeating_it_writes_nothing() {
    let bench = Bench::new();
    let mut first = endpoint("a");
    first.endpoint.labels.insert("fairmesh.protocol".into(), "grpc".into());
    let revision = bench.registry.register(&[first.clone()]).await.unwrap();
    let declared = bench.registry.service(&cart()).unwrap().unwrap();
    assert_eq!((declared.kind, declared.protocol), (ServiceKind::Replicated, Protocol::Grpc));
    assert_eq!(bench.registry.register(&[first]).await.unwrap(), revision);

    bench.registry.register(&[endpoint("b")]).await.unwrap();
    assert_eq!(bench.registry.service(&cart()).unwrap(), Some(declared), "a declaration is kept");
}

#[tokio::test]
async fn a_registration_may_bring_the_declaration() {
    let bench = Bench::new();
    let sharded = Service { kind: ServiceKind::Sharded, protocol: Protocol::Http2, virtual_address: None };
    let told = Registration { declaration: Some(sharded.clone()), ..endpoint("a") };
    bench.registry.register(&[endpoint("b"), told]).await.unwrap();
    assert_eq!(bench.registry.service(&cart()).unwrap(), Some(sharded));
}

#[tokio::test]
async fn a_batch_is_registered_whole_or_not_at_all() {
    let bench = Bench::new();
    let mut wrong = endpoint("b");
    wrong.endpoint.weight = 0;
    let mut lost = endpoint("b");
    lost.endpoint.state = EndpointState::Lost;
    let many = (0..=MAX_BATCH).map(|i| endpoint(&format!("i{i}"))).collect();
    for (batch, field) in [
        (vec![endpoint("a"), wrong], "registrations[1].endpoint.weight"),
        (vec![endpoint("a"), lost], "registrations[1].endpoint.state"),
        (vec![endpoint("a"), endpoint("a")], "registrations[1]"),
        (many, "registrations"),
    ] {
        let refusal = bench.registry.register(&batch).await.unwrap_err();
        assert_eq!(refusal.reason().field, field, "{refusal}");
    }
    bench.store.full.store(true, Ordering::Relaxed);
    let refusal = bench.registry.register(&[endpoint("a")]).await.unwrap_err();
    assert!(matches!(refusal, RegistryError::Unavailable(_)), "{refusal}");
    assert_eq!(bench.revision(), 0);
}

#[tokio::test]
async fn an_instance_that_moved_is_replaced() {
    let bench = Bench::new();
    bench.registry.register(&[endpoint("a")]).await.unwrap();
    let mut moved = endpoint("a");
    moved.endpoint.address = "10.0.0.8:80".parse().unwrap();
    moved.endpoint.location.region = "us".parse().unwrap();
    bench.registry.register(&[moved.clone()]).await.unwrap();
    let held: Vec<_> = bench.registry.endpoints(&cart()).into_iter().map(|held| held.endpoint).collect();
    assert_eq!(held, [moved.endpoint]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_runs_out_marks_the_endpoint_and_a_renewal_brings_it_back() {
    let bench = Bench::running();
    let mut starting = leased("b");
    starting.endpoint.state = EndpointState::Starting;
    let revision = bench.registry.register(&[leased("a"), starting]).await.unwrap();
    for _ in 0..3 {
        tokio::time::sleep(TERM / 2).await;
        assert_eq!(bench.registry.renew(&[anyone("a"), anyone("b")]).await.unwrap(), []);
    }
    assert_eq!(bench.revision(), revision, "a renewal writes nothing");

    bench.until(|r| state(r, "a") == Some(EndpointState::Lost)).await;
    bench.until(|r| state(r, "b") == Some(EndpointState::Lost)).await;
    let before = bench.revision();
    assert_eq!(bench.registry.renew(&[anyone("a"), anyone("b")]).await.unwrap(), []);
    assert_eq!(bench.revision(), before + 1, "one write for all that return");
    assert_eq!(bench.state("a"), Some(EndpointState::Serving));
    assert_eq!(bench.state("b"), Some(EndpointState::Starting));
}

#[tokio::test(start_paused = true)]
async fn one_that_stays_lost_is_removed_and_has_to_register_anew() {
    let bench = Bench::running();
    bench.registry.register(&[leased("a"), endpoint("forever")]).await.unwrap();
    bench.until(|r| state(r, "a") == Some(EndpointState::Lost)).await;
    tokio::time::sleep(KEPT_LOST - Duration::from_secs(1)).await;
    assert_eq!(bench.state("a"), Some(EndpointState::Lost));
    bench.until(|r| state(r, "a").is_none()).await;
    assert_eq!(bench.registry.renew(&[anyone("a"), anyone("forever")]).await.unwrap(), [who("a")]);
    assert_eq!(bench.state("forever"), Some(EndpointState::Serving), "no lease, no end");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_control_plane_grants_a_full_term() {
    // The first process registers and never runs: it stopped.
    let bench = Bench::new();
    bench.registry.register(&[leased("a")]).await.unwrap();
    tokio::time::sleep(TERM * 100).await;
    let again = bench.restarted();
    again.run();
    tokio::time::sleep(TERM - Duration::from_millis(1)).await;
    assert_eq!(again.state("a"), Some(EndpointState::Serving));
    again.until(|r| state(r, "a") == Some(EndpointState::Lost)).await;
}

#[tokio::test(start_paused = true)]
async fn a_draining_endpoint_drains_until_it_says_otherwise() {
    let bench = Bench::running();
    bench.registry.register(&[leased("a")]).await.unwrap();
    bench.registry.drain(&[anyone("a")], Duration::ZERO).await.unwrap();
    bench.registry.renew(&[anyone("a")]).await.unwrap();
    bench.registry.register(&[leased("a")]).await.unwrap();
    assert_eq!(bench.state("a"), Some(EndpointState::Draining));
    bench.registry.register(&[Registration { state_meant: true, ..leased("a") }]).await.unwrap();
    assert_eq!(bench.state("a"), Some(EndpointState::Serving));

    bench.registry.drain(&[anyone("a")], Duration::ZERO).await.unwrap();
    bench.until(|r| state(r, "a").is_none()).await;
    assert_eq!(bench.registry.renew(&[anyone("a")]).await.unwrap(), [who("a")]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_every_caller() {
    let bench = Bench::new();
    bench.registry.register(&[endpoint("a"), endpoint("b")]).await.unwrap();
    let caller = bench.node.watch("checkout", Identity::Anonymous);
    caller.subscribe(Prefix::endpoints(&cart(), None), None);
    let acknowledge = || {
        let update = caller.pull().unwrap();
        caller.ack(&Cursor::at(update.revision));
    };
    acknowledge();

    let late = bench.registry.drain(&[anyone("a")], Duration::from_millis(10)).await.unwrap();
    assert!(!late.callers_moved && late.behind[0].contains("checkout"), "{late:?}");

    let registry = bench.registry.clone();
    let drain =
        tokio::spawn(
            async move { registry.drain(&[anyone("a"), anyone("b")], Duration::from_secs(60)).await },
        );
    bench.until(|r| state(r, "b") == Some(EndpointState::Draining)).await;
    acknowledge();
    let drained = drain.await.unwrap().unwrap();
    assert!(drained.callers_moved, "{drained:?}");
    assert_eq!(drained.revision, bench.revision());

    // Unrelated writes that this caller is never told of do not hold up a drain of what drains already.
    let other = Registration { service: "shop/other".parse().unwrap(), ..endpoint("x") };
    bench.registry.register(&[other]).await.unwrap();
    assert!(bench.registry.drain(&[anyone("a")], Duration::ZERO).await.unwrap().callers_moved);
}

#[tokio::test]
async fn what_is_not_registered_cannot_report_or_drain_but_may_be_taken_out() {
    let bench = Bench::new();
    let revision = bench.registry.register(&[endpoint("a")]).await.unwrap();
    let report = |instance| StateReport { who: anyone(instance), state: EndpointState::Starting };
    let refusal = bench.registry.report(&[report("a"), report("b")]).await.unwrap_err();
    assert!(matches!(&refusal, RegistryError::NotFound(e) if e.field == "reports[1]"), "{refusal}");
    let refusal = bench.registry.drain(&[anyone("b")], Duration::ZERO).await.unwrap_err();
    assert!(matches!(refusal, RegistryError::NotFound(_)), "{refusal}");
    assert_eq!(bench.revision(), revision);

    bench.registry.report(&[report("a")]).await.unwrap();
    assert_eq!(bench.state("a"), Some(EndpointState::Starting));
    bench.registry.deregister(&[anyone("a"), anyone("b")]).await.unwrap();
    assert_eq!(bench.state("a"), None);
    assert_eq!(bench.registry.renew(&[anyone("a")]).await.unwrap(), [who("a")]);
}

/// The process that started as the `nth` under the name `a`, at a port of its own.
fn process(nth: u16) -> Registration {
    let mut registration = Registration { state_meant: true, ..leased("a") };
    registration.endpoint.address.set_port(nth);
    registration.endpoint.labels.insert(Endpoint::INCARNATION.into(), nth.to_string());
    registration
}

fn claim(nth: u16) -> Claim {
    Claim { incarnation: nth.into(), ..anyone("a") }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_replaced_cannot_speak_for_its_successor() {
    let bench = Bench::running();
    bench.registry.register(&[process(1)]).await.unwrap();
    bench.registry.register(&[process(2)]).await.unwrap();
    let revision = bench.revision();
    assert_eq!(bench.registry.renew(&[claim(1)]).await.unwrap(), [who("a")]);
    bench.registry.deregister(&[claim(1)]).await.unwrap();
    let draining = StateReport { who: claim(1), state: EndpointState::Draining };
    let refusals = [
        bench.registry.report(&[draining]).await.unwrap_err(),
        bench.registry.drain(&[claim(1)], Duration::ZERO).await.unwrap_err(),
        bench.registry.report_shards(&claim(1), []).unwrap_err(),
    ];
    assert!(refusals.iter().all(|refusal| matches!(refusal, RegistryError::NotFound(_))), "{refusals:?}");
    let refusal = bench.registry.register(&[process(1)]).await.unwrap_err();
    assert!(refusal.to_string().contains("started later"), "{refusal}");
    assert_eq!(bench.revision(), revision, "none of this wrote anything");

    // The lease is its successor's alone, also for a control plane that knows it from the record only.
    tokio::time::sleep(TERM / 2).await;
    assert_eq!(bench.registry.renew(&[claim(2)]).await.unwrap(), []);
    let again = bench.restarted();
    assert_eq!(again.registry.renew(&[claim(1)]).await.unwrap(), [who("a")]);
    assert_eq!(again.registry.renew(&[claim(2)]).await.unwrap(), []);
    bench.registry.deregister(&[claim(2)]).await.unwrap();
    assert_eq!(bench.state("a"), None);
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_of_processes_goes_on_as_before() {
    let bench = Bench::running();
    bench.registry.register(&[process(2)]).await.unwrap();
    // People, and programs of the release before.
    assert_eq!(bench.registry.renew(&[anyone("a")]).await.unwrap(), []);
    bench.registry.drain(&[anyone("a")], Duration::ZERO).await.unwrap();
    bench.registry.register(&[leased("a")]).await.unwrap();
    assert_eq!(bench.registry.renew(&[claim(1)]).await.unwrap(), [], "nobody says which process it is now");
    bench.registry.register(&[process(1)]).await.unwrap();
    bench.registry.deregister(&[anyone("a")]).await.unwrap();
    assert_eq!(bench.state("a"), None);
}

#[tokio::test(start_paused = true)]
async fn one_whose_predecessor_was_ahead_of_the_clock_takes_over_once_that_is_lost() {
    let bench = Bench::running();
    bench.registry.register(&[process(9)]).await.unwrap();
    assert!(bench.registry.register(&[process(3)]).await.is_err());
    bench.until(|r| state(r, "a") == Some(EndpointState::Lost)).await;
    bench.registry.register(&[process(3)]).await.unwrap();
    assert_eq!(bench.registry.renew(&[claim(9)]).await.unwrap(), [who("a")]);
    assert_eq!(bench.state("a"), Some(EndpointState::Serving));
}

#[tokio::test(start_paused = true)]
async fn a_successor_does_not_drain_because_the_one_before_it_did() {
    let bench = Bench::running();
    bench.registry.register(&[process(1)]).await.unwrap();
    bench.registry.drain(&[claim(1)], Duration::ZERO).await.unwrap();
    bench.registry.register(&[Registration { state_meant: false, ..process(1) }]).await.unwrap();
    assert_eq!(bench.state("a"), Some(EndpointState::Draining));
    bench.registry.register(&[Registration { state_meant: false, ..process(2) }]).await.unwrap();
    assert_eq!(bench.state("a"), Some(EndpointState::Serving));
}

#[tokio::test]
async fn concurrent_registrations_of_one_service_all_succeed() {
    let bench = Bench::new();
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..50 {
        let registry = bench.registry.clone();
        tasks.spawn(async move { registry.register(&[endpoint(&format!("i{i}"))]).await });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
    assert_eq!(bench.registry.endpoints(&cart()).len(), 50);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_reported_as_lost_is_kept_beyond_its_lease() {
    let bench = Bench::running();
    bench.registry.register(&[leased("a")]).await.unwrap();
    let report = StateReport { who: anyone("a"), state: EndpointState::Lost };
    bench.registry.report(&[report]).await.unwrap();
    tokio::time::sleep(TERM * 3).await;
    assert_eq!(bench.state("a"), Some(EndpointState::Lost), "it may only be overloaded");
    tokio::time::sleep(KEPT_LOST).await;
    assert_eq!(bench.state("a"), None);
}

#[tokio::test(start_paused = true)]
async fn a_control_plane_that_stood_still_grants_full_terms() {
    let bench = Bench::running();
    bench.registry.register(&[leased("a")]).await.unwrap();
    // The lease loop has to be waiting for the term before time jumps past it.
    tokio::time::sleep(TERM / 2).await;
    tokio::time::advance(TERM * 10).await;
    tokio::time::sleep(TERM / 2).await;
    assert_eq!(bench.state("a"), Some(EndpointState::Serving), "nobody could renew meanwhile");
    tokio::time::sleep(TERM).await;
    assert_eq!(bench.state("a"), Some(EndpointState::Lost));
}

#[tokio::test(start_paused = true)]
async fn an_incarnation_from_the_future_keeps_no_successor_out() {
    let bench = Bench::running();
    let process = |incarnation: u64| {
        let mut one = leased("a");
        one.endpoint.labels.insert(Endpoint::INCARNATION.into(), incarnation.to_string());
        one
    };
    let now_us = crate::clock::now_ms() * 1_000;
    for future in [u64::MAX, now_us + 3_600_000_000] {
        bench.registry.register(&[process(future)]).await.unwrap();
        bench.registry.register(&[process(now_us)]).await.unwrap();
        let held = bench.registry.endpoints(&cart()).pop().unwrap();
        assert_eq!(held.endpoint.incarnation(), now_us);
    }
    let refused = bench.registry.register(&[process(now_us - 1)]).await.unwrap_err();
    assert!(matches!(refused, RegistryError::Refused(_)), "the earlier of two of today: {refused}");
}

#[tokio::test]
async fn addresses_that_stand_for_many_are_refused_with_what_to_write() {
    let bench = Bench::new();
    for wrong in ["0.0.0.0:80", "[::]:80", "224.0.0.1:80", "[ff02::1]:80", "255.255.255.255:80"] {
        let mut one = endpoint("a");
        one.endpoint.address = wrong.parse().unwrap();
        let refused = bench.registry.register(&[one]).await.unwrap_err().to_string();
        assert!(refused.starts_with("registrations[0].endpoint.address"), "{refused}");
    }
}
