use std::{io, path::PathBuf, time::Duration};

use fairmesh_model::TrustDomain;
use time::OffsetDateTime;

/// Reason why an identity cannot be created, saved or used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error("{}: {source}; check the disk and the permissions of this user", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// A file has unexpected content.
    #[error("{} {problem}; restore it from a copy, or remove it to begin anew", path.display())]
    InvalidFile {
        /// Path of the file.
        path: PathBuf,
        /// The defect.
        problem: String,
    },
    /// The folder belongs to another trust domain.
    #[error("{} holds the authority of the trust domain {found}, not {expected}; give its name", path.display())]
    OtherDomain {
        /// Path of the folder.
        path: PathBuf,
        /// Trust domain in the folder's files.
        found: TrustDomain,
        /// Trust domain in the configuration.
        expected: TrustDomain,
    },
    /// The root's key is missing, and only the root can sign a new intermediate.
    #[error("the key of the root is not at {}; put it there for as long as this takes", path.display())]
    RootKeyAbsent {
        /// Path at which the key is expected.
        path: PathBuf,
    },
    /// A signing request is malformed or not signed by its key.
    #[error("the signing request is not valid: {0}; make it anew")]
    InvalidRequest(String),
    /// A certificate or a key cannot be used.
    #[error("cannot use the certificate or key: {0}")]
    Crypto(String),
    /// Verification of an issued certificate failed.
    #[error("the certificate that was issued is refused: {0}")]
    Refused(#[from] crate::Refused),
    /// A join token is malformed.
    #[error("the join token is not valid; copy it as a whole, as `fairmesh identity token` prints it")]
    InvalidToken,
    /// Some running programs may not trust the signing root yet.
    #[error(
        "the root {root} is so new that not all programs trust it: they do once they have renewed their certificates, by {}; \
         rotate then, or with --force, where programs that have not renewed fail until they have, or are started again",
        rfc3339(*until)
    )]
    YoungRoot {
        /// SHA-256 of the root, in hexadecimal.
        root: String,
        /// Time since 1970 at which all programs have renewed their certificates.
        until: Duration,
    },
    /// A root cannot be retired because it signs certificates.
    #[error("the root {root} {why}")]
    RootInUse {
        /// SHA-256 of the root, in hexadecimal.
        root: String,
        /// How the root is used, and the step that ends this use.
        why: &'static str,
    },
    /// None of the roots issued the intermediate.
    #[error(
        "no root in bundle.pem beside it leads to {}: it was retired, or is not there; put an intermediate of a present root there, or \
         the key of the newest root into root.key",
        path.display()
    )]
    OrphanIssuer {
        /// Path of the intermediate's file.
        path: PathBuf,
    },
    /// The root's key does not belong to any root of the domain.
    #[error(
        "the root {root} in {} is not in bundle.pem beside it: it was retired, or the files are of different times; put there those of \
         the control plane that began the newest root",
        path.display()
    )]
    OtherRootKey {
        /// Path of the file with the root's key.
        path: PathBuf,
        /// SHA-256 of the root, in hexadecimal.
        root: String,
    },
    /// Certificates under a root may not have expired yet.
    #[error(
        "certificates beneath the root {root} may be in use: the last one that can have been issued expires by {}",
        rfc3339(*until)
    )]
    RecentRoot {
        /// SHA-256 of the root, in hexadecimal.
        root: String,
        /// Time since 1970 at which all of these certificates have expired.
        until: Duration,
    },
    /// The bundle already has the maximum number of roots.
    #[error(
        "the trust bundle has {0} roots, the most that it may have; retire one that is not needed any more with `fairmesh identity \
         retire`"
    )]
    TooManyRoots(usize),
}

impl IdentityError {
    pub(crate) fn crypto(error: impl ToString) -> Self {
        Self::Crypto(error.to_string())
    }
}

/// Formats a time since 1970 for messages and logs (RFC 3339).
pub(crate) fn rfc3339(since_1970: Duration) -> String {
    let seconds = i64::try_from(since_1970.as_secs()).ok();
    let Some(time) = seconds.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok()) else {
        return "an unknown time".into();
    };
    let (hour, minute, second) = time.to_hms();
    format!("{}T{hour:02}:{minute:02}:{second:02}Z", time.date())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339() {
        assert_eq!(rfc3339(Duration::from_millis(1_795_996_799_999)), "2026-11-29T23:59:59Z");
        assert_eq!(rfc3339(Duration::MAX), "an unknown time");
    }
}
