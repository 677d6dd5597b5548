use std::{error::Error, fmt, io, pin::Pin, sync::Arc};

use fairmesh_model::{Identity, ServiceName, SpiffeId};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::watch,
};

use super::FederatedCallers;

/// The peer that a connection is opened to, whose identity is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedPeer<'a> {
    /// An endpoint of this service.
    Service(&'a ServiceName),
    /// A server with this id, which may be of a federated trust domain.
    Id(&'a SpiffeId),
    /// A control plane, a replica, an agent or a lookaside.
    Mesh,
    /// A control plane or a replica.
    Upstream,
    /// A key server.
    KeyServer,
    /// A gateway of many tenants.
    Gateway,
}

/// What a process states of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatedCall<'a> {
    /// Its path.
    pub path: &'a str,
    /// The program for which it is made; empty: the process itself.
    pub on_behalf_of: &'a str,
    /// The message.
    pub message: &'a [u8],
}

/// A connection on which both sides have proved their identities.
pub trait SecureStream: AsyncRead + AsyncWrite + fmt::Debug + Send + Sync + Unpin {
    /// The socket, for its options and addresses.
    fn socket(&self) -> &TcpStream;

    /// The verified identity of the peer.
    fn peer(&self) -> Identity;

    /// The certificate by which the peer proved it, in DER; `None` if it sent none.
    fn peer_certificate(&self) -> Option<&[u8]>;
}

/// Begins the error of a handshake that failed, before the reason, for people.
pub const HANDSHAKE_FAILED: &str = "the TLS handshake failed";

/// Why a process without an identity verifies no statement.
pub(super) const NO_TRUST: &str =
    "this process has no identity yet, and so no roots to verify the statement of the call with; retry";

/// A handshake in progress.
pub type Handshake = Pin<Box<dyn Future<Output = io::Result<Box<dyn SecureStream>>> + Send>>;

/// The end of what an identity follows.
pub type Closed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The identity of a process, and the identities that it trusts. Asked for each connection, so that renewed
/// certificates and trust bundles are used at once.
///
/// TLS is behind a trait object, at the cost of an indirect call for each read and write of a record, so that this crate
/// knows no implementation of it.
pub trait TlsIdentity: fmt::Debug + Send + Sync {
    /// Whether there is a certificate. One may come later, from an agent that is not there yet.
    fn is_ready(&self) -> bool;

    /// The identity in the certificate.
    fn id(&self) -> Option<SpiffeId>;

    /// Whether connections with processes of the mesh over TCP are secured, as both sides. Asked for each of them, since a
    /// process may learn only from its agent that the mesh has a trust domain; from then on it never returns to plaintext.
    fn secures_mesh(&self) -> bool {
        self.is_ready()
    }

    /// Whether servers with it accept mutual TLS. Asked for each connection: a server may learn from its agent, after it has begun to
    /// serve, that the mesh has a trust domain.
    fn speaks_tls(&self) -> bool {
        true
    }

    /// Why there is no certificate yet, if that is known.
    fn problem(&self) -> Option<String> {
        None
    }

    /// Has connections with processes of the mesh secured from now on, before there is a certificate too: until then, none
    /// is opened or accepted over TCP.
    fn require(&self) {}

    /// A statement of a call to `peer`, signed by this process, which reaches the control plane through processes that are not
    /// trusted with its content. `None` if this process states none.
    fn sign_call(&self, _call: StatedCall<'_>, _peer: &Identity) -> Option<Vec<u8>> {
        None
    }

    /// Who signed a statement of a call.
    ///
    /// # Errors
    /// Why the statement does not prove it.
    fn verify_call(&self, _statement: &[u8], _call: StatedCall<'_>) -> Result<SpiffeId, String> {
        Err(NO_TRUST.into())
    }

    /// Changes when certificates of peers are revoked, after which reads and writes of their connections fail; `None` if
    /// none ever is.
    fn revocation_changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    /// Changes after [`speaks_tls`](Self::speaks_tls) has: connections that were accepted in plaintext have to be judged anew; `None` if
    /// it never does.
    fn tls_changes(&self) -> Option<watch::Receiver<()>> {
        None
    }

    /// Follows the revocations no more, and tells the agent so, which else waits for this process to reconnect; within about a
    /// second. For a process that is about to end.
    fn close(&self) -> Closed {
        Box::pin(std::future::ready(()))
    }

    /// The handshake of a client, with a peer that must prove to be the given one.
    fn connect(&self, peer: ExpectedPeer<'_>, stream: TcpStream) -> Handshake;

    /// The handshake of a server, which requires and verifies a client certificate.
    fn accept(&self, stream: TcpStream) -> Handshake;

    /// As [`accept`](Self::accept), and clients of federated trust domains are accepted too, as
    /// [`Federated`](Identity::Federated), if they are among `callers`.
    fn accept_federated(&self, stream: TcpStream, callers: &Arc<FederatedCallers>) -> Handshake;

    /// As [`accept`](Self::accept), and clients without a certificate are accepted as
    /// [`Anonymous`](Identity::Anonymous): they can only [join](super::Listener::with_joining).
    fn accept_joining(&self, stream: TcpStream) -> Handshake;
}

/// The connection needs an identity that this process does not have.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "the endpoint accepts only mutual TLS, and this program has no identity; 'fairmesh identity whoami' and the log of the \
     agent say why"
)]
pub struct NoIdentity;

/// The endpoint speaks plaintext, which the policy of its service does not permit in a mesh with a trust domain.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "plaintext endpoint in a strict mesh; register the service with mutual TLS, or write 'mtls: permissive' into its policy"
)]
pub struct PlaintextRefused;

/// The connection needs an identity that this process does not have, for this reason.
#[derive(Clone, Debug, thiserror::Error)]
#[error("this program has no certificate: {0}")]
pub(crate) struct LacksCertificate(pub(crate) String);

/// Whether an error is [`NoIdentity`], or caused by it.
pub(crate) fn is_no_identity(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(one) = next {
        // The error within one of `io` is no source of it.
        let within = one.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if one.is::<NoIdentity>() || within.is_some_and(|within| is_no_identity(within)) {
            return true;
        }
        next = one.source();
    }
    false
}
