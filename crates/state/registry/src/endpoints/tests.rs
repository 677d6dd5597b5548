use std::{
    future::Future as _,
    sync::atomic::Ordering,
    task::{Context, Waker},
    time::Duration,
};

use fairmesh_model::{
    Cursor, EndpointState, Identity, MtlsMode, Policy, Prefix, Protocol, Record, RecordKey, Service,
    ServiceKind, TrustBundle, TrustDomain,
};
use fairmesh_rib::Op;
use fairmesh_wire::record_encoding;

use super::*;
use crate::{
    leases::{LOST_RETENTION, RETURN_TIME},
    testing::{TERM, TestRegistry, any_process, cart, endpoint, instance_ref, leased, state},
};

#[tokio::test]
async fn first_registration_declares_service_and_repetition_changes_nothing() {
    let test = TestRegistry::new();
    let mut first = endpoint("a");
    first.endpoint.labels.insert("fairmesh.protocol".into(), "grpc".into());
    let revision = test.registry.register(&[first.clone()]).await.unwrap();
    let declared = test.registry.service(&cart()).unwrap().unwrap();
    assert_eq!((declared.kind, declared.protocol), (ServiceKind::Replicated, Protocol::Grpc));
    assert_eq!(test.registry.register(&[first]).await.unwrap(), revision);

    test.registry.register(&[endpoint("b")]).await.unwrap();
    assert_eq!(test.registry.service(&cart()).unwrap(), Some(declared), "a declaration is kept");
}

#[tokio::test]
async fn registration_may_contain_service_declaration() {
    let test = TestRegistry::new();
    let sharded = Service {
        kind: ServiceKind::Sharded,
        protocol: Protocol::Http2,
        virtual_address: None,
        identity: None,
    };
    let declared_as = Registration { declaration: Some(sharded.clone()), ..endpoint("a") };
    test.registry.register(&[endpoint("b"), declared_as]).await.unwrap();
    assert_eq!(test.registry.service(&cart()).unwrap(), Some(sharded));
}

#[tokio::test]
async fn plaintext_endpoint_of_strict_service_is_refused_with_remedy() {
    let test = TestRegistry::new();
    let secured = || {
        let mut secured = endpoint("b");
        secured.endpoint.mtls = true;
        secured
    };
    let batch = [secured(), endpoint("a")];
    test.registry.refuse_plaintext(&batch).expect("the mesh has no trust domain");
    let roots = TrustBundle::new(TrustDomain::new("prod").unwrap(), vec![b"a root".to_vec()]);
    let write = async |key: RecordKey, record: Record| {
        let put = || Ok((vec![Op::put(key.to_string(), record_encoding::encode(&record))], ()));
        test.registry.change(put).await.unwrap();
    };
    write(RecordKey::TrustBundle, Record::TrustBundle(roots)).await;
    test.registry.refuse_plaintext(&[secured()]).unwrap();
    let refused = test.registry.refuse_plaintext(&batch).unwrap_err();
    assert!(matches!(refused, RegistryError::Refused(_)));
    assert_eq!(refused.reason().field, "registrations[1].endpoint.mtls");
    assert!(refused.to_string().contains("mtls: permissive"), "{refused}");
    let policy = Policy { mtls: MtlsMode::Permissive, ..Policy::default() };
    write(RecordKey::Policy(cart()), policy.into()).await;
    test.registry.refuse_plaintext(&batch).unwrap();
}

#[tokio::test]
async fn registration_batch_is_atomic() {
    let test = TestRegistry::new();
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
        let refusal = test.registry.register(&batch).await.unwrap_err();
        assert_eq!(refusal.reason().field, field, "{refusal}");
    }
    test.store.full.store(true, Ordering::Relaxed);
    let refusal = test.registry.register(&[endpoint("a")]).await.unwrap_err();
    assert!(matches!(refusal, RegistryError::Unavailable(_)), "{refusal}");
    assert_eq!(test.revision(), 0);
}

