use std::net::SocketAddr;

use fairmesh_model::{StoreId, Throttle, Zone};
use fairmesh_rib::{Commit, Entry};
use fairmesh_wire::v1;

use super::*;
use crate::loads::tests::loads_of;

fn backend(zone: &str) -> GatewayBackend {
    GatewayBackend {
        zone: Zone::new(zone).unwrap(),
        capacity: 10,
        replicas: ["10.0.0.1:7440".parse().unwrap()].into(),
        is_closed: false,
        is_sandbox: false,
    }
}

fn service(name: &str) -> ServiceName {
    ServiceName::new(name).unwrap()
}

/// Three backends in zone a and one in zone b, and two services at home in a.
fn facts() -> PlacementFacts {
    let zones = [("one", "a"), ("two", "a"), ("three", "a"), ("four", "b")];
    let backends = zones.map(|(name, zone)| (Label::new(name).unwrap(), backend(zone)));
    let home_zone = Zone::new("a").unwrap();
    let wanted = GatewayService { home_zone, backends: 3, grows: true, throttle: Throttle::Agreed };
    let wanted = ["red/web", "blue/web"].map(|name| (service(name), wanted.clone()));
    let (backends, wanted) = (backends.into(), wanted.into());
    PlacementFacts { backends, wanted, is_shared: true, ..PlacementFacts::default() }
}

impl PlacementFacts {
    /// The records to write, and what is refused.
    fn decide(&self) -> (Vec<Op>, Vec<Refusal>) {
        let made = self.plan();
        (self.ops(&made), self.refusals(&made))
    }

    /// Brings operations into force, and returns the services that they are about.
    fn commit(&mut self, ops: &[Op]) -> Vec<String> {
        self.revision += 1;
        for op in ops {
            let key = RecordKey::parse(&op.key).unwrap();
            let name = key.service().unwrap().clone();
            match &op.value {
                None => drop(self.placed.remove(&name)),
                Some(value) => match record_encoding::decode(&key, value).unwrap() {
                    Record::Placement(placed) => drop(self.placed.insert(name, (placed, self.revision))),
                    other => panic!("{other:?}"),
                },
            }
        }
        ops.iter().map(|op| op.key.to_string()).collect()
    }
}

#[test]
fn services_are_placed_once_and_deleted_with_their_declaration() {
    let mut facts = facts();
    let (ops, refused) = facts.decide();
    assert!(refused.is_empty() && ops.iter().all(|op| op.expect == Expect::Absent));
    assert_eq!(facts.commit(&ops), ["/t/blue/placements/web", "/t/red/placements/web"]);
    let sets: BTreeSet<Vec<_>> =
        facts.placed.values().map(|(placed, _)| placed.backends().cloned().collect()).collect();
    assert_eq!(sets.len(), 2, "each has a combination of its own");
    assert!(facts.decide().0.is_empty());
    facts.wanted.remove(&service("red/web"));
    let (ops, _) = facts.decide();
    assert_eq!(ops[0].expect, Expect::Revision(1));
    assert_eq!(facts.commit(&ops), ["/t/red/placements/web"]);
    assert!(facts.decide().0.is_empty() && facts.placed.len() == 1);
}

#[test]
fn one_tenant_gets_half_of_all_places() {
    let mut facts = facts();
    facts.backends.values_mut().for_each(|backend| backend.capacity = 2);
    facts.backends.insert(Label::new("four").unwrap(), GatewayBackend { capacity: 3, ..backend("b") });
    let of_red = facts.wanted[&service("red/web")].clone();
    facts.wanted.insert(service("red/api"), of_red);
    let (ops, refused) = facts.decide();
    assert_eq!(facts.commit(&ops), ["/t/blue/placements/web", "/t/red/placements/api"]);
    assert_eq!(refused.len(), 1);
    assert!(refused[0].reason.contains("tenant red have 4 backends"), "{refused:?}");
    facts.quotas.insert(Tenant::new("red").unwrap(), 6);
    assert!(facts.decide().1.is_empty(), "the tenant has a quota of its own");
    facts.quotas.clear();
    facts.is_shared = false;
    let (ops, refused) = facts.decide();
    assert!(ops.len() == 1 && refused.is_empty(), "without other tenants it gets the rest: {refused:?}");
}

