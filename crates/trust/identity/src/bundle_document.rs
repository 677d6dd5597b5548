//! Trust bundles of other trust domains, in the formats of other software.

use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use fairmesh_model::{MAX_CERTIFICATE, MAX_ROOTS, TrustBundle, TrustDomain};
use serde::Deserialize;
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject as _};

use crate::{Trust, chain_verification};

/// Maximum size of a document, in bytes: the maximum number of roots in base64, and the text around them.
pub const MAX_BUNDLE_DOCUMENT: usize = 2 * MAX_ROOTS * MAX_CERTIFICATE;

/// Why a document is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}; give the roots as PEM, or as a SPIFFE bundle (JSON with `keys`, each with `use: x509-svid` and `x5c`)"
)]
pub struct BundleDocumentError(String);

/// A SPIFFE trust bundle, which is a JWK set. Only its keys for X.509-SVIDs are read (SPIFFE Trust Domain and Bundle,
/// 4).
#[derive(Deserialize)]
struct SpiffeBundle {
    keys: Vec<BundleKey>,
    #[serde(default)]
    spiffe_refresh_hint: Option<u64>,
    #[serde(default)]
    spiffe_sequence: Option<u64>,
}

#[derive(Deserialize)]
struct BundleKey {
    #[serde(default, rename = "use")]
    purpose: String,
    #[serde(default)]
    x5c: Vec<String>,
}

/// Reads the roots of a trust domain, either from PEM certificates or from the JSON of a SPIFFE bundle endpoint.
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
    let roots = if is_json { roots_of_json(document)? } else { roots_of_pem(document)? };
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
    let bundle = TrustBundle::new(domain, roots);
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

fn roots_of_json(document: &[u8]) -> Result<Vec<Vec<u8>>, BundleDocumentError> {
    let refuse = |problem: String| BundleDocumentError(problem);
    let bundle: SpiffeBundle = serde_json::from_slice(document)
        .map_err(|error| refuse(format!("the bundle is no JSON of that form: {error}")))?;
    let mut roots = Vec::new();
    for key in bundle.keys.iter().filter(|key| key.purpose == "x509-svid") {
        let [root] = &key.x5c[..] else {
            return Err(refuse(format!("a key has {} certificates in x5c, not one", key.x5c.len())));
        };
        roots.push(
            BASE64_STANDARD.decode(root).map_err(|error| refuse(format!("x5c is no base64: {error}")))?,
        );
    }
    Ok(roots)
}

fn roots_of_pem(document: &[u8]) -> Result<Vec<Vec<u8>>, BundleDocumentError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(document).collect();
    let found = found.map_err(|error| BundleDocumentError(format!("the bundle is no PEM: {error}")))?;
    Ok(found.iter().map(|root| root.to_vec()).collect())
}
