mod generators;

use std::time::Duration;

use fairmesh_model::*;
use proptest::{collection, prelude::*};

use super::*;
use generators::{entry, service};

fn cart() -> ServiceName {
    ServiceName::new("shop/cart").unwrap()
}

/// One key of each kind.
fn keys() -> Vec<RecordKey> {
    let eu = Region::new("eu").unwrap();
    vec![
        RecordKey::Service(cart()),
        RecordKey::Endpoint(cart(), eu.clone(), InstanceId::new("a").unwrap()),
        RecordKey::Policy(cart()),
        RecordKey::Health(cart(), eu.clone(), InstanceId::new("a").unwrap()),
        RecordKey::ShardManifest(cart(), ShardPart::Ranges),
        RecordKey::ShardChunk(cart(), ShardPart::Region(eu), ChunkHash(1)),
        RecordKey::Move(cart(), ShardId(0)),
        RecordKey::RegionTable(cart(), Region::new("us").unwrap()),
        RecordKey::History(RecordKind::Service, cart(), 1),
        RecordKey::Regions,
        RecordKey::RoundTrips,
        RecordKey::MeasuredDistances(Region::new("eu").unwrap()),
        RecordKey::Checker(Region::new("eu").unwrap()),
        RecordKey::Hosts,
        RecordKey::TrustBundle,
        RecordKey::Revocations,
        RecordKey::FederatedDomains,
        RecordKey::TokenIssuers,
        RecordKey::JoinedAgent(Label::new("web-1").unwrap()),
        RecordKey::Workload(cart()),
        RecordKey::Authorization(cart()),
        RecordKey::DefaultAuthorization,
        RecordKey::PolicyDefaults(DefaultsScope::Mesh),
        RecordKey::RoleBinding(Label::new("shop").unwrap()),
        RecordKey::GatewayService(cart()),
        RecordKey::GatewayBackend(Label::new("gw-1").unwrap()),
        RecordKey::GatewayQuota(Tenant::new("shop").unwrap()),
        RecordKey::Placement(cart()),
    ]
}

proptest! {
    #[test]
    fn every_record_round_trips_through_bytes((key, record) in entry()) {
        let value = encode(&record);
        let read = decode(&key, &value);
        prop_assert_eq!(read.as_ref(), Ok(&record));
        prop_assert_eq!(check(&key.to_string(), &value), Ok(key));
        prop_assert_eq!(encode(&record), value, "the encoding is unique");
    }

    #[test]
    fn arbitrary_bytes_are_decoded_or_rejected(value in collection::vec(any::<u8>(), 0..200)) {
        for key in keys() {
            let _ = check(&key.to_string(), &value);
        }
    }

    #[test]
    fn damaged_record_values_are_decoded_or_rejected((key, record) in entry(), at in any::<usize>(), bit in 0..8_u32) {
        let mut value = encode(&record).to_vec();
        if !value.is_empty() {
            let at = at % value.len();
            value[at] ^= 1 << bit;
        }
        // Accepted bytes re-encode to bytes that are accepted too.
        if let Ok(record) = decode(&key, &value) {
            prop_assert_eq!(decode(&key, &encode(&record)), Ok(record));
        }
    }

    #[test]
    fn record_history_round_trips_through_bytes(service in service(), revision in any::<u64>(), user in ".{0,20}") {
        let history = History {
            key: RecordKey::Service(cart()),
            value: (revision > 0).then(|| encode(&Record::Service(service))),
            replaced_at_ms: 1_792_000_000_000,
            replaced_by: user,
            replaced_message: String::new(),
            revision,
        };
        let value = encode_history(&history);
        prop_assert_eq!(decode_history(&value), Ok(history));
        let key = RecordKey::History(RecordKind::Service, cart(), revision);
        prop_assert_eq!(check(&key.to_string(), &value), Ok(key));
    }
}

fn endpoint_named(instance: &str) -> Record {
    Record::Endpoint(fairmesh_test_support::endpoint(instance, "eu"))
}

#[test]
fn record_is_valid_only_at_its_own_key() {
    let value = encode(&endpoint_named("a"));
    assert!(check("/t/shop/endpoints/cart/eu/a", &value).is_ok());
    let error = check("/t/shop/endpoints/cart/us/a", &value).unwrap_err();
    assert_eq!(error.field, "/t/shop/endpoints/cart/us/a.location.region");
    assert!(check("/t/shop/endpoints/cart/eu/b", &value).is_err());
    let policy = History {
        key: RecordKey::Policy(cart()),
        value: None,
        replaced_at_ms: 0,
        replaced_by: String::new(),
        replaced_message: String::new(),
        revision: 0,
    };
    let key = RecordKey::History(RecordKind::Service, cart(), 1).to_string();
    assert!(check(&key, &encode_history(&policy)).is_err(), "a policy's history below services");
}

