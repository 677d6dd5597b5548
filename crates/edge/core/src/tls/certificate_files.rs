//! The certificate and its key, in files.

use std::{
    fs::File,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use tokio_rustls::rustls::{
    self, InconsistentKeys,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

/// Maximum size of a file, in bytes.
const MAX_FILE: u64 = 1024 * 1024;

/// Paths of the certificate and its key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by intermediate certificates.
    pub certificate: PathBuf,
    /// The certificate's private key; `None` if only a key server has the key.
    pub key: Option<PathBuf>,
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}; check that it exists and that this user may read it", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file contains no certificate.
    #[error(
        "{} holds no certificate in PEM; it begins with -----BEGIN CERTIFICATE-----, the proxy's own first",
        .0.display()
    )]
    NoCertificate(PathBuf),
    /// The file contains no private key.
    #[error(
        "{} holds no private key in PEM that can be read without a password; write one with: openssl pkey -in OLD \
         -out NEW",
        .0.display()
    )]
    NoKey(PathBuf),
    /// The key belongs to another certificate.
    #[error(
        "the private key does not belong to the first certificate; give its key, and put the proxy's own certificate \
         before intermediate ones"
    )]
    Mismatch,
    /// rustls refuses the certificate or the key.
    #[error("the certificate or its key cannot be used: {0}; take RSA of 2048 bits, ECDSA P-256 or Ed25519")]
    Unusable(rustls::Error),
    /// A listener uses TLS, and no certificate is configured.
    #[error(
        "a listener has +tls and no certificate is given; add --tls-cert FILE --tls-key FILE, or \
         --tls-key-server NAME@IP:PORT in place of the key"
    )]
    Missing,
    /// A certificate is configured, and no listener uses TLS.
    #[error("--tls-cert is unused, since no listener has +tls; append it to one: --listen 0.0.0.0:443+tls")]
    Unused,
}

impl TlsError {
    pub(crate) fn of(error: rustls::Error) -> Self {
        match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => Self::Mismatch,
            other => Self::Unusable(other),
        }
    }
}

/// The certificate chain and its private key.
pub(crate) struct Identity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: Option<PrivateKeyDer<'static>>,
}

/// Hash of both files, to detect changes. A collision is useless to an attacker, who would already be able to write
/// the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(u64);

impl TlsFiles {
    /// Reads both files. Changes are detected by content rather than modification time, since files are often
    /// replaced by symbolic links.
    pub(crate) fn read(&self) -> (Result<Identity, TlsError>, Fingerprint) {
        let (certificate, key) = (contents(&self.certificate), self.key.as_deref().map(contents));
        let mut hasher = DefaultHasher::new();
        for read in std::iter::once(&certificate).chain(&key) {
            match read {
                Ok(bytes) => bytes.hash(&mut hasher),
                Err(error) => error.to_string().hash(&mut hasher),
            }
        }
        let identity = || {
            let certificate = certificate?;
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificate).collect();
            let chain = chain.ok().filter(|chain| !chain.is_empty());
            let chain = chain.ok_or_else(|| TlsError::NoCertificate(self.certificate.clone()))?;
            let key = self.key.as_ref().zip(key).map(|(path, key)| {
                PrivateKeyDer::from_pem_slice(&key?).map_err(|_| TlsError::NoKey(path.clone()))
            });
            Ok(Identity { chain, key: key.transpose()? })
        };
        (identity(), Fingerprint(hasher.finish()))
    }
}

fn contents(path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > MAX_FILE {
            true => Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MB")),
            false => Ok(bytes),
        }
    };
    read().map_err(|source| TlsError::Read { path: path.to_owned(), source })
}
