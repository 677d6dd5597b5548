//! One-way TLS: the client verifies the server and has no certificate. It authenticates with a user's token instead.

use std::{fmt, io, path::Path, sync::Arc};

use fairmesh_model::{SpiffeId, TrustBundle};
use fairmesh_wire::transport::{ExpectedPeer, FederatedCallers, Handshake, NoIdentity, TlsIdentity};
use tokio::net::TcpStream;
use tokio_rustls::rustls::ClientConfig;

use crate::{
    Clock, IdentityError, SystemClock, Trust, certificate_authority, pem_files, tls_config,
    tls_stream::TlsStream,
};

/// TLS without a client certificate: verifies mesh processes with the mesh's roots. For commands on a machine without
/// an agent.
pub struct OneWayTls(Arc<ClientConfig>);

impl fmt::Debug for OneWayTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OneWayTls")
    }
}

impl OneWayTls {
    /// Reads the roots from a file, such as `ca/bundle.pem` of a control plane.
    ///
    /// # Errors
    /// When the file does not have the roots of exactly one trust domain.
    pub fn open(path: &Path) -> Result<Self, IdentityError> {
        let invalid =
            |problem: &str| IdentityError::InvalidFile { path: path.to_owned(), problem: problem.into() };
        let content = pem_files::read(path)?.ok_or_else(|| invalid("does not exist"))?;
        let roots = pem_files::certificates_of(path, &content)?;
        let domain = certificate_authority::domain_of(&roots[0])?;
        let domain = domain.ok_or_else(|| invalid("names no trust domain as the organization of a root"))?;
        let trust = Trust::new(TrustBundle::new(domain, roots.iter().map(|root| root.to_vec()).collect()))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        tls_config::one_way(trust, &clock).map(Self)
    }
}

impl TlsIdentity for OneWayTls {
    fn is_ready(&self) -> bool {
        false
    }

    fn secures_mesh(&self) -> bool {
        true
    }

    fn problem(&self) -> Option<String> {
        Some("this command has no certificate, but roots to verify others by".into())
    }

    fn id(&self) -> Option<SpiffeId> {
        None
    }

    fn connect(&self, peer: ExpectedPeer<'_>, stream: TcpStream) -> Handshake {
        let config = match peer {
            ExpectedPeer::Mesh | ExpectedPeer::Upstream => Ok(Arc::clone(&self.0)),
            // Such peers accept only callers with an identity.
            ExpectedPeer::Service(_)
            | ExpectedPeer::Id(_)
            | ExpectedPeer::KeyServer
            | ExpectedPeer::Gateway
            | ExpectedPeer::Host(_) => Err(io::Error::other(NoIdentity)),
        };
        Box::pin(async move { Ok(Box::new(TlsStream::connect(config?, stream).await?) as Box<_>) })
    }

    fn accept(&self, _: TcpStream) -> Handshake {
        Box::pin(async { Err(io::Error::other(NoIdentity)) })
    }

    fn accept_federated(&self, stream: TcpStream, _: &Arc<FederatedCallers>) -> Handshake {
        self.accept(stream)
    }

    fn accept_joining(&self, stream: TcpStream) -> Handshake {
        self.accept(stream)
    }
}
