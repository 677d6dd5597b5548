//! Services that no call uses any more, and names that were never declared.

use super::*;

#[tokio::test(start_paused = true)]
async fn unused_service_is_unfollowed() {
    let mut rig = rig();
    let used = rig.follow();
    rig.deliver();
    rig.pass(40).await;
    assert!(rig.worker.services.contains_key(&name()), "a handle is held");
    drop(used);
    for _ in 0..40 {
        drop(rig.follow());
        rig.pass(1).await;
    }
    assert!(rig.worker.services.contains_key(&name()), "a handle is made for every call");
    rig.pass(19).await;
    let again = rig.follow();
    assert!(matches!(*again.state(), ServiceState::Ready(_)), "its state is kept for a while");
    rig.pass(1).await;
    drop(again);
    rig.pass(20).await;
    assert!(rig.worker.services.contains_key(&name()), "the timeout counts from the last use");
    rig.pass(1).await;
    assert!(rig.worker.services.is_empty() && rig.worker.prefix_owners.is_empty());
    let anew = rig.follow();
    rig.deliver();
    assert!(matches!(*anew.state(), ServiceState::Ready(_)));
}

#[tokio::test(start_paused = true)]
async fn unused_service_stays_followed_while_agent_is_disconnected() {
    let mut rig = rig();
    drop(rig.follow());
    rig.deliver();
    rig.handle(Event::Age(AgeChange::Disconnected));
    rig.pass(100).await;
    assert!(matches!(*rig.follow().state(), ServiceState::Ready(_)), "it may not be available again");
    rig.handle(Event::Age(AgeChange::Reported(Duration::ZERO)));
    rig.pass(20).await;
    assert!(rig.worker.services.contains_key(&name()), "the timeout counts from the return of the agent");
    rig.pass(2).await;
    assert!(rig.worker.services.is_empty());

    drop(rig.follow());
    rig.handle(Event::Age(AgeChange::Disconnected));
    rig.pass(22).await;
    assert!(rig.worker.services.is_empty(), "it has no records");
}

#[tokio::test(start_paused = true)]
async fn calls_to_undeclared_service_names_use_bounded_memory() {
    let mut rig = rig();
    rig.handle(Event::Update(update([(Prefix::topology(), vec![])])));
    let real = rig.follow();
    rig.deliver();
    let made_up = |number: usize| ServiceName::new(format!("shop/made-up-{number}")).unwrap();
    let held = rig.worker.registry.get_or_track(&made_up(0));
    for number in 0..MAX_UNKNOWN + 100 {
        drop(rig.worker.registry.get_or_track(&made_up(number)));
        rig.follow();
        let declared = Prefix::from(&RecordKey::Service(made_up(number)));
        rig.handle(Event::Update(update([(declared, vec![])])));
    }
    assert_eq!(rig.worker.services.len(), MAX_UNKNOWN + 1);
    assert!(rig.worker.prefix_owners.len() <= 3 + 2 * MAX_UNKNOWN, "{}", rig.worker.prefix_owners.len());
    assert!(rig.worker.services.contains_key(held.name()), "a handle is held");
    assert!(matches!(*real.state(), ServiceState::Ready(_)));
}
