use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::{Refused, chain_verification, join_token};

/// The fields by which people compare certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// SHA-256 of the certificate, in hexadecimal.
    pub digest: String,
    /// Serial number, in hexadecimal without leading zeros.
    pub serial: String,
    /// When the certificate expires, in seconds since 1970.
    pub expires_at: u64,
}

impl CertificateInfo {
    /// Reads the fields of a certificate in DER.
    ///
    /// # Errors
    /// When the bytes are not a certificate.
    pub fn of(certificate: &[u8]) -> Result<Self, Refused> {
        let der = CertificateDer::from(certificate);
        let (_, end) = chain_verification::validity(&der)?;
        let hexadecimal = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let serial = hexadecimal(&chain_verification::serial(&der)?);
        Ok(Self { digest: hexadecimal(&join_token::digest(certificate)), serial, expires_at: end.as_secs() })
    }
}
