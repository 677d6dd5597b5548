//! Trust bundles in the formats of other software: those of other trust domains are read, and that of this one is
//! written.

use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD as BASE64_URL, Engine as _};
use fairmesh_model::{
    JwtKey, MAX_CERTIFICATE, MAX_JWT_KEY, MAX_JWT_KEYS, MAX_ROOTS, TrustBundle, TrustDomain,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::public_key::PublicKey;

use crate::{IdentityError, Trust, chain_verification};

/// Maximum size of a document, in bytes: the maximum number of roots in base64 and of keys, and the text around them.
pub const MAX_BUNDLE_DOCUMENT: usize = 2 * (MAX_ROOTS * MAX_CERTIFICATE + MAX_JWT_KEYS * MAX_JWT_KEY);

/// Time after which readers of this domain's document should read it again. Keys for JWT-SVIDs are published for longer
/// before they sign.
const REFRESH_HINT: Duration = Duration::from_secs(300);
/// Time for which an older document is refused after a newer one. Servers of one endpoint may differ for some time. A
/// server restored from a backup starts with older numbers, and must be accepted eventually.
const SUPERSEDED: Duration = Duration::from_secs(3600);
/// Values of `use`, which say what a key verifies (SPIFFE Trust Domain and Bundle, 4.2.2).
const FOR_X509: &str = "x509-svid";
const FOR_JWT: &str = "jwt-svid";
/// Members of a key for JWT-SVIDs that verification needs.
const JWT_MEMBERS: [&str; 8] = ["kty", "alg", "kid", "crv", "x", "y", "n", "e"];

/// Reason why a document is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}; give the roots as PEM, or as a SPIFFE bundle (JSON with `keys`, each with `use: x509-svid` and `x5c`)"
)]
pub struct BundleDocumentError(String);

/// A SPIFFE trust bundle, which is a JWK set (SPIFFE Trust Domain and Bundle, 4).
#[derive(Deserialize)]
struct SpiffeBundle {
    keys: Vec<Value>,
    #[serde(default)]
    spiffe_refresh_hint: Option<u64>,
    #[serde(default)]
    spiffe_sequence: Option<u64>,
}

/// Reads the roots of a trust domain, either from PEM certificates or from the JSON of a SPIFFE bundle endpoint, which
/// has keys for JWT-SVIDs too. Keys of unknown kinds are skipped.
///
/// # Errors
/// When the document has no roots or too many, or a root is not the certificate of an authority.
pub fn read_bundle_document(
    domain: TrustDomain,
    document: &[u8],
) -> Result<TrustBundle, BundleDocumentError> {
    let refuse = |problem: String| BundleDocumentError(problem);
    if document.len() > MAX_BUNDLE_DOCUMENT {
        return Err(refuse(format!(
            "the bundle has {} bytes, not at most {MAX_BUNDLE_DOCUMENT}",
            document.len()
        )));
    }
    let is_json = document.trim_ascii_start().starts_with(b"{");
    let (roots, jwt_keys) =
        if is_json { keys_of_json(document)? } else { (roots_of_pem(document)?, Vec::new()) };
    if !(1..=MAX_ROOTS).contains(&roots.len()) {
        return Err(refuse(format!("the bundle has {} roots, not 1 to {MAX_ROOTS}", roots.len())));
    }
    for root in &roots {
        let certificate = CertificateDer::from(root.as_slice());
        let parsed = chain_verification::parse(&certificate).map_err(|error| refuse(error.to_string()))?;
        if !parsed.is_ca() || root.len() > MAX_CERTIFICATE {
            return Err(refuse(format!("'{}' is no certificate of an authority", parsed.subject())));
        }
    }
    let bundle = TrustBundle { jwt_keys, ..TrustBundle::new(domain, roots) };
    Trust::new(bundle.clone()).map_err(|error| refuse(error.to_string()))?;
    Ok(bundle)
}

/// Metadata of a SPIFFE bundle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BundleHints {
    /// Time after which the bundle should be read again.
    pub refresh: Option<Duration>,
    /// Sequence number, which increases with each change.
    pub sequence: Option<u64>,
}

impl BundleHints {
    /// Reads the metadata of a document. PEM has none.
    pub fn of(document: &[u8]) -> Self {
        let Ok(bundle) = serde_json::from_slice::<SpiffeBundle>(document) else { return Self::default() };
        Self {
            refresh: bundle.spiffe_refresh_hint.map(Duration::from_secs),
            sequence: bundle.spiffe_sequence,
        }
    }
}

/// Returns the roots and the keys for JWT-SVIDs.
fn keys_of_json(document: &[u8]) -> Result<(Vec<Vec<u8>>, Vec<JwtKey>), BundleDocumentError> {
    let refuse = |problem: String| BundleDocumentError(problem);
    let bundle: SpiffeBundle = serde_json::from_slice(document)
        .map_err(|error| refuse(format!("the bundle is no JSON of that form: {error}")))?;
    let (mut roots, mut jwt_keys) = (Vec::new(), Vec::new());
    for key in bundle.keys {
        match key["use"].as_str() {
            Some(FOR_X509) => roots.push(root_of(&key).map_err(refuse)?),
            Some(FOR_JWT) => jwt_keys.extend(jwt_key_of(key)),
            _ => {}
        }
    }
    // Servers may change the order each time.
    jwt_keys.sort_by(|one, other| one.jwk.cmp(&other.jwk));
    jwt_keys.dedup();
    if jwt_keys.len() > MAX_JWT_KEYS {
        return Err(refuse(format!(
            "the bundle has {} keys for JWT-SVIDs, not at most {MAX_JWT_KEYS}",
            jwt_keys.len()
        )));
    }
    Ok((roots, jwt_keys))
}

