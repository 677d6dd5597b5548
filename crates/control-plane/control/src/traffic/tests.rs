use fairmesh_controllers::{Controller, Decision, Wake};
use fairmesh_model::{
    CallPath, CallRates, Confirmation, Policy, Record, RecordKey, RegionDrain, RegionShares, RegionTable,
    ServerRates, Share, StoreId, TableOrigin, Traffic, TrafficPlanner, TrafficReport, TrafficShares,
};
use fairmesh_rib::{Commit, Expect};
use fairmesh_signals::ReportSource;
use fairmesh_test_support::endpoint;
use fairmesh_wire::{record_encoding, v1};
use prost::Message as _;
use tokio::time::{Instant, advance};

use super::*;

const REGIONS: [&str; 2] = ["eu", "us"];

fn name(name: &str) -> ServiceName {
    ServiceName::new(name).unwrap()
}

fn region(name: &str) -> Region {
    Region::new(name).unwrap()
}

fn policy(planner: Option<TrafficPlanner>) -> Record {
    let traffic = planner.map(|planner| Box::new(Traffic { planner: Some(planner), ..Traffic::default() }));
    Record::Policy(Policy { traffic, ..Policy::default() })
}

/// A table of the service `shop/cart` that keeps all calls in their region.
fn table(from: &str, origin: TableOrigin) -> (RecordKey, Option<Record>) {
    let home = RegionShares { to: [(region(from), Share::ALL)].into(), dropped: Share::NONE };
    let shares = TrafficShares { default: Some(home), ..TrafficShares::default() };
    let table = RegionTable::new(shares, origin);
    (RecordKey::RegionTable(name("shop/cart"), region(from)), Some(Record::RegionTable(table)))
}

/// Records, reports, and the controllers of a control plane without a store.
struct World {
    node: Node,
    planning: TrafficPlanning,
    planner: PlannerController,
    drains: DrainController,
}

impl World {
    /// A control plane that has started a while ago.
    async fn start() -> Self {
        let node = Node::new(StoreId(1));
        let planning = TrafficPlanning::new(node.clone(), Arc::default(), &[]);
        let (planner, drains) = (PlannerController::new(planning.clone()), DrainController(planning.clone()));
        advance(Duration::from_secs(60)).await;
        Self { node, planning, planner, drains }
    }

    fn commit(&self, changes: Vec<(RecordKey, Option<Record>)>) {
        let change = |(key, record): (RecordKey, Option<Record>)| {
            (key.to_string().into(), record.map(|record| record_encoding::encode(&record)))
        };
        let changes = changes.into_iter().map(change).collect();
        let commit = Commit { revision: self.node.revision().number + 1, changes };
        self.planning.facts.apply(&commit, &self.node);
        self.node.apply(commit);
    }

    /// A service with a planner and an endpoint in each region.
    fn serve(&self, service: &ServiceName) {
        let endpoint = |at: &str| {
            let endpoint = endpoint("one", at);
            let key = RecordKey::Endpoint(service.clone(), region(at), endpoint.instance.clone());
            (key, Some(Record::Endpoint(endpoint)))
        };
        let policy = (RecordKey::Policy(service.clone()), Some(policy(Some(TrafficPlanner::Rings))));
        self.commit([policy].into_iter().chain(REGIONS.map(endpoint)).collect());
    }

    /// Calls and load of a service in both regions, all of them local.
    fn report(&self, service: &ServiceName, calls: [u64; 2]) {
        self.report_refused(service, calls, [0; 2]);
    }

    /// The same where servers refuse so many of the calls.
    fn report_refused(&self, service: &ServiceName, calls: [u64; 2], refused: [u64; 2]) {
        let counts = calls.into_iter().zip(refused);
        for (reporter, (at, (calls, refused))) in (0..).zip(REGIONS.into_iter().zip(counts)) {
            let path = CallPath {
                service: service.clone(),
                from: region(at),
                to: Some(region(at)),
                class: None,
                caller: None,
                parent: None,
                from_zone: None,
                to_zone: None,
            };
            let servers = ServerRates {
                servers: 1,
                counting: 1,
                measured: 1,
                received: calls,
                refused,
                cpu_millicores: calls / 100,
                limit_millicores: 1_000,
                ..ServerRates::default()
            };
            self.planning.reports.record(
                &ReportSource::of_mesh(),
                TrafficReport {
                    reporter,
                    interval: Duration::from_secs(5),
                    regions: [region(at)].into(),
                    calls: [(path, CallRates { offered: calls, attempts: calls, ..CallRates::default() })]
                        .into(),
                    servers: [((service.clone(), region(at)), servers)].into(),
                    ..TrafficReport::default()
                },
            );
        }
    }
}

/// A round without its writes: they are the caller's to make.
async fn round<C: Controller>(controller: &mut C, node: &Node) -> Decision<C::Effect> {
    let facts = controller.read_facts(node, Wake::Changed).await.unwrap();
    let mut decision = controller.reconcile(facts, controllers::Now { at: Instant::now(), wall_ms: 1 });
    for effect in decision.effects.drain(..) {
        controller.apply(effect).await.unwrap();
    }
    decision
}

