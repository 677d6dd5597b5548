//! JWT-SVIDs: tokens with which workloads prove their identity (SPIFFE JWT-SVID).

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Algorithm, Claims, KeySet, Refusal, is_for, read_claims, read_header, valid_until};

/// Reads the subject of a token, unverified: whose keys verify it follows from its trust domain.
///
/// # Errors
/// When the token is none, or has no subject.
pub fn stated_subject(token: &str) -> Result<String, Refusal> {
    #[derive(Deserialize)]
    struct Stated {
        sub: String,
    }
    read_header(token)?;
    let claims = token.split('.').nth(1).and_then(|claims| BASE64_URL_SAFE_NO_PAD.decode(claims).ok());
    let stated = claims.and_then(|claims| serde_json::from_slice::<Stated>(&claims).ok());
    stated.map(|stated| stated.sub).ok_or_else(|| Refusal::claim("sub", "is missing"))
}

/// Verifies a token for an audience with the keys of the trust domain of its subject. Returns its claims.
///
/// # Errors
/// Why the token is refused. [`Refusal::UnknownKey`] may end once newer keys are known.
pub fn verify_svid(token: &str, keys: &KeySet, audience: &str, now: Duration) -> Result<Claims, Refusal> {
    let (algorithm, key_id) = read_header(token)?;
    // The one algorithm for tokens of users that the specification does not permit.
    if algorithm == Algorithm::EdDSA {
        return Err(Refusal::Header);
    }
    let key_id = key_id.filter(|id| !id.is_empty()).ok_or(Refusal::UnknownKey)?;
    let key = keys.find(Some(&key_id), algorithm).ok_or(Refusal::UnknownKey)?;
    let claims = read_claims(token, algorithm, key)?;
    valid_until(&claims, now)?;
    match is_for(&claims, audience) {
        true => Ok(claims),
        false => Err(Refusal::claim("aud", "does not name the audience")),
    }
}

/// Writes JSON Web Keys as a set. Those that verify no tokens are left out, since some readers refuse a set for one of
/// them.
pub fn write_jwks<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let keys = keys.into_iter().filter_map(|key| serde_json::from_slice::<Value>(key).ok());
    let keys: Vec<_> = keys.filter(KeySet::is_usable).collect();
    json!({ "keys": keys }).to_string().into_bytes()
}

impl KeySet {
    /// Reads JSON Web Keys. Those that verify no tokens are skipped.
    pub fn of_keys<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let parsed = keys.into_iter().filter_map(|key| serde_json::from_slice(key).ok());
        Self::of_values(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::{
        rand::SystemRandom,
        signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
    };

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    fn encode(bytes: impl AsRef<[u8]>) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }

    fn key() -> EcdsaKeyPair {
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).unwrap();
        EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref()).unwrap()
    }

    fn jwk(key: &EcdsaKeyPair) -> Vec<u8> {
        let (x, y) = key.public_key().as_ref()[1..].split_at(32);
        json!({ "kty": "EC", "crv": "P-256", "kid": "one", "x": encode(x), "y": encode(y) })
            .to_string()
            .into_bytes()
    }

    fn token(key: &EcdsaKeyPair, header: &Value, claims: &Value) -> String {
        let message = [header, claims].map(|part| encode(part.to_string())).join(".");
        let signature = key.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", encode(signature))
    }

    #[test]
    fn svid_is_accepted_only_for_its_audience_time_and_key() {
        let (key, other) = (key(), self::key());
        let keys = KeySet::of_keys([&b"not a key"[..], &jwk(&key)]);
        let header = json!({ "alg": "ES256", "kid": "one", "typ": "JWT" });
        let claims =
            json!({ "sub": "spiffe://prod/shop/web", "aud": ["cart", "pay"], "exp": NOW.as_secs() + 300 });
        let good = token(&key, &header, &claims);
        assert_eq!(stated_subject(&good).unwrap(), "spiffe://prod/shop/web");
        let verify = |token: &str, audience| verify_svid(token, &keys, audience, NOW).map(|_| ());
        assert_eq!((verify(&good, "cart"), verify(&good, "pay")), (Ok(()), Ok(())));
        let changed = |name: &str, value: Value| {
            let mut claims = claims.clone();
            claims[name] = value;
            token(&key, &header, &claims)
        };
        for (token, audience, problem) in [
            (good.clone(), "bank", "'aud' does not name"),
            (changed("exp", json!(NOW.as_secs() - 61)), "cart", "'exp' says that it expired"),
            (changed("exp", Value::Null), "cart", "'exp'"),
            (changed("aud", json!([])), "cart", "'aud'"),
            (token(&other, &header, &claims), "cart", "signature"),
            (token(&key, &json!({ "alg": "ES256" }), &claims), "cart", "'kid'"),
            (token(&key, &json!({ "alg": "ES256", "kid": "two" }), &claims), "cart", "'kid'"),
            (token(&key, &json!({ "alg": "none", "kid": "one" }), &claims), "cart", "no JWT"),
            (token(&key, &json!({ "alg": "HS256", "kid": "one" }), &claims), "cart", "no JWT"),
            (token(&key, &json!({ "alg": "EdDSA", "kid": "one" }), &claims), "cart", "no JWT"),
        ] {
            let said = verify(&token, audience).unwrap_err().to_string();
            assert!(said.contains(problem), "{problem}: {said}");
        }
    }
}
