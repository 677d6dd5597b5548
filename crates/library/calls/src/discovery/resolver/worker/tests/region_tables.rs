//! Follows the tables of the own region, and forgets tables that are not confirmed.

use fairmesh_model::{
    Confirmation, RegionShares, RegionTable, Share, TableOrigin, Traffic, TrafficPlanner, TrafficShares,
};
use fairmesh_router::{PickError, PickParams};

use super::*;

fn key(from: &str) -> RecordKey {
    RecordKey::RegionTable(name(), Region::new(from).unwrap())
}

/// Returns a table that drops every call.
fn drops_all(round: u64) -> Record {
    let shares = RegionShares { to: BTreeMap::new(), dropped: Share::ALL };
    let shares = TrafficShares { default: Some(shares), ..TrafficShares::default() };
    Record::RegionTable(RegionTable::new(shares, TableOrigin::Planned(Confirmation { round, at_ms: 0 })))
}

impl Rig {
    /// Delivers the service with a policy under which a planner divides its calls.
    fn deliver_planned(&mut self) {
        self.deliver();
        let policy = RecordKey::Policy(name());
        let traffic = Traffic { planner: Some(TrafficPlanner::Rings), ..Traffic::default() };
        let planned = Policy { traffic: Some(Box::new(traffic)), ..Policy::default() };
        self.handle(Event::Update(update([(Prefix::from(&policy), vec![entry(&policy, planned)])])));
    }

    /// Delivers a snapshot with the table, of this age.
    fn deliver_table(&mut self, round: u64, age: Duration) {
        let entries = vec![entry(&key("eu"), drops_all(round))];
        let mut update = update([(Prefix::from(&key("eu")), entries)]);
        update.snapshots[0].age = age;
        self.handle(Event::Update(update));
    }

    /// Lets this time pass; then weakens tables.
    async fn wait(&mut self, seconds: u64) {
        advance(Duration::from_secs(seconds)).await;
        self.worker.weaken_tables();
        run_ready(self.worker.settle());
    }

    fn follows(&self, key: &RecordKey) -> bool {
        self.worker.prefix_owners.contains_key(&Prefix::from(key))
    }
}

fn drops(subscription: &Subscription<CountingTransport>) -> bool {
    let state = subscription.state();
    let ServiceState::Ready(ready) = &*state else { panic!("{state:?}") };
    let picked = ready.upstream.pick(&PickParams::default(), 0, 0);
    matches!(picked.map_err(|why| *why), Err(PickError::Dropped { .. }))
}

#[tokio::test(start_paused = true)]
async fn planned_services_follow_own_region_table_without_delaying_calls() {
    let mut rig = rig();
    let subscription = rig.follow();
    rig.deliver();
    assert!(!rig.follows(&key("eu")), "its policy asks for none");
    rig.deliver_planned();
    assert!(rig.follows(&key("eu")) && !rig.follows(&key("us")));
    assert!(!drops(&subscription), "the table has not arrived");
    rig.deliver_table(1, Duration::ZERO);
    assert!(drops(&subscription));
    let policy = RecordKey::Policy(name());
    rig.handle(Event::Update(update([(Prefix::from(&policy), vec![])])));
    assert!(!rig.follows(&key("eu")) && !drops(&subscription));
}

#[tokio::test(start_paused = true)]
async fn region_table_ages_with_its_data_until_confirmed() {
    let mut rig = rig();
    let subscription = rig.follow();
    rig.deliver_planned();
    rig.deliver_table(1, Duration::from_secs(40));
    rig.wait(19).await;
    assert!(drops(&subscription));
    rig.deliver_table(1, Duration::ZERO);
    rig.wait(2).await;
    assert!(!drops(&subscription), "the same value again confirms nothing");
    rig.deliver_table(2, Duration::ZERO);
    assert!(drops(&subscription));
    rig.wait(59).await;
    assert!(drops(&subscription));
    rig.wait(1).await;
    assert!(!drops(&subscription));
    let has_table = |rig: &Rig| match &*rig.worker.registry.get_or_track(&name()).state() {
        ServiceState::Ready(ready) => ready.upstream.has_region_table(),
        state => panic!("{state:?}"),
    };
    assert!(has_table(&rig));
    rig.wait(14 * 60).await;
    assert!(!has_table(&rig), "after a quarter of an hour rings decide");
    assert_eq!(rig.worker.next_weakening(), None);
}