#[tokio::test(start_paused = true)]
async fn planner_writes_tables_only_if_records_it_read_are_unchanged() {
    let mut world = World::start().await;
    let (cart, web) = (name("shop/cart"), name("shop/web"));
    for service in [&cart, &web] {
        world.serve(service);
    }
    world.report(&cart, [40_000, 20_000]);
    let decision = round(&mut world.planner, &world.node).await;
    let [write] = &decision.writes[..] else { panic!("{decision:?}") };
    assert_eq!((write.subject.as_str(), write.ops.len()), ("shop/cart", 2));
    assert!(write.ops.iter().all(|op| op.expect == Expect::Absent), "{write:?}");
    let [refusal] = &decision.refused[..] else { panic!("{decision:?}") };
    assert_eq!(refusal.subject, "shop/web", "its servers have not reported: {refusal:?}");

    let plans = world.planning.plans.read();
    assert_eq!(plans.by_service[&cart].planned_rounds, 1);
    assert_eq!(plans.by_service[&cart].confirmed_at_ms, None, "not before it is written");
    world.planner.written("shop/cart");
    round(&mut world.planner, &world.node).await;
    let plans = world.planning.plans.read();
    assert!(plans.by_service[&cart].confirmed_at_ms.is_some());
}

#[tokio::test(start_paused = true)]
async fn status_shows_doubt_about_region_until_its_reports_fit_again() {
    let mut world = World::start().await;
    let cart = name("shop/cart");
    world.serve(&cart);
    for (refused, is_doubted) in [(0, false), (10_000, true), (0, false)] {
        for _ in 0..100 {
            world.report_refused(&cart, [20_000; 2], [refused, 0]);
            round(&mut world.planner, &world.node).await;
            advance(Duration::from_secs(1)).await;
        }
        let regions = world.planning.status(&cart).unwrap().regions;
        let doubts: Vec<_> = regions.iter().map(|region| !region.doubt.is_empty()).collect();
        assert_eq!(doubts, [is_doubted, false], "{regions:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn planner_does_not_replace_table_written_during_its_round() {
    let mut world = World::start().await;
    let cart = name("shop/cart");
    world.serve(&cart);
    world.report(&cart, [40_000, 20_000]);
    let facts = world.planner.read_facts(&world.node, Wake::Changed).await.unwrap();
    // A person divides the calls by hand from now on.
    let by_hand = RegionTable::new(TrafficShares::default(), TableOrigin::ByHand);
    let key = RecordKey::RegionTable(cart.clone(), region("eu"));
    let table = (key.clone(), Some(Record::RegionTable(by_hand)));
    world.commit(vec![table, (RecordKey::Policy(cart.clone()), Some(policy(None)))]);
    let now = controllers::Now { at: Instant::now(), wall_ms: 1 };
    let decision = world.planner.reconcile(facts, now);
    let batch =
        fairmesh_rib::Batch { ops: decision.writes.into_iter().flat_map(|write| write.ops).collect() };
    assert_eq!(batch.ops.len(), 2);
    world.node.check(&batch).unwrap_err();
    world.planner.not_written("shop/cart");

    let decision = round(&mut world.planner, &world.node).await;
    assert!(decision.writes.is_empty(), "{decision:?}");
    assert!(world.planning.plans.read().by_service.is_empty(), "it has no planner any more");
}

#[tokio::test(start_paused = true)]
async fn planned_tables_of_service_without_planner_are_deleted() {
    let mut world = World::start().await;
    let confirmation = Confirmation { round: 7, at_ms: 1 };
    world.commit(vec![
        table("eu", TableOrigin::Planned(confirmation)),
        table("us", TableOrigin::ByHand),
        (RecordKey::Policy(name("shop/cart")), Some(policy(None))),
    ]);
    let decision = round(&mut world.planner, &world.node).await;
    let ops: Vec<_> = decision.writes.iter().flat_map(|write| &write.ops).collect();
    let [op] = &ops[..] else { panic!("{ops:?}") };
    assert_eq!(*op.key, *RecordKey::RegionTable(name("shop/cart"), region("eu")).to_string());
    assert_eq!((&op.value, op.expect), (&None, Expect::Revision(1)));
    world.commit(vec![(RecordKey::RegionTable(name("shop/cart"), region("eu")), None)]);
    assert!(round(&mut world.planner, &world.node).await.writes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn region_tables_of_service_with_undecodable_policy_are_kept() {
    let mut world = World::start().await;
    let key = RecordKey::Policy(name("shop/cart"));
    world.commit(vec![table("eu", TableOrigin::Planned(Confirmation { round: 7, at_ms: 1 }))]);
    let traffic = v1::Traffic { planner: 99, ..v1::Traffic::default() };
    let later = v1::Policy { traffic: Some(traffic), ..v1::Policy::from(Policy::default()) };
    let changes = vec![(key.to_string().into(), Some(later.encode_to_vec().into()))];
    world.planning.facts.apply(&Commit { revision: 2, changes: changes.clone() }, &world.node);
    world.node.apply(Commit { revision: 2, changes });
    let decision = round(&mut world.planner, &world.node).await;
    assert!(decision.writes.is_empty(), "{decision:?}");
    let subjects: Vec<_> = decision.refused.iter().map(|refusal| refusal.subject.as_str()).collect();
    assert_eq!(subjects, ["shop/cart"]);
    world.commit(vec![(key, Some(policy(None)))]);
    let decision = round(&mut world.planner, &world.node).await;
    assert_eq!((decision.writes.len(), decision.refused.len()), (1, 0), "a policy that asks for none");
}

fn drain(keep: Share) -> Record {
    Record::RegionDrain(RegionDrain { keep, ..RegionDrain::begin(None, false, Duration::ZERO, 1) })
}

#[tokio::test(start_paused = true)]
async fn region_drain_waits_for_plan_of_current_topology() {
    let mut world = World::start().await;
    world.commit(vec![(RecordKey::RegionDrain(region("eu")), Some(drain(Share::ALL)))]);
    let state = |world: &World| world.planning.drains().remove(0);
    assert!(round(&mut world.drains, &world.node).await.writes.is_empty());
    assert_eq!(state(&world).state, "waits for the next round of the planner");
    round(&mut world.planner, &world.node).await;
    let decision = round(&mut world.drains, &world.node).await;
    assert_eq!(decision.writes.len(), 1, "without planned services there is nothing to wait for");
    assert_eq!((state(&world).state.as_str(), state(&world).services), ("makes a step", Some(0)));
    world.commit(vec![(RecordKey::RegionDrain(region("us")), Some(drain(Share::ALL)))]);
    assert!(round(&mut world.drains, &world.node).await.writes.is_empty(), "the plans are of before");
}

#[tokio::test(start_paused = true)]
async fn region_drain_reports_shadow_mode_of_its_controller() {
    let world = World::start().await;
    world.commit(vec![(RecordKey::RegionDrain(region("eu")), Some(drain(Share::ALL)))]);
    let facts = world.planning.facts.clone();
    let planning = TrafficPlanning::new(world.node.clone(), facts, &["drains".parse().unwrap()]);
    assert_eq!(planning.drains()[0].state, "stands still, since the controller 'drains' is in shadow mode");
}

#[tokio::test(start_paused = true)]
async fn region_drain_waits_for_plan_with_current_route_classes() {
    let mut world = World::start().await;
    let cart = name("shop/cart");
    world.serve(&cart);
    world.report(&cart, [40_000, 20_000]);
    world.commit(vec![(RecordKey::RegionDrain(region("eu")), Some(drain(Share::ALL)))]);
    round(&mut world.planner, &world.node).await;
    round(&mut world.drains, &world.node).await;
    let state = |world: &World| world.planning.drains().remove(0).state;
    assert_ne!(state(&world), "waits for the next round of the planner");
    let traffic = Traffic {
        planner: Some(TrafficPlanner::Rings),
        classes: vec!["bulk".parse().unwrap()],
        ..Traffic::default()
    };
    let policy = Record::Policy(Policy { traffic: Some(Box::new(traffic)), ..Policy::default() });
    world.commit(vec![(RecordKey::Policy(cart), Some(policy))]);
    round(&mut world.drains, &world.node).await;
    assert_eq!(state(&world), "waits for the next round of the planner");
}

#[tokio::test(start_paused = true)]
async fn only_one_region_drain_makes_step_per_round() {
    let mut world = World::start().await;
    let drains = REGIONS.map(|at| (RecordKey::RegionDrain(region(at)), Some(drain(Share::ALL))));
    world.commit(drains.into());
    round(&mut world.planner, &world.node).await;
    let decision = round(&mut world.drains, &world.node).await;
    let subjects: Vec<_> = decision.writes.iter().map(|write| write.subject.as_str()).collect();
    assert_eq!(subjects, ["drain of region eu"]);
    let states: Vec<_> = world.planning.drains().into_iter().map(|drain| drain.state).collect();
    assert_eq!(states, ["makes a step", "waits for the step of another drain"]);
}

#[tokio::test(start_paused = true)]
async fn restarted_region_drain_does_not_show_state_of_previous_one() {
    let mut world = World::start().await;
    world.commit(vec![(RecordKey::RegionDrain(region("eu")), Some(drain(Share::NONE)))]);
    round(&mut world.planner, &world.node).await;
    round(&mut world.drains, &world.node).await;
    assert_eq!(world.planning.drains()[0].state, "done");
    let again = RegionDrain::begin(None, true, Duration::ZERO, 2);
    world.commit(vec![(RecordKey::RegionDrain(region("eu")), Some(Record::RegionDrain(again)))]);
    assert_eq!(world.planning.drains()[0].state, "waits for the next round of the planner");
}
