//! The identity of a process that joins a trust domain itself, without another process's help.

use std::{io, sync::Arc};

use fairmesh_model::{Identity, SpiffeId};
use fairmesh_wire::transport::{ExpectedPeer, FederatedCallers, Handshake, StatedCall, TlsIdentity};
use tokio::{net::TcpStream, sync::watch};

use crate::{JoinToken, Workload, tls_config, tls_stream::TlsStream};

/// The identity of an agent: its certificate, and the token with which it joins before it has a certificate.
#[derive(Debug)]
pub struct Member {
    workload: Arc<Workload>,
    token: Option<JoinToken>,
    is_secured: bool,
}

impl Member {
    /// Creates a member that stores its certificate in `workload`, and joins with `token` if given.
    pub fn new(workload: Arc<Workload>, token: Option<JoinToken>) -> Self {
        Self { workload, token, is_secured: false }
    }

    /// Marks a process that was a member earlier. It then never uses plaintext, even without a certificate.
    #[must_use]
    pub fn secured(self) -> Self {
        Self { is_secured: true, ..self }
    }
}

impl TlsIdentity for Member {
    fn is_ready(&self) -> bool {
        self.workload.is_ready()
    }

    fn secures_mesh(&self) -> bool {
        self.is_secured || self.token.is_some() || self.workload.is_ready()
    }

    fn id(&self) -> Option<SpiffeId> {
        self.workload.id()
    }

    fn sign_call(&self, call: StatedCall<'_>, _: &Identity) -> Option<Vec<u8>> {
        self.workload.state_call(call)
    }

    fn verify_call(&self, statement: &[u8], call: StatedCall<'_>) -> Result<SpiffeId, String> {
        self.workload.verify_call(statement, call)
    }

    fn revocation_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.workload.revocation_changes())
    }

    fn connect(&self, peer: ExpectedPeer<'_>, stream: TcpStream) -> Handshake {
        match (&self.token, peer) {
            (Some(token), ExpectedPeer::Mesh | ExpectedPeer::Upstream)
                if !self.workload.is_valid() || self.workload.is_revoked() =>
            {
                let config = tls_config::joining(token, self.workload.clock());
                Box::pin(async move {
                    let config = config.map_err(io::Error::other)?;
                    Ok(Box::new(TlsStream::connect(config, stream).await?) as Box<_>)
                })
            }
            _ => self.workload.connect(peer, stream),
        }
    }

    fn accept(&self, stream: TcpStream) -> Handshake {
        self.workload.accept(stream)
    }

    fn accept_federated(&self, stream: TcpStream, callers: &Arc<FederatedCallers>) -> Handshake {
        self.workload.accept_federated(stream, callers)
    }

    fn accept_joining(&self, stream: TcpStream) -> Handshake {
        self.workload.accept_joining(stream)
    }
}
