use std::fmt;

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, SigningKey as _};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::IdentityError;

/// A private key on the curve P-256: signing is fast, and all TLS software supports the curve.
pub struct PrivateKey(KeyPair);

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey")
    }
}

impl PrivateKey {
    /// Generates a new key.
    ///
    /// # Errors
    /// When the system provides no randomness.
    pub fn generate() -> Result<Self, IdentityError> {
        KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map(Self).map_err(IdentityError::crypto)
    }

    /// Reads a key from a PKCS #8 document.
    pub(crate) fn from_pkcs8(der: &[u8]) -> Result<Self, IdentityError> {
        KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(der), &PKCS_ECDSA_P256_SHA256)
            .map(Self)
            .map_err(IdentityError::crypto)
    }

    /// Creates a signing request for this key. The request contains no name, because the authority chooses the name.
    ///
    /// # Errors
    /// When signing fails.
    pub fn signing_request(&self) -> Result<Vec<u8>, IdentityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&self.0).map_err(IdentityError::crypto)?;
        Ok(request.der().to_vec())
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, IdentityError> {
        self.0.sign(message).map_err(IdentityError::crypto)
    }

    pub(crate) fn pkcs8(&self) -> &[u8] {
        self.0.serialized_der()
    }

    pub(crate) fn rcgen(&self) -> &KeyPair {
        &self.0
    }

    pub(crate) fn into_rcgen(self) -> KeyPair {
        self.0
    }

    pub(crate) fn rustls(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.pkcs8().to_vec()).into()
    }
}