#[tokio::test]
async fn instance_registered_in_new_region_replaces_its_old_record() {
    let test = TestRegistry::new();
    test.registry.register(&[endpoint("a")]).await.unwrap();
    let mut moved = endpoint("a");
    moved.endpoint.address = "10.0.0.8:80".parse().unwrap();
    moved.endpoint.location.region = "us".parse().unwrap();
    test.registry.register(&[moved.clone()]).await.unwrap();
    let held: Vec<_> = test.registry.endpoints(&cart()).into_iter().map(|held| held.endpoint).collect();
    assert_eq!(held, [moved.endpoint]);
}

#[tokio::test(start_paused = true)]
async fn expired_lease_marks_endpoint_lost_until_renewal() {
    let test = TestRegistry::running();
    let mut starting = leased("b");
    starting.endpoint.state = EndpointState::Starting;
    let revision = test.registry.register(&[leased("a"), starting]).await.unwrap();
    for _ in 0..3 {
        tokio::time::sleep(TERM / 2).await;
        assert_eq!(test.registry.renew(&[any_process("a"), any_process("b")]).await.unwrap(), []);
    }
    assert_eq!(test.revision(), revision, "a renewal writes nothing");

    test.until(|r| state(r, "a") == Some(EndpointState::Lost)).await;
    test.until(|r| state(r, "b") == Some(EndpointState::Lost)).await;
    let before = test.revision();
    assert_eq!(test.registry.renew(&[any_process("a"), any_process("b")]).await.unwrap(), []);
    assert_eq!(test.revision(), before + 1, "one write for all that return");
    assert_eq!(test.state("a"), Some(EndpointState::Serving));
    assert_eq!(test.state("b"), Some(EndpointState::Starting));
}

