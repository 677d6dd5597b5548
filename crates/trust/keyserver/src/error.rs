use std::{io, path::PathBuf};

use fairmesh_model::Label;
use fairmesh_wire::transport::BindError;

/// Why a key server did not start.
#[derive(Debug, thiserror::Error)]
pub enum KeyServerError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}; check that it exists and that this user may read it", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// A file does not have a supported private key.
    #[error(
        "{} {problem}; it takes RSA of 2048 bits and more, ECDSA P-256 and P-384, or Ed25519, in PEM (PKCS #8) without a \
         password: openssl pkey -in OLD -out NEW",
        path.display()
    )]
    NoKey {
        /// Path of the file.
        path: PathBuf,
        /// The defect.
        problem: &'static str,
    },
    /// Two keys have the same name.
    #[error("two keys are named {0}; give each another name with --key NAME=FILE")]
    SameName(Label),
    /// No caller may use a key.
    #[error("no caller may use the key {0}; add --allow {0}=SPIFFE_ID, or remove the key")]
    NoCaller(Label),
    /// A caller is permitted to use a key that does not exist.
    #[error("--allow names the key {0}, which there is not; add --key {0}=FILE")]
    NoSuchKey(Label),
    /// The system provides no randomness.
    #[error("the system has no randomness, or encryption fails; check /dev/urandom")]
    Encryption,
    /// The process's memory cannot be protected against other processes.
    #[error(
        "cannot keep other processes and core dumps from reading the memory of this one: {0}; check seccomp filters"
    )]
    Undumpable(io::Error),
    /// The listener cannot be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The process cannot listen on the address of the admin pages.
    #[error(transparent)]
    Admin(#[from] fairmesh_pages::BindError),
    /// Serving failed.
    #[error("cannot serve: {0}; see the log")]
    Serve(String),
}
