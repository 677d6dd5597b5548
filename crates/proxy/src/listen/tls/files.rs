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

/// The most that is read of a file.
const MAX_FILE: u64 = 1024 * 1024;

/// Where the certificate is, and its key; both in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and behind it those of the authorities between it and what programs trust.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Why programs cannot be shown a certificate.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}; see that it is there and that this user may read it", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The first file is none of certificates.
    #[error(
        "{} holds no certificate in PEM; it begins with -----BEGIN CERTIFICATE-----, the proxy's own first",
        .0.display()
    )]
    NoCertificate(PathBuf),
    /// The second file is none of a key.
    #[error(
        "{} holds no private key in PEM that can be read without a password; write one with: openssl pkey -in OLD -out NEW",
        .0.display()
    )]
    NoKey(PathBuf),
    /// They are two different ones.
    #[error(
        "the private key is not that of the first certificate; give the key that it was made for, and write the proxy's own \
         certificate before those of authorities"
    )]
    Mismatch,
    /// Something that TLS cannot be spoken with.
    #[error("the certificate or its key cannot be used: {0}; take RSA of 2048 bits, ECDSA P-256 or Ed25519")]
    Unusable(rustls::Error),
    /// Listeners with TLS, and no certificate.
    #[error("a listener with +tls has no certificate to show; add --tls-cert FILE --tls-key FILE")]
    Missing,
    /// A certificate, and nobody who is shown it.
    #[error(
        "--tls-cert is of no use, since no listener speaks TLS; add +tls behind one: --listen 0.0.0.0:443+tls"
    )]
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

/// What is shown, and what proves that it is one's own.
pub(crate) struct Identity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

/// What was found in both files, to tell whether they have changed. Nobody who could write them gains by two that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(u64);

impl TlsFiles {
    /// Reads both. By what is in them and not by when they were written, since they are often replaced by links.
    pub(crate) fn read(&self) -> (Result<Identity, TlsError>, Fingerprint) {
        let (certificate, key) = (contents(&self.certificate), contents(&self.key));
        let mut hasher = DefaultHasher::new();
        for read in [&certificate, &key] {
            match read {
                Ok(bytes) => bytes.hash(&mut hasher),
                Err(error) => error.to_string().hash(&mut hasher),
            }
        }
        let identity = || {
            let (certificate, key) = (certificate?, key?);
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificate).collect();
            let chain = chain.ok().filter(|chain| !chain.is_empty());
            let chain = chain.ok_or_else(|| TlsError::NoCertificate(self.certificate.clone()))?;
            let key = PrivateKeyDer::from_pem_slice(&key);
            let key = key.map_err(|_| TlsError::NoKey(self.key.clone()))?;
            Ok(Identity { chain, key })
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