#[test]
fn only_canonical_record_keys_are_accepted() {
    let wish = Record::Move(ShardMove {
        shard: ShardId(7),
        role: Role::new("primary").unwrap(),
        from: Some(InstanceId::new("a").unwrap()),
        to: Some(InstanceId::new("b").unwrap()),
    });
    let value = encode(&wish);
    assert!(check("/t/shop/moves/cart/7", &value).is_ok());
    let error = check("/t/shop/moves/cart/07", &value).unwrap_err();
    assert!(error.hint.contains("/t/shop/moves/cart/7"), "{error}");
}

#[test]
fn policy_expressions_are_found_in_every_route_field() {
    let has = |matches: Match| {
        let route = Route { matches, ..Route::new(Label::new("r").unwrap()) };
        has_expressions(&encode(&Policy { routes: vec![route], ..Default::default() }.into()))
    };
    let pattern = || Pattern::new("/a+").unwrap();
    let value = || TextMatch::Regex(pattern());
    assert!(has(Match { path: Some(PathMatch::Regex(pattern())), ..Default::default() }));
    let header = HeaderMatch { name: "x-user".into(), value: value() };
    assert!(has(Match { headers: vec![header], ..Default::default() }));
    let parameter = QueryMatch { name: "user".into(), value: value() };
    assert!(has(Match { query: vec![parameter], ..Default::default() }));
    assert!(!has(Match { path: Some(PathMatch::Exact("/a".into())), ..Default::default() }));
}

/// A policy whose encoding has `length` bytes.
fn policy_of(length: usize) -> Bytes {
    let encoded = |text: usize| {
        let value = TextMatch::Exact("x".repeat(text));
        let headers = vec![HeaderMatch { name: "x-user".into(), value }];
        let matches = Match { headers, ..Default::default() };
        let name = Label::new("r").unwrap();
        let route = Route { matches, ..Route::new(name) };
        encode(&Policy { routes: vec![route], ..Default::default() }.into())
    };
    let around = encoded(length).len() - length;
    encoded(length - around)
}

#[test]
fn record_whose_history_entry_would_be_too_large_is_rejected() {
    let longest = MAX_VALUE - HISTORY_OVERHEAD;
    let key = RecordKey::Policy(cart());
    let error = check(&key.to_string(), &policy_of(longest + 1)).unwrap_err();
    assert!(error.hint.contains(&longest.to_string()), "{error}");
    let value = policy_of(longest);
    assert_eq!(check(&key.to_string(), &value), Ok(key.clone()));
    let replaced_by = "x".repeat(255);
    let history = History {
        key,
        value: Some(value),
        replaced_at_ms: u64::MAX,
        replaced_by,
        replaced_message: "x".repeat(1024),
        revision: u64::MAX,
    };
    let key = RecordKey::History(RecordKind::Policy, cart(), u64::MAX).to_string();
    assert!(check(&key, &encode_history(&history)).is_ok());
}

#[test]
fn unknown_enum_values_are_rejected_with_field() {
    let message = v1::Service { kind: 99, ..Default::default() };
    let error = decode(&RecordKey::Service(cart()), &bytes(&message)).unwrap_err();
    assert_eq!((error.field.as_str(), error.hint.contains("upgrade")), ("kind", true));
}

#[test]
fn error_in_nested_record_field_has_field_path() {
    let header = v1::HeaderMatch { name: "X-User".into(), value: None };
    let matches = v1::Match { headers: vec![header], ..Default::default() };
    let route = v1::Route { name: "r".into(), r#match: Some(matches), ..Default::default() };
    let policy = v1::Policy { routes: vec![route], timeout_us: 1000, attempts: 1, ..Default::default() };
    let error = decode(&RecordKey::Policy(cart()), &bytes(&policy)).unwrap_err();
    assert_eq!(error.field, "routes[0].match.headers[0].name");
}

/// The previous release reads and writes a single timeout of 1 ms to 1 h, and writes 15 s by default.
#[test]
fn timeout_field_of_previous_release_is_read_and_written() {
    let key = RecordKey::Policy(cart());
    let route = |timeout_us| v1::Route { name: "r".into(), timeout_us, ..Default::default() };
    let read = |timeout_us, of_route| {
        let routes = vec![route(of_route)];
        let policy = v1::Policy { routes, timeout_us, attempts: 1, ..Default::default() };
        match decode(&key, &bytes(&policy)) {
            Ok(Record::Policy(policy)) => (policy.timeouts.total, policy.routes[0].timeouts.total),
            other => panic!("{other:?}"),
        }
    };
    let after = |secs| Some(Duration::from_secs(secs));
    assert_eq!(read(15_000_000, 0), (None, None), "its default means unset");
    assert_eq!(read(20_000_000, 15_000_000), (after(20), after(15)));
    let written = |total: Option<Duration>| {
        let timeouts = Timeouts { total, ..Timeouts::default() };
        let routes = vec![Route { timeouts, ..Route::new("r".parse().unwrap()) }];
        let policy = v1::Policy::from(Policy { routes, timeouts, ..Policy::default() });
        (policy.timeout_us, policy.routes[0].timeout_us)
    };
    assert_eq!(written(None), (15_000_000, 0));
    assert_eq!(written(after(20)), (20_000_000, 20_000_000));
    assert_eq!(written(after(86_400)), (3_600_000_000, 3_600_000_000));
}
