use std::{io, path::PathBuf};

use fairmesh_model::Label;
use fairmesh_wire::transport::BindError;

/// Why a key server did not start.
#[derive(Debug, thiserror::Error)]
pub enum KeyServerError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}; check that it exists and that this user may read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file holds no key that can be used.
    #[error(
        "{} {problem}; it takes RSA of 2048 bits and more, ECDSA P-256 and P-384, or Ed25519, in PEM (PKCS #8) without a \
         password: openssl pkey -in OLD -out NEW",
        path.display()
    )]
    NoKey {
        /// The file.
        path: PathBuf,
        /// The defect.
        problem: &'static str,
    },
    /// Two keys have one name.
    #[error("two keys are named {0}; give each another name with --key NAME=FILE")]
    SameName(Label),
    /// No caller may use a key.
    #[error("no caller may use the key {0}; add --allow {0}=SPIFFE_ID, or remove the key")]
    NoCaller(Label),
    /// Callers are permitted to use a key that there is not.
    #[error("--allow names the key {0}, which there is not; add --key {0}=FILE")]
    NoSuchKey(Label),
    /// The system has no randomness.
    #[error("the system has no randomness, or encryption fails; check /dev/urandom")]
    Encryption,
    /// The process cannot be protected from being read.
    #[error(
        "cannot keep other processes and core dumps from reading the memory of this one: {0}; check seccomp filters"
    )]
    Undumpable(io::Error),
    /// The listener cannot be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The address of the admin pages cannot be listened on.
    #[error(transparent)]
    Admin(#[from] fairmesh_pages::BindError),
    /// Serving failed.
    #[error("cannot serve: {0}; see the log")]
    Serve(String),
}