#[tokio::test(start_paused = true)]
async fn registration_cancelled_by_its_caller_still_gets_lease() {
    let test = TestRegistry::running();
    // The expiry loop has granted leases to all endpoints present at its start.
    tokio::task::yield_now().await;
    test.store.slow.store(true, Ordering::Relaxed);
    let registrations = [leased("a")];
    {
        let mut call = std::pin::pin!(test.registry.register(&registrations));
        let mut context = Context::from_waker(Waker::noop());
        assert!(call.as_mut().poll(&mut context).is_pending());
    }
    test.until(|r| state(r, "a") == Some(EndpointState::Serving)).await;
    test.until(|r| state(r, "a") == Some(EndpointState::Lost)).await;
    assert_eq!(test.registry.declarations().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn endpoint_lost_beyond_retention_is_removed() {
    let test = TestRegistry::running();
    test.registry.register(&[leased("a"), endpoint("forever")]).await.unwrap();
    test.until(|r| state(r, "a") == Some(EndpointState::Lost)).await;
    tokio::time::sleep(LOST_RETENTION - Duration::from_secs(1)).await;
    assert_eq!(test.state("a"), Some(EndpointState::Lost));
    test.until(|r| state(r, "a").is_none()).await;
    assert_eq!(
        test.registry.renew(&[any_process("a"), any_process("forever")]).await.unwrap(),
        [instance_ref("a")]
    );
    assert_eq!(test.state("forever"), Some(EndpointState::Serving), "no lease, no end");
}

#[tokio::test(start_paused = true)]
async fn restarted_control_plane_grants_full_lease_term_after_time_to_return() {
    // The first process registers but never runs its loops, as if it had stopped.
    let test = TestRegistry::new();
    test.registry.register(&[leased("a")]).await.unwrap();
    tokio::time::sleep(TERM * 100).await;
    let again = test.restarted();
    again.run();
    tokio::time::sleep(RETURN_TIME + TERM - Duration::from_millis(1)).await;
    assert_eq!(again.state("a"), Some(EndpointState::Serving));
    again.until(|r| state(r, "a") == Some(EndpointState::Lost)).await;
}

#[tokio::test(start_paused = true)]
async fn draining_endpoint_stays_draining_until_it_reports_another_state() {
    let test = TestRegistry::running();
    test.registry.register(&[leased("a")]).await.unwrap();
    test.registry.drain(&[any_process("a")], Duration::ZERO).await.unwrap();
    test.registry.renew(&[any_process("a")]).await.unwrap();
    test.registry.register(&[leased("a")]).await.unwrap();
    assert_eq!(test.state("a"), Some(EndpointState::Draining));
    test.registry.register(&[Registration { explicit_state: true, ..leased("a") }]).await.unwrap();
    assert_eq!(test.state("a"), Some(EndpointState::Serving));

    test.registry.drain(&[any_process("a")], Duration::ZERO).await.unwrap();
    test.until(|r| state(r, "a").is_none()).await;
    assert_eq!(test.registry.renew(&[any_process("a")]).await.unwrap(), [instance_ref("a")]);
}

fn label(test: &TestRegistry, label: &str) -> Option<String> {
    let endpoint = test.registry.endpoint(&cart(), &"a".parse().unwrap())?.endpoint;
    endpoint.labels.get(label).cloned()
}

async fn drain_by_operator(test: &TestRegistry) {
    test.registry.drain_by_operator(&[any_process("a")], "alice", Duration::ZERO).await.unwrap();
    assert_eq!(test.state("a"), Some(EndpointState::Draining));
    assert!(label(test, Endpoint::DRAINED).unwrap().ends_with(" alice"));
}

#[tokio::test(start_paused = true)]
async fn endpoint_drained_by_operator_stays_drained_until_operator_undrains_it() {
    let test = TestRegistry::running();
    test.registry.register(&[process(1)]).await.unwrap();
    drain_by_operator(&test).await;
    let drained = label(&test, Endpoint::DRAINED);
    let report = |claim, state| StateReport { claim, state };
    for state in [EndpointState::Lost, EndpointState::Serving] {
        test.registry.report(&[report(claim(1), state)]).await.unwrap();
    }
    assert_eq!(test.state("a"), Some(EndpointState::Draining), "its process found it well again");

    // The machine is away for longer than the lease term, and returns with its earlier state.
    test.until(|r| state(r, "a") == Some(EndpointState::Lost)).await;
    assert_eq!(test.registry.renew(&[claim(1)]).await.unwrap(), []);
    assert_eq!(test.state("a"), Some(EndpointState::Draining));
    // The drain also survives a restart of the control plane, and another process that reports serving.
    test.until(|r| state(r, "a") == Some(EndpointState::Lost)).await;
    let again = test.restarted();
    again.registry.register(&[process(2)]).await.unwrap();
    assert_eq!(test.state("a"), Some(EndpointState::Draining));
    let mut starting = process(3);
    starting.endpoint.state = EndpointState::Starting;
    again.registry.register(&[starting]).await.unwrap();
    assert_eq!(test.state("a"), Some(EndpointState::Starting), "nothing is called that is not ready");
    again.registry.report(&[report(claim(3), EndpointState::Serving)]).await.unwrap();
    assert_eq!(test.state("a"), Some(EndpointState::Draining));
    assert_eq!(label(&test, Endpoint::DRAINED), drained, "since the first drain");

    // A program without incarnations may report for any process, but its report is no operator's decision.
    let serving = [report(any_process("a"), EndpointState::Serving)];
    again.registry.report(&serving).await.unwrap();
    assert_eq!((test.state("a"), label(&test, Endpoint::DRAINED)), (Some(EndpointState::Draining), drained));
    again.registry.report_by_operator(&serving).await.unwrap();
    assert_eq!((test.state("a"), label(&test, Endpoint::DRAINED)), (Some(EndpointState::Serving), None));
}

#[tokio::test(start_paused = true)]
async fn operator_drain_ends_when_its_endpoint_is_removed() {
    let test = TestRegistry::running();
    test.registry.register(&[process(1)]).await.unwrap();
    drain_by_operator(&test).await;
    test.registry.deregister(&[claim(1)]).await.unwrap();
    test.registry.register(&[process(1)]).await.unwrap();
    assert_eq!(test.state("a"), Some(EndpointState::Serving), "its owner had removed it");

    drain_by_operator(&test).await;
    test.until(|r| state(r, "a") == Some(EndpointState::Lost)).await;
    tokio::time::sleep(LOST_RETENTION).await;
    test.until(|r| state(r, "a").is_none()).await;
    let mut drained = process(1);
    drained.endpoint.labels.insert(Endpoint::DRAINED.into(), "1 mallory".into());
    test.registry.register(&[drained]).await.unwrap();
    assert_eq!((test.state("a"), label(&test, Endpoint::DRAINED)), (Some(EndpointState::Serving), None));
}

#[tokio::test(start_paused = true)]
async fn lost_endpoint_can_be_neither_drained_nor_undrained() {
    let test = TestRegistry::running();
    test.registry.register(&[process(1)]).await.unwrap();
    test.until(|r| state(r, "a") == Some(EndpointState::Lost)).await;
    assert!(label(&test, Endpoint::LOST).unwrap().ends_with(" expired"));
    let serving = [StateReport { claim: any_process("a"), state: EndpointState::Serving }];
    let refusals = [
        test.registry.report(&serving).await.unwrap_err(),
        test.registry.report_by_operator(&serving).await.unwrap_err(),
        test.registry.drain_by_operator(&[any_process("a")], "alice", Duration::ZERO).await.unwrap_err(),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, RegistryError::Refused(_)), "{refusal}");
        assert!(refusal.to_string().contains("'a' of shop/cart is lost"), "{refusal}");
    }
    assert_eq!(test.state("a"), Some(EndpointState::Lost));
    assert_eq!(test.registry.renew(&[claim(1)]).await.unwrap(), []);
    assert_eq!((test.state("a"), label(&test, Endpoint::LOST)), (Some(EndpointState::Serving), None));
}