#[test]
fn placements_stay_where_nothing_can_replace_them() {
    let mut facts = facts();
    let (ops, _) = facts.decide();
    facts.commit(&ops);
    // All backends are deleted: the records stay, and the refusals name the shortage.
    let backends = std::mem::take(&mut facts.backends);
    let (ops, refused) = facts.decide();
    assert!(ops.is_empty() && refused.len() == 2, "{ops:?} {refused:?}");
    assert_eq!(refused[0].subject, "placement of blue/web");
    assert!(refused[0].reason.contains("add a backend there"), "{refused:?}");
    facts.backends = backends;
    assert!(facts.decide().0.is_empty());
    // Closing backends moves nothing.
    facts.backends.values_mut().for_each(|backend| backend.is_closed = true);
    assert!(facts.decide().0.is_empty());
}

fn operator_limit() -> ConnectionLimit {
    ConnectionLimit {
        per_second: 3,
        reason: String::new(),
        at_ms: 7,
        is_automatic: false,
        first_per_second: 3,
    }
}

#[test]
fn pinned_backends_and_limits_of_operators_stay_until_they_end() {
    let mut facts = facts();
    let (ops, _) = facts.decide();
    facts.commit(&ops);
    let name = service("red/web");
    let placed = facts.placed.get_mut(&name).unwrap();
    let all: BTreeSet<Label> = ["one", "two", "three"].map(|name| Label::new(name).unwrap()).into();
    placed.0.zones.insert(Zone::new("a").unwrap(), all.clone());
    let pinned =
        PlacementPin { reason: "a test".into(), at_ms: 7, ends_connections: true, is_sandbox: false };
    let limit = operator_limit();
    (placed.0.pinned, placed.0.connection_limit) = (Some(pinned.clone()), Some(limit.clone()));
    let (ops, refused) = facts.decide();
    // The other service lies among these backends, and there is no combination that does not.
    assert!(ops.is_empty() && refused[0].subject == "placement of blue/web", "{ops:?} {refused:?}");
    // One of them is gone: the rest is still the operator's choice.
    facts.backends.remove(&Label::new("three").unwrap());
    let (ops, _) = facts.decide();
    facts.commit(&ops);
    let (placed, _) = &facts.placed[&name];
    assert_eq!((placed.backends().count(), &placed.pinned), (3, &Some(pinned)));
    assert_eq!(placed.connection_limit, Some(limit));
}

#[test]
fn operator_placement_decision_outlives_service_record() {
    let mut facts = facts();
    facts.backends.insert(Label::new("five").unwrap(), backend("a"));
    facts.backends.insert(Label::new("six").unwrap(), backend("b"));
    let (ops, _) = facts.decide();
    facts.commit(&ops);
    let [limited, pinned] = ["red/web", "blue/web"].map(service);
    facts.placed.get_mut(&limited).unwrap().0.connection_limit = Some(operator_limit());
    facts.placed.get_mut(&pinned).unwrap().0.pinned = Some(PlacementPin::default());
    let before = facts.placed.clone();
    facts.wanted.clear();
    facts.keep_decided();
    let (ops, refused) = facts.decide();
    assert!(ops.is_empty(), "{ops:?}");
    let subjects: Vec<_> = refused.iter().map(|one| &*one.subject).collect();
    assert_eq!(subjects, ["placement of blue/web", "placement of red/web"]);
    assert!(refused[1].reason.contains("`fairmesh gateway throttle red/web --off`"), "{refused:?}");
    // A deleted backend is replaced.
    let gone = before[&limited].0.backends().next().unwrap().clone();
    facts.backends.remove(&gone);
    let (ops, _) = facts.decide();
    facts.commit(&ops);
    assert_eq!((facts.placed[&limited].0.backends().count(), facts.placed.len()), (3, 2));
    // An operator ends it.
    facts.placed.get_mut(&limited).unwrap().0.connection_limit = None;
    facts.wanted.clear();
    facts.kept.clear();
    facts.keep_decided();
    let (ops, _) = facts.decide();
    assert!(ops.iter().any(|op| op.value.is_none() && op.key.contains("/t/red/")), "{ops:?}");
}

