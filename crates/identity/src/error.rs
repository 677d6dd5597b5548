use std::{io, path::PathBuf};

use fairmesh_model::TrustDomain;

/// Why an identity cannot be made, kept or used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error("{}: {source}; check the disk and the permissions of this user", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{} {problem}; restore it from a copy, or remove it to begin anew", path.display())]
    InvalidFile {
        /// The file.
        path: PathBuf,
        /// The defect.
        problem: String,
    },
    /// The folder belongs to another trust domain.
    #[error("{} holds the authority of the trust domain {found}, not {expected}; give its name", path.display())]
    OtherDomain {
        /// The folder.
        path: PathBuf,
        /// The domain of its files.
        found: TrustDomain,
        /// The domain in the configuration.
        expected: TrustDomain,
    },
    /// Only the root can sign a new intermediate.
    #[error("the key of the root is not at {}; put it there for as long as this takes", path.display())]
    RootKeyAbsent {
        /// Where it is expected.
        path: PathBuf,
    },
    /// A request for a certificate is not well-formed or not signed by its key.
    #[error("the signing request is not valid: {0}; make it anew")]
    InvalidRequest(String),
    /// A certificate or a key is not usable.
    #[error("cannot use the certificate or key: {0}")]
    Crypto(String),
    /// Certificates that were issued do not verify.
    #[error("the certificate that was issued is refused: {0}")]
    Refused(#[from] crate::Refused),
    /// A token is not one.
    #[error("the join token is not valid; copy it as a whole, as `fairmesh identity token` prints it")]
    InvalidToken,
    /// As many roots as a bundle may have.
    #[error("the trust bundle has {0} roots, the most that it may have; the oldest ends by itself")]
    TooManyRoots(usize),
}

impl IdentityError {
    pub(crate) fn crypto(error: impl ToString) -> Self {
        Self::Crypto(error.to_string())
    }
}
