//! TLS listeners for clients that verify host names instead of mesh identities, such as browsers.

use std::{
    fmt, io,
    path::Path,
    sync::{Arc, PoisonError, RwLock},
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
}

impl fmt::Debug for HostCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostCertificate")
    }
}

impl HostCertificate {
    /// Creates the state for a process with this identity. It has no host certificate yet.
    pub fn new(workload: Arc<Workload>) -> Self {
        Self { workload, config: RwLock::default() }
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

    /// Replaces the certificate by one in files in PEM, which another authority issued: its chain, and its key.
    ///
    /// # Errors
    /// When a file cannot be read, or the key is another one.
    pub fn install_given(
        &self,
        own: &Credentials,
        (certificate, key): (&Path, &Path),
    ) -> Result<(), IdentityError> {
        let read = |path: &Path| {
            let missing = || io::Error::from(io::ErrorKind::NotFound);
            let found = pem_files::read(path)?;
            found.ok_or_else(|| IdentityError::Io { path: path.to_owned(), source: missing() })
        };
        let chain = pem_files::certificates_of(certificate, &read(certificate)?)?;
        let unusable = |error: String| IdentityError::Crypto(format!("{}: {error}", key.display()));
        let parsed = PrivateKeyDer::from_pem_slice(&read(key)?);
        let parsed = parsed.map_err(|error| unusable(error.to_string()))?;
        self.show(own, (parsed, chain))
    }

    fn show(
        &self,
        own: &Credentials,
        shown: (PrivateKeyDer<'static>, Vec<CertificateDer<'static>>),
    ) -> Result<(), IdentityError> {
        let config = tls_config::of_host(shown, own.trust().clone(), self.workload.clock())?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Some(config);
        Ok(())
    }

    fn config(&self) -> Option<Arc<ServerConfig>> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
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