fn root_of(key: &Value) -> Result<Vec<u8>, String> {
    let chain = key["x5c"].as_array().map(Vec::as_slice).unwrap_or_default();
    let [root] = chain else {
        return Err(format!("a key has {} certificates in x5c, not one", chain.len()));
    };
    let root = root.as_str().unwrap_or_default();
    BASE64_STANDARD.decode(root).map_err(|error| format!("x5c is no base64: {error}"))
}

/// Returns a key for JWT-SVIDs; `None` if no token can name it.
fn jwt_key_of(mut key: Value) -> Option<JwtKey> {
    key["kid"].as_str().filter(|id| !id.is_empty())?;
    key.as_object_mut()?.retain(|name, value| JWT_MEMBERS.contains(&name.as_str()) && value.is_string());
    let jwk = key.to_string().into_bytes();
    (jwk.len() <= MAX_JWT_KEY).then_some(JwtKey { jwk, expires_at: None })
}

/// Writes a trust bundle as a SPIFFE bundle endpoint serves it. `sequence` increases with each change.
///
/// # Errors
/// When the key of a root is of a kind that has no form as JSON Web Key.
pub fn write_bundle_document(bundle: &TrustBundle, sequence: u64) -> Result<Vec<u8>, IdentityError> {
    let mut keys = bundle.roots.iter().map(|root| jwk_of_root(root)).collect::<Result<Vec<_>, _>>()?;
    for key in &bundle.jwt_keys {
        let mut key: Map<String, Value> = serde_json::from_slice(&key.jwk).map_err(IdentityError::crypto)?;
        key.insert("use".to_owned(), FOR_JWT.into());
        keys.push(key.into());
    }
    let document = json!({
        "keys": keys,
        "spiffe_refresh_hint": REFRESH_HINT.as_secs(),
        "spiffe_sequence": sequence,
    });
    Ok(document.to_string().into_bytes())
}

fn jwk_of_root(root: &[u8]) -> Result<Value, IdentityError> {
    let certificate = CertificateDer::from(root);
    let parsed = chain_verification::parse(&certificate)?;
    let key = parsed.public_key().parsed().map_err(IdentityError::crypto)?;
    let encode = |bytes: &[u8]| BASE64_URL.encode(bytes);
    let number = |bytes: &[u8]| encode(bytes.strip_prefix(&[0]).unwrap_or(bytes));
    let mut jwk = match &key {
        PublicKey::EC(point) => match point.data() {
            // An uncompressed point: 4, x and y.
            [4, xy @ ..] if matches!(xy.len(), 64 | 96) => {
                let (x, y) = xy.split_at(xy.len() / 2);
                let curve = if xy.len() == 64 { "P-256" } else { "P-384" };
                json!({ "kty": "EC", "crv": curve, "x": encode(x), "y": encode(y) })
            }
            _ => return Err(no_jwk()),
        },
        PublicKey::RSA(key) => {
            json!({ "kty": "RSA", "n": number(key.modulus), "e": number(key.exponent) })
        }
        PublicKey::Unknown(key) if key.len() == 32 => {
            json!({ "kty": "OKP", "crv": "Ed25519", "x": encode(key) })
        }
        _ => return Err(no_jwk()),
    };
    jwk["use"] = FOR_X509.into();
    jwk["x5c"] = json!([BASE64_STANDARD.encode(root)]);
    Ok(jwk)
}

fn no_jwk() -> IdentityError {
    IdentityError::Crypto("a root has a key that a SPIFFE bundle cannot hold".into())
}

/// The sequence number of the newest document of an endpoint, and when it was last served.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewestDocument(Option<(u64, Instant)>);

impl NewestDocument {
    /// Accepts a document, unless it is older than the newest one (SPIFFE Trust Domain and Bundle, 4.1.1).
    ///
    /// # Errors
    /// Which older document is served.
    pub fn accept(&mut self, sequence: Option<u64>, now: Instant) -> Result<(), String> {
        let Some(sequence) = sequence else { return Ok(()) };
        match self.0 {
            Some((newest, served)) if sequence < newest && now < served + SUPERSEDED => {
                Err(format!("the endpoint serves the document {sequence}, and served {newest} before"))
            }
            _ => {
                self.0 = Some((sequence, now));
                Ok(())
            }
        }
    }
}

fn roots_of_pem(document: &[u8]) -> Result<Vec<Vec<u8>>, BundleDocumentError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(document).collect();
    let found = found.map_err(|error| BundleDocumentError(format!("the bundle is no PEM: {error}")))?;
    Ok(found.iter().map(|root| root.to_vec()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_trust_bundle_is_refused_until_superseded_period_ends() {
        let (mut newest, begin) = (NewestDocument::default(), Instant::now());
        newest.accept(None, begin).unwrap();
        newest.accept(Some(4), begin).unwrap();
        newest.accept(Some(5), begin).unwrap();
        let error = newest.accept(Some(4), begin + SUPERSEDED / 2).unwrap_err();
        assert!(error.contains("document 4") && error.contains("served 5"), "{error}");
        newest.accept(Some(5), begin + SUPERSEDED / 2).unwrap();
        newest.accept(Some(4), begin + SUPERSEDED).unwrap_err();
        // The endpoint now serves only number 4.
        newest.accept(Some(4), begin + 2 * SUPERSEDED).unwrap();
        newest.accept(None, begin + 2 * SUPERSEDED).unwrap();
    }
}
