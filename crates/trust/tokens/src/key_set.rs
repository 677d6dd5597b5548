//! The public keys of an issuer.

use fairmesh_model::MAX_ISSUER_KEYS;
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse},
};
use serde::Deserialize;
use serde_json::{Value, json};

/// Members of a JSON Web Key that verification needs (RFC 7518, 6; RFC 8037, 2).
const MEMBERS: [&str; 10] = ["kty", "use", "key_ops", "alg", "kid", "crv", "x", "y", "n", "e"];
/// Maximum number of keys in a set.
const MAX_KEYS: usize = 100;

/// Public keys that verify tokens.
#[derive(Debug, Default)]
pub struct KeySet {
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// The only permitted algorithm, if the key set names one or the key supports only one.
    algorithm: Option<Algorithm>,
    key: DecodingKey,
}

/// A JSON Web Key Set (JWKS). Keys are parsed one by one, so that a key of an unknown kind does not affect other
/// keys.
#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

/// Reason why a document has no usable keys. Each message continues a sentence that begins with the document's name.
#[derive(Debug, thiserror::Error)]
pub enum JwksError {
    /// The document is not a JWKS.
    #[error("is no JWKS: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The JWKS has too many keys.
    #[error("has {0} keys, of at most {MAX_KEYS}")]
    TooManyKeys(usize),
    /// The JWKS has no usable key. New issuers need one.
    #[error("has no key that verifies tokens: RSA, EC (P-256, P-384) or OKP (Ed25519) for signatures")]
    NoKey,
    /// The keys do not fit in a record.
    #[error("has more than {MAX_ISSUER_KEYS} bytes of keys")]
    TooLarge,
}

impl KeySet {
    /// Reduces a JWKS to the usable keys, in a canonical order, with only the members that verification needs. Equal
    /// keys give equal bytes, however the issuer's server writes them.
    ///
    /// # Errors
    /// When the document is no JWKS, or the keys do not fit in a record.
    pub fn reduce(document: &[u8]) -> Result<Vec<u8>, JwksError> {
        let document = read_document(document)?;
        let usable = document.keys.into_iter().filter(|key| Key::parse(key).is_some());
        let mut keys: Vec<_> = usable.map(needed).collect();
        keys.sort_by_cached_key(Value::to_string);
        let reduced = json!({ "keys": keys }).to_string().into_bytes();
        if reduced.len() > MAX_ISSUER_KEYS { Err(JwksError::TooLarge) } else { Ok(reduced) }
    }

    /// Parses a JWKS. Skips symmetric keys, and keys for other uses. A JWKS without usable keys is valid: with it, an
    /// issuer withdraws all of its keys.
    ///
    /// # Errors
    /// When the document is no JWKS.
    pub fn parse(document: &[u8]) -> Result<Self, JwksError> {
        let document = read_document(document)?;
        Ok(Self { keys: document.keys.iter().filter_map(Key::parse).collect() })
    }

    /// Reads parsed JSON Web Keys, at most the maximum number of a set. Others are skipped.
    pub(crate) fn of_values(keys: impl Iterator<Item = Value>) -> Self {
        Self { keys: keys.filter_map(|key| Key::parse(&key)).take(MAX_KEYS).collect() }
    }

    /// Whether a JSON Web Key verifies tokens.
    pub(crate) fn is_usable(key: &Value) -> bool {
        Key::parse(key).is_some()
    }

    /// Whether the set has no keys, so that it verifies no token.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the key for a token. If the token has no key id, exactly one key must match.
    pub fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let mut fitting = self.keys.iter().filter(|key| {
            key.key.family() == algorithm.family()
                && key.algorithm.is_none_or(|only| only == algorithm)
                && id.is_none_or(|id| key.id.as_deref() == Some(id))
        });
        let first = fitting.next()?;
        (id.is_some() || fitting.next().is_none()).then_some(&first.key)
    }
}

fn read_document(document: &[u8]) -> Result<Document, JwksError> {
    let document: Document = serde_json::from_slice(document)?;
    match document.keys.len() {
        ..=MAX_KEYS => Ok(document),
        more => Err(JwksError::TooManyKeys(more)),
    }
}

/// Returns a key with only the members that verification needs.
fn needed(mut key: Value) -> Value {
    if let Some(members) = key.as_object_mut() {
        members.retain(|name, _| MEMBERS.contains(&name.as_str()));
    }
    key
}

impl Key {
    fn parse(value: &Value) -> Option<Self> {
        let jwk = Jwk::deserialize(value).ok()?;
        let verifies = |operations: &Vec<KeyOperations>| operations.contains(&KeyOperations::Verify);
        let is_for_signatures =
            jwk.common.public_key_use.as_ref().is_none_or(|usage| *usage == PublicKeyUse::Signature)
                && jwk.common.key_operations.as_ref().is_none_or(verifies);
        let of_curve = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => None,
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 => Some(Algorithm::ES256),
                EllipticCurve::P384 => Some(Algorithm::ES384),
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                Some(Algorithm::EdDSA)
            }
            _ => return None,
        };
        let told = jwk.common.key_algorithm.map(Algorithm::try_from).transpose().ok()?;
        let is_consistent = told.is_none() || of_curve.is_none() || told == of_curve;
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        let is_usable = is_for_signatures && is_consistent && key.family() != AlgorithmFamily::Hmac;
        is_usable.then(|| Self { id: jwk.common.key_id, algorithm: told.or(of_curve), key })
    }
}
