use bytes::Bytes;
use fairmesh_model::{ConnectionLimit, GatewayBackend, PlacementPin, StoreId, Zone};
use fairmesh_rib::Entry;

use super::*;

/// Returns a snapshot of the mesh's default with this value, or of its absence.
fn default_snapshot(value: Option<Vec<u8>>) -> Update {
    let key = RecordKey::DefaultAuthorization.to_string();
    let entry = |value: Vec<u8>| (key.into(), Entry { value: value.into(), revision: 1 });
    let entries = value.map(entry).into_iter().collect();
    let snapshot = Snapshot { prefix: default_prefix(), entries, age: Duration::ZERO };
    let revision = Revision { store: StoreId(1), partition: 0, number: 1 };
    Update { snapshots: vec![snapshot], ..Update::empty(revision) }
}

fn sink(backend: Option<Label>) -> DirectorySink {
    let issuers = Arc::new(Issuers::unknown(system_time)) as Arc<dyn TokenVerifier>;
    DirectorySink {
        records: Arc::default(),
        default: watch::Sender::new(DefaultAuthorization::default()),
        has_default: false,
        tokens: watch::Sender::new(issuers),
        quotas: watch::Sender::default(),
        backend,
        replicas: watch::Sender::default(),
        known: Arc::default(),
        applied: watch::Sender::default(),
    }
}

#[test]
fn gateway_follows_the_replicas_of_its_own_backend_and_keeps_them_without_a_record() {
    let label = |name: &str| Label::new(name).unwrap();
    let mut sink = sink(Some(label("gw-1")));
    let backend = |address: &str| GatewayBackend {
        zone: Zone::new("a").unwrap(),
        capacity: 10,
        replicas: [address.parse().unwrap()].into(),
        is_closed: false,
        is_sandbox: false,
    };
    let own = record_encoding::encode(&backend("10.0.0.1:1").into());
    let other = record_encoding::encode(&backend("10.0.0.2:1").into());
    let known = BTreeSet::from(["10.0.0.1:1".parse().unwrap()]);
    for (name, value) in [("gw-1", own), ("gw-2", other), ("gw-1", Bytes::from_static(&[0xff]))] {
        let key = RecordKey::GatewayBackend(label(name));
        let text = key.to_string().into();
        sink.put(key, ArrivedRecord { text: &text, value: &value, age: Duration::ZERO });
        assert_eq!(*sink.replicas.borrow(), known, "{name}");
    }
    let key = RecordKey::GatewayBackend(label("gw-1"));
    sink.delete(&key.to_string(), &key);
    assert_eq!(*sink.replicas.borrow(), known);
}

#[tokio::test]
async fn gateway_keeps_a_valid_default_and_denies_by_a_first_unreadable_one() {
    let mut sink = sink(None);
    let valid = record_encoding::encode(&DefaultAuthorization::Allow.into()).to_vec();
    for (value, default) in [
        (None, DefaultAuthorization::Allow),
        (Some(vec![0xff]), DefaultAuthorization::Deny),
        (Some(valid), DefaultAuthorization::Allow),
        (Some(vec![0xff]), DefaultAuthorization::Allow),
    ] {
        sink.update(default_snapshot(value.clone()));
        assert_eq!(*sink.default.borrow(), default, "{value:?}");
    }
}

#[test]
fn forgetting_tenant_removes_only_its_own_records() {
    let mut records = TenantRecords::default();
    let (red, blue) = (Tenant::new("red").unwrap(), Tenant::new("blue").unwrap());
    let prefix = |tenant| Prefix::tenant(tenant, RecordKind::Service);
    for (tenant, service) in [(&red, "red/web"), (&blue, "blue/web")] {
        records.followed.insert(prefix(tenant));
        records.addresses.set(&ServiceName::new(service).unwrap(), Some(([10, 96, 0, 1], 80).into()));
    }
    records.forget(&red, &BTreeSet::from([prefix(&red)]));
    let left: Vec<_> = records.addresses.services().map(ToString::to_string).collect();
    assert_eq!((left, records.followed), (vec!["blue/web".into()], BTreeSet::from([prefix(&blue)])));
}

#[tokio::test]
async fn changed_placement_keeps_the_connections_of_its_service() {
    let backend = Some(Label::new("here").unwrap());
    let mut records = TenantRecords { backend, ..TenantRecords::default() };
    let (service, zone) = (ServiceName::new("red/web").unwrap(), Zone::new("a").unwrap());
    let placed_on = |backend: &str| Placement {
        home_zone: zone.clone(),
        zones: [(zone.clone(), [Label::new(backend).unwrap()].into())].into(),
        added: 0,
        pinned: None,
        connection_limit: None,
    };
    assert!(records.serves(&service), "it is placed nowhere");
    records.place(&service, placed_on("here"));
    let open = records.connections_of(&service).enter(Instant::now()).unwrap();
    records.place(&service, placed_on("other"));
    assert!(!records.serves(&service) && !open.started().is_cancelled());
    let pinned = Some(PlacementPin { ends_connections: true, ..PlacementPin::default() });
    records.place(&service, Placement { pinned, ..placed_on("other") });
    assert!(open.started().is_cancelled());
}

#[tokio::test]
async fn move_ends_connections_from_before_the_placement_or_an_earlier_one() {
    let mut records = TenantRecords { backend: Some(Label::new("here").unwrap()), ..Default::default() };
    let (service, zone) = (ServiceName::new("red/web").unwrap(), Zone::new("a").unwrap());
    let limit = ConnectionLimit {
        per_second: 1,
        reason: String::new(),
        at_ms: 0,
        is_automatic: false,
        first_per_second: 1,
    };
    let placed_on = |backend: &str, ends_connections| Placement {
        home_zone: zone.clone(),
        zones: [(zone.clone(), [Label::new(backend).unwrap()].into())].into(),
        added: 0,
        pinned: Some(PlacementPin { ends_connections, ..PlacementPin::default() }),
        connection_limit: Some(limit.clone()),
    };
    let enter = |records: &mut TenantRecords| records.connections_of(&service).enter(Instant::now());
    let unplaced = enter(&mut records).unwrap();
    records.place(&service, placed_on("here", false));
    let placed = enter(&mut records).unwrap();
    assert!(enter(&mut records).is_none(), "one a second");
    records.displace(&service);
    assert!(enter(&mut records).is_some(), "the limit has ended with the placement");
    records.place(&service, placed_on("other", true));
    assert!(unplaced.started().is_cancelled() && placed.started().is_cancelled());
    drop((unplaced, placed));
    records.displace(&service);
    assert!(records.connections.is_empty(), "none is open");
}

#[tokio::test]
async fn services_that_were_deleted_while_connected_are_forgotten() {
    let mut records = TenantRecords::default();
    let name = |number: usize| ServiceName::new(format!("red/s{number}")).unwrap();
    let mut most = 0;
    for number in 0..1_000 {
        records.forget_all_idle();
        let open = records.connections_of(&name(number)).enter(Instant::now()).unwrap();
        // The record is deleted, and then the connection ends.
        records.set_address(&name(number), None);
        drop(open);
        most = most.max(records.connections.len());
    }
    assert!(most <= MIN_REMEMBERED, "{most}");

    let open: Vec<_> =
        (0..200).map(|number| records.connections_of(&name(number)).enter(Instant::now())).collect();
    records.forget_all_idle();
    assert!(records.connections.len() >= open.len(), "open ones stay");
}