#[test]
fn service_whose_record_is_deleted_stays_in_the_sandbox() {
    let mut facts = facts();
    let (sandbox, name) = (Label::new("sandbox").unwrap(), service("red/web"));
    facts.backends.insert(sandbox.clone(), GatewayBackend { is_sandbox: true, ..backend("a") });
    facts.sandboxed.insert(name.clone(), PlacementPin { is_sandbox: true, ..PlacementPin::default() });
    // It is placed first, and then moved.
    for _ in 0..2 {
        let (ops, _) = facts.decide();
        facts.commit(&ops);
    }
    facts.sandboxed.clear();
    let (before, wanted) = (facts.placed[&name].clone(), facts.wanted.remove(&name).unwrap());
    facts.keep_decided();
    let (ops, refused) = facts.decide();
    assert!(ops.is_empty() && before.0.backends().eq([&sandbox]), "{ops:?} {before:?}");
    assert!(refused[0].reason.contains("or it is in the sandbox"), "{refused:?}");
    // Its tenant applies the record again.
    facts.kept.clear();
    facts.wanted.insert(name.clone(), wanted);
    facts.keep_decided();
    let (ops, refused) = facts.decide();
    assert!(ops.is_empty() && refused.is_empty() && facts.placed[&name] == before, "{ops:?} {refused:?}");
}

fn node(entries: &[(RecordKey, Record)]) -> Node {
    let entry = |(key, record): &(RecordKey, Record)| {
        (key.to_string().into(), Entry { value: record_encoding::encode(record), revision: 1 })
    };
    Node::load(StoreId(7), 1, entries.iter().map(entry))
}

#[tokio::test]
async fn rounds_without_changed_records_decide_nothing() {
    let PlacementFacts { backends, wanted, .. } = facts();
    let backends = backends.into_iter().map(|(name, one)| (RecordKey::GatewayBackend(name), one.into()));
    let wanted = wanted.into_iter().map(|(name, one)| (RecordKey::GatewayService(name), one.into()));
    let node = node(&backends.chain(wanted).collect::<Vec<_>>());
    let mut controller = PlacementController::new(GatewayLoads::new(node.clone()), None);
    let now = Now { at: tokio::time::Instant::now(), wall_ms: 0 };
    let facts = controller.read_facts(&node, Wake::Changed).await.unwrap();
    let decided = controller.reconcile(facts, now);
    assert_eq!(decided.writes[0].ops.len(), 2);
    let entries = decided.writes[0].ops.iter().map(|op| (op.key.clone(), op.value.clone())).collect();
    assert!(node.apply(Commit { revision: 2, changes: entries }));
    let facts = controller.read_facts(&node, Wake::Changed).await.unwrap();
    assert!(facts.is_some() && controller.reconcile(facts, now).writes.is_empty());
    assert!(controller.read_facts(&node, Wake::Changed).await.unwrap().is_none());
    // A record of a newer release: nothing is decided.
    let broken = [("/g/gateway/backends/one".into(), Some(b"\xff".as_slice().into()))];
    assert!(node.apply(Commit { revision: 3, changes: broken.into() }));
    assert!(controller.read_facts(&node, Wake::Changed).await.is_err());
}

/// The replicas of three backends, all asked for as many new connections of one service, and the controller.
struct Attacked {
    node: Node,
    loads: GatewayLoads,
    controller: PlacementController,
    revision: u64,
}

impl Attacked {
    const REPLICAS: [(&'static str, &'static str, u16); 3] =
        [("one", "a", 1), ("two", "a", 2), ("three", "b", 3)];

    fn new() -> Self {
        let wanted = facts().wanted[&service("red/web")].clone();
        let mut records = vec![(RecordKey::GatewayService(service("red/web")), wanted.into())];
        for (name, zone, port) in Self::REPLICAS {
            let replicas = [SocketAddr::from(([10, 0, 0, 1], port))].into();
            let backend = GatewayBackend { replicas, ..backend(zone) };
            records.push((RecordKey::GatewayBackend(Label::new(name).unwrap()), backend.into()));
        }
        let node = node(&records);
        let loads = GatewayLoads::new(node.clone());
        Self { controller: PlacementController::new(loads.clone(), None), loads, node, revision: 1 }
    }

    fn limit(&self) -> Option<u32> {
        let key = RecordKey::Placement(service("red/web"));
        let entry = self.node.get(&key.to_string())?;
        match record_encoding::decode(&key, &entry.value).unwrap() {
            Record::Placement(placement) => Some(placement.connection_limit?.per_second),
            other => panic!("{other:?}"),
        }
    }