#[tokio::test(start_paused = true)]
async fn removing_lost_endpoints_is_refused_if_one_serves_again() {
    let test = TestRegistry::running();
    test.registry.register(&[process(1), leased("b")]).await.unwrap();
    test.until(|r| state(r, "a") == Some(EndpointState::Lost) && state(r, "b") == Some(EndpointState::Lost))
        .await;
    // One endpoint returns before the request arrives, after the command listed it as lost.
    assert_eq!(test.registry.renew(&[claim(1)]).await.unwrap(), []);
    let both = [any_process("a"), any_process("b")];
    let refused = test.registry.deregister_lost(&both).await.unwrap_err();
    assert!(matches!(refused, RegistryError::Refused(_)), "{refused}");
    assert!(refused.to_string().contains("'a' of shop/cart is serving"), "{refused}");
    assert_eq!((test.state("a"), test.state("b")), (Some(EndpointState::Serving), Some(EndpointState::Lost)));
    test.registry.deregister_lost(&[any_process("b")]).await.unwrap();
    assert_eq!(test.state("b"), None);
    let refused = test.registry.deregister_lost(&[any_process("b")]).await.unwrap_err();
    assert!(matches!(refused, RegistryError::NotFound(_)), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn endpoint_drain_waits_for_every_caller() {
    let test = TestRegistry::new();
    test.registry.register(&[endpoint("a"), endpoint("b")]).await.unwrap();
    let caller = test.node.watch("checkout", Identity::Anonymous);
    caller.subscribe(Prefix::endpoints(&cart(), None), None);
    let acknowledge = || {
        let update = caller.pull().unwrap();
        caller.ack(&Cursor::at(update.revision));
    };
    acknowledge();

    let late = test.registry.drain(&[any_process("a")], Duration::from_millis(10)).await.unwrap();
    assert!(!late.callers_moved && late.behind[0].contains("checkout"), "{late:?}");

    let registry = test.registry.clone();
    let drain = tokio::spawn(async move {
        registry.drain(&[any_process("a"), any_process("b")], Duration::from_secs(60)).await
    });
    test.until(|r| state(r, "b") == Some(EndpointState::Draining)).await;
    acknowledge();
    let drained = drain.await.unwrap().unwrap();
    assert!(drained.callers_moved, "{drained:?}");
    assert_eq!(drained.revision, test.revision());

    let (began, days) = (tokio::time::Instant::now(), Duration::from_secs(49 * 86_400));
    test.registry
        .report(&[StateReport { claim: any_process("b"), state: EndpointState::Serving }])
        .await
        .unwrap();
    let late = test.registry.drain(&[any_process("b")], days).await.unwrap();
    assert!(!late.callers_moved && began.elapsed() <= Duration::from_secs(3601), "no call waits longer");
    acknowledge();

    // Writes under prefixes that this caller does not watch do not delay another drain of the endpoint.
    let other = Registration { service: "shop/other".parse().unwrap(), ..endpoint("x") };
    test.registry.register(&[other]).await.unwrap();
    assert!(test.registry.drain(&[any_process("a")], Duration::ZERO).await.unwrap().callers_moved);
}

#[tokio::test]
async fn unregistered_instance_may_deregister_but_not_report_or_drain() {
    let test = TestRegistry::new();
    let revision = test.registry.register(&[endpoint("a")]).await.unwrap();
    let report = |instance| StateReport { claim: any_process(instance), state: EndpointState::Starting };
    let refusal = test.registry.report(&[report("a"), report("b")]).await.unwrap_err();
    assert!(matches!(&refusal, RegistryError::NotFound(e) if e.field == "reports[1]"), "{refusal}");
    let refusal = test.registry.drain(&[any_process("b")], Duration::ZERO).await.unwrap_err();
    assert!(matches!(refusal, RegistryError::NotFound(_)), "{refusal}");
    assert_eq!(test.revision(), revision);

    test.registry.report(&[report("a")]).await.unwrap();
    assert_eq!(test.state("a"), Some(EndpointState::Starting));
    test.registry.deregister(&[any_process("a"), any_process("b")]).await.unwrap();
    assert_eq!(test.state("a"), None);
    assert_eq!(test.registry.renew(&[any_process("a")]).await.unwrap(), [instance_ref("a")]);
}

/// The registration of the `nth` process under the name `a`, at its own port.
fn process(nth: u16) -> Registration {
    let mut registration = Registration { explicit_state: true, ..leased("a") };
    registration.endpoint.address.set_port(nth);
    registration.endpoint.labels.insert(Endpoint::INCARNATION.into(), nth.to_string());
    registration
}

fn claim(nth: u16) -> InstanceClaim {
    InstanceClaim { incarnation: nth.into(), ..any_process("a") }
}

#[tokio::test(start_paused = true)]
async fn replaced_process_cannot_renew_or_drain_for_its_successor() {
    let test = TestRegistry::running();
    test.registry.register(&[process(1)]).await.unwrap();
    test.registry.register(&[process(2)]).await.unwrap();
    let revision = test.revision();
    assert_eq!(test.registry.renew(&[claim(1)]).await.unwrap(), [instance_ref("a")]);
    test.registry.deregister(&[claim(1)]).await.unwrap();
    let draining = StateReport { claim: claim(1), state: EndpointState::Draining };
    let refusals = [
        test.registry.report(&[draining]).await.unwrap_err(),
        test.registry.drain(&[claim(1)], Duration::ZERO).await.unwrap_err(),
        test.registry.report_shards(&claim(1), []).unwrap_err(),
    ];
    assert!(refusals.iter().all(|refusal| matches!(refusal, RegistryError::NotFound(_))), "{refusals:?}");
    let refusal = test.registry.register(&[process(1)]).await.unwrap_err();
    assert!(refusal.to_string().contains("started later"), "{refusal}");
    assert_eq!(test.revision(), revision, "none of this wrote anything");

    // The successor holds the lease, even for a control plane that knows the successor only from the record.
    tokio::time::sleep(TERM / 2).await;
    assert_eq!(test.registry.renew(&[claim(2)]).await.unwrap(), []);
    let again = test.restarted();
    assert_eq!(again.registry.renew(&[claim(1)]).await.unwrap(), [instance_ref("a")]);
    assert_eq!(again.registry.renew(&[claim(2)]).await.unwrap(), []);
    test.registry.deregister(&[claim(2)]).await.unwrap();
    assert_eq!(test.state("a"), None);
}

#[tokio::test(start_paused = true)]
async fn registrations_without_incarnation_are_accepted() {
    let test = TestRegistry::running();
    test.registry.register(&[process(2)]).await.unwrap();
    // Operators and programs of the previous release use any-process claims.
    assert_eq!(test.registry.renew(&[any_process("a")]).await.unwrap(), []);
    test.registry.drain(&[any_process("a")], Duration::ZERO).await.unwrap();
    test.registry.register(&[leased("a")]).await.unwrap();
    assert_eq!(
        test.registry.renew(&[claim(1)]).await.unwrap(),
        [],
        "neither of the two has an incarnation now"
    );
    test.registry.register(&[process(1)]).await.unwrap();
    test.registry.deregister(&[any_process("a")]).await.unwrap();
    assert_eq!(test.state("a"), None);
}

#[tokio::test(start_paused = true)]
async fn new_process_replaces_lost_one_with_future_incarnation() {
    let test = TestRegistry::running();
    test.registry.register(&[process(9)]).await.unwrap();
    assert!(test.registry.register(&[process(3)]).await.is_err());
    test.until(|r| state(r, "a") == Some(EndpointState::Lost)).await;
    test.registry.register(&[process(3)]).await.unwrap();
    assert_eq!(test.registry.renew(&[claim(9)]).await.unwrap(), [instance_ref("a")]);
    assert_eq!(test.state("a"), Some(EndpointState::Serving));
}

#[tokio::test(start_paused = true)]
async fn new_process_does_not_inherit_drain_by_its_predecessor() {
    let test = TestRegistry::running();
    test.registry.register(&[process(1)]).await.unwrap();
    test.registry.drain(&[claim(1)], Duration::ZERO).await.unwrap();
    test.registry.register(&[Registration { explicit_state: false, ..process(1) }]).await.unwrap();
    assert_eq!(test.state("a"), Some(EndpointState::Draining));
    test.registry.register(&[Registration { explicit_state: false, ..process(2) }]).await.unwrap();
    assert_eq!(test.state("a"), Some(EndpointState::Serving));
}

#[tokio::test]
async fn concurrent_registrations_of_one_service_all_succeed() {
    let test = TestRegistry::new();
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..50 {
        let registry = test.registry.clone();
        tasks.spawn(async move { registry.register(&[endpoint(&format!("i{i}"))]).await });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
    assert_eq!(test.registry.endpoints(&cart()).len(), 50);
}

#[tokio::test(start_paused = true)]
async fn endpoint_reported_lost_is_retained_beyond_its_lease() {
    let test = TestRegistry::running();
    test.registry.register(&[leased("a")]).await.unwrap();
    let report = StateReport { claim: any_process("a"), state: EndpointState::Lost };
    test.registry.report(&[report]).await.unwrap();
    tokio::time::sleep(TERM * 3).await;
    assert_eq!(test.state("a"), Some(EndpointState::Lost), "it may only be overloaded");
    tokio::time::sleep(LOST_RETENTION).await;
    assert_eq!(test.state("a"), None);
}

#[tokio::test(start_paused = true)]
async fn resumed_control_plane_grants_full_lease_terms() {
    let test = TestRegistry::running();
    test.registry.register(&[leased("a")]).await.unwrap();
    // The expiry loop must be waiting for the term before time jumps past it.
    tokio::time::sleep(TERM / 2).await;
    tokio::time::advance(TERM * 10).await;
    tokio::time::sleep(TERM / 2).await;
    assert_eq!(test.state("a"), Some(EndpointState::Serving), "no renewal could arrive meanwhile");
    tokio::time::sleep(TERM).await;
    assert_eq!(test.state("a"), Some(EndpointState::Lost));
}

#[tokio::test(start_paused = true)]
async fn future_incarnation_does_not_block_later_processes() {
    let test = TestRegistry::running();
    let process = |incarnation: u64| {
        let mut one = leased("a");
        one.endpoint.labels.insert(Endpoint::INCARNATION.into(), incarnation.to_string());
        one
    };
    let now_us = fairmesh_rib::wall_clock::now_ms() * 1_000;
    let hour_us = 3_600_000_000;
    for future in [u64::MAX, now_us + 25 * hour_us, now_us + 50 * 60_000_000] {
        test.registry.register(&[process(future)]).await.unwrap();
        test.registry.register(&[process(now_us)]).await.unwrap();
        let held = test.registry.endpoints(&cart()).pop().unwrap();
        assert_eq!(held.endpoint.incarnation(), now_us);
    }
    let refused = test.registry.register(&[process(now_us - 1)]).await.unwrap_err();
    assert!(matches!(refused, RegistryError::Refused(_)), "the earlier of two of today: {refused}");
    // Both incarnations are in the future of a control plane whose clock is an hour slow.
    test.registry.register(&[process(now_us + hour_us)]).await.unwrap();
    let refused = test.registry.register(&[process(now_us + hour_us - 1)]).await.unwrap_err();
    assert!(matches!(refused, RegistryError::Refused(_)), "the earlier of two: {refused}");
}

#[tokio::test]
async fn wildcard_address_is_refused_with_hint() {
    let test = TestRegistry::new();
    for wrong in ["0.0.0.0:80", "[::]:80", "224.0.0.1:80", "[ff02::1]:80", "255.255.255.255:80"] {
        let mut one = endpoint("a");
        one.endpoint.address = wrong.parse().unwrap();
        let refused = test.registry.register(&[one]).await.unwrap_err().to_string();
        assert!(refused.starts_with("registrations[0].endpoint.address"), "{refused}");
    }
}

/// An endpoint of `shop/web` at the same address as the other endpoints.
fn of_web(id: &str) -> Registration {
    Registration { service: "shop/web".parse().unwrap(), ..leased(id) }
}

fn web_claim(id: &str) -> InstanceClaim {
    InstanceClaim { instance: of_web(id).instance_ref(), incarnation: 0 }
}

#[tokio::test(start_paused = true)]
async fn lost_endpoint_is_removed_when_another_service_takes_its_address() {
    let test = TestRegistry::running();
    test.registry.register(&[leased("a")]).await.unwrap();
    test.until(|r| state(r, "a") == Some(EndpointState::Lost)).await;
    test.registry.register(&[of_web("w")]).await.unwrap();
    assert_eq!(test.state("a"), None);

    test.registry.register(&[leased("a")]).await.unwrap();
    assert_eq!(test.state("a"), Some(EndpointState::Serving), "it may register again");
}

#[tokio::test(start_paused = true)]
async fn endpoint_with_taken_address_is_removed_when_lease_expires() {
    let test = TestRegistry::running();
    test.registry.register(&[leased("a")]).await.unwrap();
    tokio::time::sleep(TERM / 2).await;
    test.registry.register(&[of_web("w")]).await.unwrap();
    assert_eq!(test.state("a"), Some(EndpointState::Serving), "its lease has not expired");
    test.until(|r| state(r, "a").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_two_services_at_one_address_stay_when_agent_dies() {
    let test = TestRegistry::running();
    test.registry.register(&[leased("a")]).await.unwrap();
    test.registry.register(&[of_web("w")]).await.unwrap();
    tokio::time::sleep(TERM / 2).await;
    assert_eq!(test.registry.renew(&[any_process("a"), web_claim("w")]).await.unwrap(), []);
    test.until(|r| state(r, "a") == Some(EndpointState::Lost)).await;
    assert_eq!(test.registry.renew(&[web_claim("w")]).await.unwrap(), []);
    assert_eq!(test.state("a"), Some(EndpointState::Lost), "kept as a last resort");
}
