//! TLS of listeners whose clients know the names of hosts and not those of the mesh, as browsers do.

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use fairmesh_model::SpiffeId;
use fairmesh_wire::transport::{ExpectedPeer, FederatedCallers, Handshake, TlsIdentity};
use tokio::net::TcpStream;
use tokio_rustls::rustls::{ServerConfig, pki_types::CertificateDer};

use crate::{Credentials, IdentityError, PrivateKey, Workload, tls_config};

/// Serves such clients in a process of the mesh: with a certificate for the names of its host beside that of its identity, to clients with a
/// certificate of the mesh or none. One certificate with both names was rejected: callers would choose between them.
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
    /// Of a process with this identity, without a certificate for its host yet.
    pub fn new(workload: Arc<Workload>) -> Self {
        Self { workload, config: RwLock::default() }
    }

    /// Replaces the certificate, for connections from now on; clients are verified as `own` does.
    ///
    /// # Errors
    /// When it is not that of the key.
    pub fn install(
        &self,
        own: &Credentials,
        key: &PrivateKey,
        chain: Vec<CertificateDer<'static>>,
    ) -> Result<(), IdentityError> {
        let config = tls_config::of_host((key, chain), own.trust().clone(), self.workload.clock())?;
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