    /// A second in which each replica is asked for so many connections. An admitted one costs 2 ms of CPU.
    async fn second(&mut self, connections: u64) {
        tokio::time::advance(Duration::from_secs(1)).await;
        let admitted = self.limit().map_or(connections, |limit| connections.min(limit.into()));
        for (name, _, port) in Self::REPLICAS {
            let counts =
                v1::GatewayServiceCounts { service: "red/web".into(), requests: 50, errors: 0, connections };
            let report = v1::ReportGatewayRequest {
                address: format!("10.0.0.1:{port}"),
                backend: name.into(),
                span_ms: 1_000,
                cpu_us: 200_000 + admitted * 2_000,
                limit_millicores: 1_000,
                requests: 50,
                accepted: connections,
                services: vec![counts],
                ..Default::default()
            };
            self.loads.exchange(report).unwrap();
        }
        let facts = self.controller.read_facts(&self.node, Wake::Changed).await.unwrap();
        let now = Now { at: Instant::now(), wall_ms: 0 };
        for write in self.controller.reconcile(facts, now).writes {
            self.revision += 1;
            let changes = write.ops.iter().map(|op| (op.key.clone(), op.value.clone())).collect();
            assert!(self.node.apply(Commit { revision: self.revision, changes }));
            self.controller.written(&write.subject);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn attack_that_outlasts_its_limit_is_limited_again() {
    let mut attacked = Attacked::new();
    for _ in 0..60 {
        attacked.second(10).await;
    }
    let mut limits = Vec::new();
    for _ in 0..900 {
        attacked.second(400).await;
        if limits.last() != Some(&attacked.limit()) {
            limits.push(attacked.limit());
        }
    }
    let first = limits[1].unwrap();
    assert!(limits[0].is_none() && (20..60).contains(&first), "{limits:?}");
    // Once it admits the whole attack, backends are overloaded again.
    let lasts = |limit: &u32| *limit < 400;
    let cycle: Vec<u32> =
        std::iter::successors(Some(first), |limit| Some(*limit).filter(lasts).map(|limit| limit * 2))
            .collect();
    let expected: Vec<_> = cycle.into_iter().cycle().take(limits.len() - 1).map(Some).collect();
    assert!(limits.len() > 12, "{limits:?}");
    assert_eq!(limits[1..], expected);
}

#[tokio::test(start_paused = true)]
async fn control_plane_that_starts_does_not_take_a_limited_attack_for_usual() {
    let mut attacked = Attacked::new();
    for second in 0..70 {
        attacked.second(if second < 60 { 10 } else { 400 }).await;
    }
    let first = attacked.limit();
    for _ in 0..35 {
        attacked.second(400).await;
    }
    assert_eq!(attacked.limit(), first.map(|first| first * 2));
    attacked.loads = GatewayLoads::new(attacked.node.clone());
    attacked.controller = PlacementController::new(attacked.loads.clone(), None);
    let mut limits = BTreeSet::new();
    for _ in 0..240 {
        attacked.second(400).await;
        limits.insert(attacked.limit());
    }
    assert!(limits.contains(&first) && !limits.contains(&None), "{limits:?} after {first:?}");
}

#[test]
fn service_is_moved_to_the_sandbox_and_back_by_an_operator() {
    let mut facts = facts();
    let (ops, _) = facts.decide();
    facts.commit(&ops);
    let name = service("red/web");
    let before = facts.placed[&name].0.clone();
    let pin = PlacementPin { ends_connections: true, is_sandbox: true, ..PlacementPin::default() };
    facts.sandboxed.insert(name.clone(), pin.clone());
    // There is no sandbox: it stays, and that is said.
    let (ops, refused) = facts.decide();
    assert!(ops.is_empty() && refused[0].reason.contains("'sandbox: true'"), "{ops:?} {refused:?}");
    let sandbox = Label::new("sandbox").unwrap();
    facts.backends.insert(sandbox.clone(), GatewayBackend { is_sandbox: true, ..backend("b") });
    let (ops, refused) = facts.decide();
    assert_eq!((facts.commit(&ops), refused), (vec!["/t/red/placements/web".to_owned()], Vec::new()));
    let placed = &facts.placed[&name].0;
    assert!(placed.backends().eq([&sandbox]) && placed.pinned.as_ref() == Some(&pin), "{placed:?}");
    assert!(before.backends().all(|backend| placed.ends_connections_at(backend)));
    // It stays there without its cause, and without a sandbox.
    facts.sandboxed.clear();
    assert!(facts.decide().0.is_empty());
    let gone = facts.backends.remove(&sandbox).unwrap();
    let (ops, refused) = facts.decide();
    assert!(ops.is_empty() && refused.len() == 1, "{ops:?} {refused:?}");
    facts.backends.insert(sandbox.clone(), gone);
    facts.placed.get_mut(&name).unwrap().0.pinned = None;
    let (ops, _) = facts.decide();
    facts.commit(&ops);
    assert!(!facts.placed[&name].0.has(&sandbox) && facts.placed[&name].0.backends().count() == 3);
}

#[test]
fn backend_that_a_launcher_starts_gets_no_services() {
    let mut facts = facts();
    for backend in facts.backends.values_mut().filter(|one| one.zone.as_str() == "b") {
        backend.replicas.clear();
    }
    let (ops, refused) = facts.decide();
    assert!(ops.is_empty() && refused.len() == 2, "{ops:?} {refused:?}");
}

/// A minute of a replica of the backend `one`, in which `blue/web` has twice the requests of `red/web`.
fn minute_of_two_services(requests: u64) -> v1::ReportGatewayRequest {
    let counts = |name: &str, requests| v1::GatewayServiceCounts {
        service: name.into(),
        requests,
        ..Default::default()
    };
    v1::ReportGatewayRequest {
        address: "10.0.0.1:1".into(),
        backend: "one".into(),
        span_ms: 60_000,
        cpu_us: 1,
        limit_millicores: 1_000,
        services: vec![counts("red/web", requests), counts("blue/web", requests * 2)],
        ..Default::default()
    }
}

#[tokio::test(start_paused = true)]
async fn services_that_peak_together_are_taken_apart_after_a_day() {
    let mut facts = facts();
    for (name, zone) in [("five", "a"), ("six", "a"), ("five-b", "b"), ("six-b", "b"), ("seven-b", "b")] {
        facts.backends.insert(Label::new(name).unwrap(), backend(zone));
    }
    let placement = |names: [&str; 2]| Placement {
        home_zone: Zone::new("a").unwrap(),
        zones: [
            (Zone::new("a").unwrap(), names.map(|name| Label::new(name).unwrap()).into()),
            (Zone::new("b").unwrap(), [Label::new("four").unwrap()].into()),
        ]
        .into(),
        added: 0,
        pinned: None,
        connection_limit: None,
    };
    facts.placed.insert(service("red/web"), (placement(["one", "two"]), 1));
    facts.placed.insert(service("blue/web"), (placement(["one", "three"]), 1));
    let loads = loads_of(&["one"]);
    let mut rounds = ScatterRounds::new(loads.clone());
    let mut report = |requests: u64| {
        loads.exchange(minute_of_two_services(requests)).unwrap();
        rounds.look(&loads.levels(), Instant::now())
    };
    for half_hour in 0..47 {
        assert!(!report(if half_hour == 20 { 60_000 } else { 600 }), "{half_hour}");
        tokio::time::advance(Duration::from_secs(1_800)).await;
    }
    assert!(report(600));
    let at_noon = rounds.clone();
    facts.scattered = rounds.round(&facts.fleet(), &facts.services(), Instant::now());
    assert_eq!(facts.scattered, None, "no other backend reports");
    let mut rounds = at_noon;
    facts.growth.set_used(["one", "five", "six"].map(|name| (Label::new(name).unwrap(), 100)).into());
    facts.scattered = rounds.round(&facts.fleet(), &facts.services(), Instant::now());
    let (moved, to) = facts.scattered.clone().unwrap();
    assert_eq!(moved, service("blue/web"), "it has more calls");
    assert!(!to.contains(&Label::new("one").unwrap()) && to.len() == 3, "{to:?}");
    let (ops, _) = facts.decide();
    assert_eq!(facts.commit(&ops), ["/t/blue/placements/web"]);
    assert_eq!(facts.placed[&moved].0.backends().cloned().collect::<BTreeSet<_>>(), to);
}
