use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::{Refused, token, trust};

/// What people compare certificates by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// SHA-256 of the certificate, in hexadecimal.
    pub digest: String,
    /// In seconds since 1970.
    pub expires_at: u64,
}

impl CertificateInfo {
    /// Of a certificate in DER.
    ///
    /// # Errors
    /// When it is none.
    pub fn of(certificate: &[u8]) -> Result<Self, Refused> {
        let (_, end) = trust::validity(&CertificateDer::from(certificate))?;
        let digest = token::digest(certificate).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { digest, expires_at: end.as_secs() })
    }
}
