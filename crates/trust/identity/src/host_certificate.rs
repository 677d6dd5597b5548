//! TLS listeners for clients that verify host names instead of mesh identities, such as browsers.

use std::{
    fmt, io,
    path::Path,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use fairmesh_model::SpiffeId;
use fairmesh_wire::transport::{ExpectedPeer, FederatedCallers, Handshake, TlsIdentity};
use tokio::net::TcpStream;
use tokio_rustls::rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::{Credentials, IdentityError, PrivateKey, Workload, pem_files, tls_config};

/// Serves web clients from a process of the mesh, with a certificate for its host names. Clients may send a
/// certificate of the mesh, or none. One certificate with both host names and identity was rejected: callers would
/// have to choose between the names.
pub struct HostCertificate {
    workload: Arc<Workload>,
    config: RwLock<Option<Arc<ServerConfig>>>,
    /// The last usable certificate from files.
    given: Mutex<Option<KeyAndChain>>,
}

type KeyAndChain = (PrivateKeyDer<'static>, Vec<CertificateDer<'static>>);

impl fmt::Debug for HostCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostCertificate")
    }
}

impl HostCertificate {
    /// Creates the state for a process with this identity. It has no host certificate yet.
    pub fn new(workload: Arc<Workload>) -> Self {
        Self { workload, config: RwLock::default(), given: Mutex::default() }
    }

    /// Replaces the certificate for new connections. Clients are verified with the roots of `own`.
    ///
    /// # Errors
    /// When the certificate was issued for another key.
    pub fn install(
        &self,
        own: &Credentials,
        key: &PrivateKey,
        chain: Vec<CertificateDer<'static>>,
    ) -> Result<(), IdentityError> {
        self.show(own, (key.rustls(), chain))
    }

    /// Replaces the certificate by one in files in PEM, which another authority issued: its chain, and its key. Files that
    /// cannot be used, such as those that are being replaced, leave the certificate that was last read from them.
    ///
    /// # Errors
    /// When a file cannot be read, or the key is another one, and none was read before.
    pub fn install_given(&self, own: &Credentials, files: (&Path, &Path)) -> Result<(), IdentityError> {
        let show = |(key, chain): &KeyAndChain| self.show(own, (key.clone_key(), chain.clone()));
        let read = read_given(files).and_then(|given| show(&given).map(|()| given));
        // Poisoning is ignored, since every change is a single assignment.
        let mut last = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let error = match read {
            Ok(given) => {
                *last = Some(given);
                return Ok(());
            }
            Err(error) => error,
        };
        let Some(before) = &*last else { return Err(error) };
        tracing::error!(%error, "the given certificate of the pages cannot be used; the one before stays in use");
        // Clients are verified with the roots of now, whichever certificate they see.
        show(before)
    }

    fn show(&self, own: &Credentials, shown: KeyAndChain) -> Result<(), IdentityError> {
        let config = tls_config::of_host(shown, own.trust().clone(), self.workload.clock())?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Some(config);
        Ok(())
    }

    fn config(&self) -> Option<Arc<ServerConfig>> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn read_given((certificate, key): (&Path, &Path)) -> Result<KeyAndChain, IdentityError> {
    let read = |path: &Path| {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let found = pem_files::read(path)?;
        found.ok_or_else(|| IdentityError::Io { path: path.to_owned(), source: missing() })
    };
    let chain = pem_files::certificates_of(certificate, &read(certificate)?)?;
    let unusable = |error: String| IdentityError::Crypto(format!("{}: {error}", key.display()));
    let parsed = PrivateKeyDer::from_pem_slice(&read(key)?);
    Ok((parsed.map_err(|error| unusable(error.to_string()))?, chain))
}

impl TlsIdentity for HostCertificate {
    fn is_ready(&self) -> bool {
        self.config().is_some()
    }

    fn id(&self) -> Option<SpiffeId> {
        None
    }

    fn connect(&self, peer: ExpectedPeer<'_>, stream: TcpStream) -> Handshake {
        self.workload.connect(peer, stream)
    }

    fn accept(&self, stream: TcpStream) -> Handshake {
        self.workload.accept_over(self.config(), stream, None)
    }

    fn accept_federated(&self, stream: TcpStream, _: &Arc<FederatedCallers>) -> Handshake {
        self.accept(stream)
    }

    fn accept_joining(&self, stream: TcpStream) -> Handshake {
        self.accept(stream)
    }
}
