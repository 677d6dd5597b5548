use std::{
    future::ready,
    io,
    sync::{Arc, OnceLock},
};

use fairmesh_model::{Identity, SpiffeId};
use fairmesh_wire::transport::{
    Address, Closed, ExpectedPeer, FederatedCallers, Handshake, NoIdentity, StatedCall, TlsIdentity,
};
use tokio::{
    net::TcpStream,
    sync::{Mutex, watch},
};

use super::{IdentityRequest, Membership, ProgramIdentity};

/// The identity of a server whose agent could not say at startup whether the mesh has a trust domain.
///
/// The server accepts plaintext until the agent says that the mesh has a trust domain, and only mutual TLS from then
/// on. The server must [ask](Self::decide) before it is registered, so that in the meantime no caller of a mesh with
/// a trust domain can know it. A decision is final.
#[derive(Debug)]
pub struct LateIdentity {
    request: IdentityRequest,
    /// The decision. An inner `None` means that the mesh has no trust domain.
    decided: OnceLock<Option<ProgramIdentity>>,
    /// Notified when `decided` is set.
    changes: watch::Sender<()>,
    asking: Mutex<()>,
}

impl LateIdentity {
    pub(super) fn new(request: IdentityRequest) -> Self {
        Self { request, decided: OnceLock::new(), changes: watch::Sender::new(()), asking: Mutex::default() }
    }

    /// Asks the agent, unless the decision is made.
    pub async fn decide(&self) -> Membership {
        let _alone = self.asking.lock().await;
        if self.decided.get().is_none() {
            match ProgramIdentity::for_server(&self.request).await {
                Ok(identity) => {
                    // Only this function sets the decision.
                    let _ = self.decided.set(identity);
                    self.changes.send_replace(());
                }
                Err(unknown) => return unknown,
            }
        }
        match self.identity() {
            Some(_) => Membership::Member,
            None => Membership::NoDomain,
        }
    }

    /// Returns the address of the agent.
    pub fn agent(&self) -> &Address {
        &self.request.agent
    }

    fn identity(&self) -> Option<&ProgramIdentity> {
        self.decided.get()?.as_ref()
    }

    /// Performs a handshake with the identity, if there is one.
    fn handshake(&self, by: impl FnOnce(&ProgramIdentity) -> Handshake) -> Handshake {
        match self.identity() {
            Some(identity) => by(identity),
            None => Box::pin(ready(Err(io::Error::other(NoIdentity)))),
        }
    }
}

impl TlsIdentity for LateIdentity {
    fn is_ready(&self) -> bool {
        self.identity().is_some_and(TlsIdentity::is_ready)
    }

    fn speaks_tls(&self) -> bool {
        self.identity().is_some()
    }

    fn secures_mesh(&self) -> bool {
        self.identity().is_some_and(TlsIdentity::secures_mesh)
    }

    fn id(&self) -> Option<SpiffeId> {
        self.identity()?.id()
    }

    fn problem(&self) -> Option<String> {
        self.identity()?.problem()
    }

    fn require(&self) {
        if let Some(identity) = self.identity() {
            identity.require();
        }
    }

    fn sign_call(&self, call: StatedCall<'_>, peer: &Identity) -> Option<Vec<u8>> {
        self.identity()?.sign_call(call, peer)
    }

    fn verify_call(&self, statement: &[u8], call: StatedCall<'_>) -> Result<SpiffeId, String> {
        let identity = self.identity().ok_or("this server has no identity yet; retry")?;
        identity.verify_call(statement, call)
    }

    fn revocation_changes(&self) -> Option<watch::Receiver<u64>> {
        self.identity()?.revocation_changes()
    }

    fn tls_changes(&self) -> Option<watch::Receiver<()>> {
        Some(self.changes.subscribe())
    }

    fn close(&self) -> Closed {
        self.identity().map_or_else(|| Box::pin(ready(())) as Closed, TlsIdentity::close)
    }

    fn connect(&self, peer: ExpectedPeer<'_>, stream: TcpStream) -> Handshake {
        self.handshake(|identity| identity.connect(peer, stream))
    }

    fn accept(&self, stream: TcpStream) -> Handshake {
        self.handshake(|identity| identity.accept(stream))
    }

    fn accept_federated(&self, stream: TcpStream, callers: &Arc<FederatedCallers>) -> Handshake {
        self.handshake(|identity| identity.accept_federated(stream, callers))
    }

    fn accept_joining(&self, stream: TcpStream) -> Handshake {
        self.handshake(|identity| identity.accept_joining(stream))
    }
}
