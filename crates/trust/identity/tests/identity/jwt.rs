use std::time::Duration;

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use fairmesh_identity::{Authority, read_bundle_document, write_bundle_document};
use fairmesh_model::{JwtKey, TrustBundle};
use serde_json::Value;

use crate::support::{Ca, HOUR, domain, id, now};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The id of the key that signs at a time.
fn signing_key(authority: &Authority, at: Duration) -> String {
    let (token, _) = authority.issue_jwt(&id("shop/web"), &["pay".to_owned()], at).unwrap();
    let header = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap()).unwrap();
    serde_json::from_slice::<Value>(&header).unwrap()["kid"].as_str().unwrap().to_owned()
}

/// The ids of the keys that are published at a time, beside recorded ones.
fn published(authority: &Authority, recorded: &TrustBundle, at: Duration) -> Vec<String> {
    let id = |key: &JwtKey| {
        let jwk: Value = serde_json::from_slice(&key.jwk).unwrap();
        jwk["kid"].as_str().unwrap().to_owned()
    };
    authority.complete(Some(recorded.clone()), at).jwt_keys.iter().map(id).collect()
}

#[test]
fn jwt_key_is_published_before_it_signs_and_dropped_after_its_period() {
    let ca = Ca::default();
    let (authority, begin) = (&ca.authority, now());
    let none = authority.bundle();
    let first = signing_key(authority, begin);
    authority.renew_issuer_if_due(begin + 7 * DAY - 5 * HOUR).unwrap();
    assert_eq!(published(authority, &none, begin), [&*first]);
    let renewal = begin + 7 * DAY - 3 * HOUR;
    authority.renew_issuer_if_due(renewal).unwrap();
    let both = published(authority, &none, renewal);
    assert_eq!((both.len(), &both[0]), (2, &first));
    assert_eq!(signing_key(authority, renewal + 3 * HOUR), first);
    assert_eq!(signing_key(authority, renewal + 5 * HOUR), both[1]);
    // A restart keeps the keys.
    let reopened = Authority::open(&ca.folder.path().join("ca"), &domain(), renewal + 5 * HOUR).unwrap();
    assert_eq!(signing_key(&reopened, renewal + 5 * HOUR), both[1]);
    let recorded = authority.complete(Some(none), renewal);
    assert_eq!(published(&reopened, &recorded, begin + 8 * DAY - HOUR), both);
    assert_eq!(
        published(&reopened, &recorded, begin + 8 * DAY + HOUR),
        both[1..],
        "the record has it no longer"
    );
}

#[test]
fn forced_rotation_withdraws_own_jwt_keys_and_keeps_those_of_other_control_planes() {
    let (ca, other) = (Ca::default(), Ca::default());
    let (authority, begin) = (&ca.authority, now());
    let recorded = other.authority.complete(Some(authority.complete(None, begin)), begin);
    let [own, others] = [authority, &other.authority].map(|authority| signing_key(authority, begin));
    assert_eq!(published(authority, &recorded, begin), [&*own, &*others]);
    authority.rotate_jwt_key(begin, false).unwrap();
    authority.rotate_jwt_key(begin, false).unwrap();
    assert_eq!(published(authority, &recorded, begin).len(), 3, "one is waiting already");
    assert_eq!(signing_key(authority, begin), own);
    authority.rotate_jwt_key(begin, true).unwrap();
    let new = signing_key(authority, begin);
    assert_ne!(new, own);
    assert_eq!(published(authority, &recorded, begin), [&*others, &*new]);
    // The control plane may have ended before it changed the record.
    let reopen = || Authority::open(&ca.folder.path().join("ca"), &domain(), begin).unwrap();
    let restarted = reopen();
    assert_eq!(published(&restarted, &recorded, begin), [&*others, &*new]);
    restarted.rotate_jwt_key(begin, false).unwrap();
    let kept = published(&reopen(), &recorded, begin);
    assert_eq!((kept.len(), kept.contains(&own)), (3, false), "nor does the next key bring them back");
}

#[test]
fn bundle_document_holds_roots_and_jwt_keys() {
    let bundle = Ca::default().authority.complete(None, now());
    let document = write_bundle_document(&bundle, 7).unwrap();
    let read = read_bundle_document(domain(), &document).unwrap();
    let without_end = |key: &JwtKey| JwtKey { expires_at: None, ..key.clone() };
    assert_eq!(read.roots, bundle.roots);
    assert_eq!(read.jwt_keys, bundle.jwt_keys.iter().map(without_end).collect::<Vec<_>>());
    let json: Value = serde_json::from_slice(&document).unwrap();
    assert_eq!((&json["spiffe_sequence"], &json["keys"][0]["kty"]), (&7.into(), &"EC".into()));
    let mut many = json;
    many["keys"] = (0..17).map(|i| serde_json::json!({"use": "jwt-svid", "kid": i.to_string()})).collect();
    let error = read_bundle_document(domain(), many.to_string().as_bytes()).unwrap_err().to_string();
    assert!(error.contains("17 keys for JWT-SVIDs"), "{error}");
}
