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
        (self.ops(&made), refusals(&made))
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
    // All backends are deleted: the records stay, and what is missing is said.
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
    let limit = ConnectionLimit { per_second: 3, reason: String::new(), at_ms: 7, is_automatic: false };
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

#[tokio::test(start_paused = true)]
async fn services_that_peak_together_are_taken_apart_after_a_day() {
    let mut facts = facts();
    for name in ["five", "six"] {
        facts.backends.insert(Label::new(name).unwrap(), backend("a"));
    }
    for name in ["five", "six", "seven"] {
        facts.backends.insert(Label::new(format!("{name}-b")).unwrap(), backend("b"));
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
        let counts = |name: &str, requests| v1::GatewayServiceCounts {
            service: name.into(),
            requests,
            ..Default::default()
        };
        let request = v1::ReportGatewayRequest {
            address: "10.0.0.1:1".into(),
            backend: "one".into(),
            span_ms: 60_000,
            cpu_us: 1,
            limit_millicores: 1_000,
            services: vec![counts("red/web", requests), counts("blue/web", requests * 2)],
            ..Default::default()
        };
        loads.exchange(request).unwrap();
        rounds.look(&loads.levels(), Instant::now())
    };
    for half_hour in 0..47 {
        assert!(!report(if half_hour == 20 { 60_000 } else { 600 }), "{half_hour}");
        tokio::time::advance(Duration::from_secs(1_800)).await;
    }
    assert!(report(600));
    facts.scattered = rounds.round(&facts.fleet(), &facts.services(), Instant::now());
    let (moved, to) = facts.scattered.clone().unwrap();
    assert_eq!(moved, service("blue/web"), "it has more calls");
    assert!(!to.contains(&Label::new("one").unwrap()) && to.len() == 3, "{to:?}");
    let (ops, _) = facts.decide();
    assert_eq!(facts.commit(&ops), ["/t/blue/placements/web"]);
    assert_eq!(facts.placed[&moved].0.backends().cloned().collect::<BTreeSet<_>>(), to);
}
