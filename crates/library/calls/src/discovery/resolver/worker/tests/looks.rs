//! Calls to services that operators are viewing.

use std::{collections::HashSet, sync::Arc};

use fairmesh_model::{Balancing, CallNode};
use fairmesh_signals::{NodeId, ReportedAs};

use super::*;

/// Returns whether calls are counted by parent, and the snapshot's address. Calls are counted in either case.
fn by_parent(subscription: &Subscription<CountingTransport>) -> (bool, usize) {
    let state = subscription.state();
    let ServiceState::Ready(ready) = &*state else { panic!("{state:?}") };
    let paths = ready.reported().expect("calls are counted");
    let parent = NodeId::of(&CallNode { service: ServiceName::new("looks/web").unwrap(), class: None });
    let of_parent = paths.to_nowhere(ReportedAs { class: None, parent });
    let is_apart = !Arc::ptr_eq(of_parent, paths.to_nowhere(ReportedAs::default()));
    (is_apart, std::ptr::from_ref(ready).addr())
}

#[tokio::test(start_paused = true)]
async fn watched_service_counts_calls_by_parent_in_current_and_new_snapshots() {
    let mut rig = rig();
    let subscription = rig.follow();
    rig.deliver();
    let (is_apart, snapshot) = by_parent(&subscription);
    assert!(!is_apart, "no one looks at it");
    assert!(rig.worker.registry.reported().contains(&name()));

    rig.worker.registry.watch(HashSet::from([name(), ServiceName::new("shop/other").unwrap()]));
    assert_eq!(by_parent(&subscription), (true, snapshot), "nothing is compiled anew");

    // Kept so that the snapshot's address is not reused.
    let _kept = subscription.state();
    let publish = |rig: &mut Rig, subset| {
        let policy = RecordKey::Policy(name());
        let balancing = Balancing { subset, ..Balancing::default() };
        let changed = Policy { balancing, ..Policy::default() };
        rig.handle(Event::Update(update([(Prefix::from(&policy), vec![entry(&policy, changed)])])));
    };
    publish(&mut rig, 3);
    let (is_apart, later) = by_parent(&subscription);
    assert!(is_apart && later != snapshot);

    rig.worker.registry.watch(HashSet::new());
    publish(&mut rig, 4);
    assert!(!by_parent(&subscription).0, "until none looks any more");
}
