//! Counting the calls that operators look at.

use std::collections::HashSet;

use fairmesh_model::Balancing;

use super::*;

/// Whether calls are counted, and where the snapshot lies.
fn counted(subscription: &Subscription<CountingTransport>) -> (bool, usize) {
    let state = subscription.state();
    let ServiceState::Ready(ready) = &*state else { panic!("{state:?}") };
    (ready.reported().is_some(), std::ptr::from_ref(ready).addr())
}

#[tokio::test(start_paused = true)]
async fn a_look_counts_the_calls_of_the_published_snapshot_and_of_later_ones() {
    let mut rig = rig();
    let subscription = rig.follow();
    rig.deliver();
    let (is_counted, snapshot) = counted(&subscription);
    assert!(!is_counted, "no one looks at it");

    rig.worker.registry.watch(HashSet::from([name(), ServiceName::new("shop/other").unwrap()]));
    assert_eq!(counted(&subscription), (true, snapshot), "nothing is compiled anew");
    let reported = |rig: &Rig| rig.worker.registry.reported().contains(&name());
    assert!(reported(&rig));

    // So that its place in memory is not used again.
    let _kept = subscription.state();
    let publish = |rig: &mut Rig, subset| {
        let policy = RecordKey::Policy(name());
        let balancing = Balancing { subset, ..Balancing::default() };
        let changed = Policy { balancing, ..Policy::default() };
        rig.handle(Event::Update(update([(Prefix::from(&policy), vec![entry(&policy, changed)])])));
    };
    publish(&mut rig, 3);
    let (is_counted, later) = counted(&subscription);
    assert!(is_counted && later != snapshot);

    rig.worker.registry.watch(HashSet::new());
    publish(&mut rig, 4);
    assert!(!counted(&subscription).0 && !reported(&rig), "until none looks any more");
}
