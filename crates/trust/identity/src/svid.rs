//! Conversions of identities from and to the format of the SPIFFE Workload API.

use std::time::Duration;

use fairmesh_model::TrustBundle;
use fairmesh_wire::spiffe::X509svid;
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};

use crate::{Credentials, IdentityError, PrivateKey, Usage, chain_verification, renewal};

impl Credentials {
    /// Converts the credentials to an SVID with the private key, for a program on this machine that trusts `bundle`.
    pub fn to_svid(&self, bundle: &TrustBundle) -> X509svid {
        X509svid {
            spiffe_id: self.id().to_string(),
            x509_svid: self.chain.iter().map(|one| one.as_ref()).collect::<Vec<_>>().concat().into(),
            x509_svid_key: self.key.pkcs8().to_vec().into(),
            bundle: bundle.roots.concat().into(),
            hint: String::new(),
        }
    }

    /// Reads an SVID received from a Workload API.
    ///
    /// # Errors
    /// When peers would refuse the SVID now, or Fairmesh does not support its form.
    pub fn of_svid(svid: &X509svid, now: Duration) -> Result<Self, IdentityError> {
        let key = PrivateKey::from_pkcs8(&svid.x509_svid_key).map_err(|error| {
            IdentityError::Crypto(format!("the key of {} is not ECDSA P-256: {error}", svid.spiffe_id))
        })?;
        let chain: Vec<_> = certificates(&svid.x509_svid)?.into_iter().map(Into::into).collect();
        let first = chain.first().ok_or_else(|| IdentityError::Crypto("there is no certificate".into()))?;
        let domain = chain_verification::id_of(first, Usage::Client)?.domain;
        Self::new(key, chain, TrustBundle::new(domain, certificates(&svid.bundle)?), now)
    }

    /// Returns when the certificate should be replaced, as time since 1970: after 8 of its 24 hours.
    pub fn renewal_due(&self) -> Duration {
        renewal::due_at(self)
    }
}

/// Splits concatenated DER certificates.
fn certificates(mut der: &[u8]) -> Result<Vec<Vec<u8>>, IdentityError> {
    let mut found = Vec::new();
    while !der.is_empty() {
        let malformed = |_| IdentityError::Crypto("a certificate is not well-formed".into());
        let (rest, _) = X509Certificate::from_der(der).map_err(malformed)?;
        found.push(der[..der.len() - rest.len()].to_vec());
        der = rest;
    }
    Ok(found)
}
