use std::time::Duration;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use fairmesh_model::{TokenIssuer, TokenIssuers};
use fairmesh_router::{TokenRefusal, TokenVerifier as _};
use serde_json::{Value, json};

use super::*;

const NOW: u64 = 1_800_000_000;

fn now() -> Duration {
    Duration::from_secs(NOW)
}

fn jwk(key: &Ed25519KeyPair) -> Value {
    json!({ "kty": "OKP", "crv": "Ed25519", "kid": "one", "x": BASE64.encode(key.public_key()) })
}

fn token(key: &Ed25519KeyPair, claims: &Value) -> String {
    let header = json!({ "alg": "EdDSA", "kid": "one" });
    let message = [&header, claims].map(|part| BASE64.encode(part.to_string())).join(".");
    let signature = BASE64.encode(key.sign(message.as_bytes()));
    format!("{message}.{signature}")
}

fn issuer(name: &str, keys: &Value) -> TokenIssuer {
    TokenIssuer { issuer: name.into(), url: None, keys: json!({ "keys": keys }).to_string().into_bytes() }
}

#[test]
fn keys_of_token_issuer_verify_only_its_own_tokens() {
    let [one, two] = [(); 2].map(|()| Ed25519KeyPair::generate().unwrap());
    let record = TokenIssuers {
        issuers: vec![
            issuer("https://one", &json!([jwk(&one)])),
            issuer("https://two", &json!([jwk(&two)])),
            issuer("https://none", &json!([])),
            issuer("https://broken", &json!({})),
        ],
    };
    let (issuers, unreadable) = Issuers::of(&record, now);
    assert_eq!(unreadable, ["https://broken"]);
    let claims =
        |iss: &str| json!({ "iss": iss, "aud": "cart", "exp": NOW + 30, "realm": { "roles": ["a", 7] } });
    let good = issuers.verify(&token(&one, &claims("https://one"))).unwrap();
    assert_eq!((&*good.issuer, &good.audiences[..]), ("https://one", &["cart".to_owned()][..]));
    assert_eq!(good.valid_for, Duration::from_secs(30) + LEEWAY);
    assert_eq!(good.values(&["realm".into(), "roles".into()]), ["a", "7"]);
    for (token, problem) in [
        (token(&one, &claims("https://two")), "signature"),
        (token(&one, &claims("https://none")), "'kid'"),
        (token(&one, &claims("https://three")), "'iss' names no issuer"),
        (token(&one, &json!({ "aud": "cart", "exp": NOW + 30 })), "'iss' names no issuer"),
        (token(&one, &json!({ "iss": "https://one", "exp": NOW - 61 })), "'exp' says that it expired"),
        ("x".into(), "no JWT"),
    ] {
        let Err(TokenRefusal::Refused(said)) = issuers.verify(&token) else { panic!("{problem}") };
        assert!(said.contains(problem), "{said}");
    }
    let unknown = Issuers::unknown(now).verify(&token(&one, &claims("https://one")));
    assert_eq!(unknown, Err(TokenRefusal::Unknown));
}

#[test]
fn reduced_jwks_is_independent_of_order_and_unused_fields() {
    let [one, two] = [(); 2].map(|()| jwk(&Ed25519KeyPair::generate().unwrap()));
    let mut verbose = one.clone();
    verbose["x5c"] = json!(["x".repeat(100_000)]);
    let unusable = json!({ "kty": "oct", "k": "c2VjcmV0" });
    let reduce = |keys: &Value| KeySet::reduce(json!({ "keys": keys }).to_string().as_bytes());
    let reduced = reduce(&json!([two, verbose, unusable])).unwrap();
    assert_eq!(reduced, reduce(&json!([one, two])).unwrap());
    assert_eq!(KeySet::parse(&reduced).unwrap().len(), 2);
    let none = reduce(&json!([unusable])).unwrap();
    assert_eq!(none, reduce(&json!([])).unwrap(), "an issuer may withdraw all keys");
    assert!(KeySet::parse(&none).unwrap().is_empty());
    assert!(matches!(KeySet::reduce(b"{}"), Err(JwksError::Malformed(_))));
}
