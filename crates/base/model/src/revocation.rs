//! Revocations: certificates that are not accepted although they have not expired.

use crate::{Invalid, SpiffePath};

/// Maximum number of revocations.
pub const MAX_REVOCATIONS: usize = 1000;
/// Maximum length of a serial number, in bytes (RFC 5280 §4.1.2.2).
pub const MAX_SERIAL: usize = 20;

/// Revocations in a trust domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations {
    /// At most [`MAX_REVOCATIONS`] revocations.
    pub entries: Vec<Revocation>,
}

/// The revocation of an identity's certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The identity whose certificates are revoked.
    pub path: SpiffePath,
    /// Which of the identity's certificates are revoked.
    pub certificates: RevokedCertificates,
    /// Time of the revocation, in seconds since 1970.
    pub at: u64,
}

/// Which certificates of an identity are revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RevokedCertificates {
    /// All present and future certificates, which revokes the identity itself.
    All,
    /// The certificate with this serial number, without leading zeros.
    Serial(Vec<u8>),
    /// Certificates that were issued before this time, in seconds since 1970.
    IssuedBefore(u64),
}

impl Revocations {
    /// Whether the identity itself is revoked.
    pub fn revokes_identity(&self, path: &SpiffePath) -> bool {
        self.entries.iter().any(|one| one.certificates == RevokedCertificates::All && one.path == *path)
    }

    /// Whether a certificate is revoked, given its serial number without leading zeros and its time of issue.
    pub fn revokes(&self, path: &SpiffePath, serial: &[u8], issued: u64) -> bool {
        let covers = |certificates: &RevokedCertificates| match certificates {
            RevokedCertificates::All => true,
            RevokedCertificates::Serial(revoked) => revoked == serial,
            RevokedCertificates::IssuedBefore(time) => issued < *time,
        };
        self.entries.iter().any(|one| covers(&one.certificates) && one.path == *path)
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// [`Invalid`] with the field.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.entries.len() > MAX_REVOCATIONS {
            let problem = format!("has {} revocations", self.entries.len());
            let hint =
                format!("keep at most {MAX_REVOCATIONS}; those of single certificates can go after a day");
            return Err(Invalid::new("entries", problem, hint));
        }
        for (i, one) in self.entries.iter().enumerate() {
            if let RevokedCertificates::Serial(serial) = &one.certificates
                && (!(1..=MAX_SERIAL).contains(&serial.len()) || serial[0] == 0)
            {
                let hint = format!("a serial number has 1 to {MAX_SERIAL} bytes, without leading zeros");
                return Err(Invalid::new(format!("entries[{i}].serial"), "is no serial number", hint));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revocation_covers_only_its_identity_and_named_certificates() {
        let of = |path: &str, certificates| Revocation { path: path.parse().unwrap(), certificates, at: 9 };
        let entries = vec![
            of("shop/cart", RevokedCertificates::All),
            of("shop/web", RevokedCertificates::Serial(vec![7])),
            of("shop/api", RevokedCertificates::IssuedBefore(100)),
        ];
        let all = Revocations { entries };
        for (path, serial, issued, revoked) in [
            ("shop/cart", 1, 200, true),
            ("bank/cart", 1, 200, false),
            ("shop/web", 7, 200, true),
            ("shop/web", 8, 1, false),
            ("shop/api", 7, 99, true),
            ("shop/api", 7, 100, false),
        ] {
            assert_eq!(all.revokes(&path.parse().unwrap(), &[serial], issued), revoked, "{path} {serial}");
        }
        assert!(all.revokes_identity(&"shop/cart".parse().unwrap()));
        assert!(!all.revokes_identity(&"shop/api".parse().unwrap()));
        assert!(all.validate().is_ok());
        let zero = of("shop/web", RevokedCertificates::Serial(vec![0, 7]));
        assert!(Revocations { entries: vec![zero.clone()] }.validate().is_err());
        let entry = Revocation { certificates: RevokedCertificates::All, ..zero };
        assert!(Revocations { entries: vec![entry; MAX_REVOCATIONS + 1] }.validate().is_err());
    }
}
