//! Connections between processes: opened, accepted and secured here.
//!
//! TCP between machines, Unix sockets within one, where the kernel authenticates the peer's user. A [`Transport`] is
//! passed to all code that opens or accepts connections, both the mesh's own and those of calls and probes. By default
//! connections over TCP are plaintext, and their peers anonymous; with a [`TlsIdentity`] both sides prove theirs.
//!
//! TLS itself is the identity's: keys, certificates and the verification of names are not this crate's subject.

mod address;
mod bearer_token;
#[cfg(feature = "server")]
mod calls;
mod channel;
mod federated_callers;
mod identity;
#[cfg(feature = "server")]
mod joining;
#[cfg(feature = "server")]
mod listener;
#[cfg(feature = "server")]
mod peer_program;
mod plaintext_callers;
#[cfg(feature = "server")]
mod serve;
mod socket;
mod stream;
#[cfg(feature = "server")]
mod unix_authority;
#[cfg(feature = "server")]
mod user_places;
mod waits;

use std::{
    error::Error,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

pub use address::Address;
pub use bearer_token::BearerToken;
#[cfg(feature = "server")]
pub use calls::{CallGuard, GuardedCalls};
pub use channel::{CONNECT_TIMEOUT, Channel, connect_channel, connect_channel_lazy};
use fairmesh_listen::GuardedStream;
#[cfg(feature = "server")]
use fairmesh_model::ProgramFacts;
use fairmesh_model::{Identity, Label, SpiffeId};
pub use federated_callers::FederatedCallers;
pub(crate) use identity::LacksCertificate;
use identity::is_no_identity;
pub use identity::{
    Closed, ExpectedPeer, HANDSHAKE_FAILED, Handshake, NoIdentity, PlaintextRefused, SecureStream,
    StatedCall, TlsIdentity,
};
#[cfg(feature = "server")]
pub use joining::WithoutCertificate;
#[cfg(feature = "server")]
pub use listener::{Accepted, BindError, Listener};
pub use plaintext_callers::{PlaintextCaller, PlaintextCallers};
#[cfg(feature = "server")]
pub use serve::{Services, serve};
#[cfg(feature = "server")]
pub use socket::Peer;
pub use socket::Socket;
pub use stream::Stream;
use tokio::{
    net::{TcpSocket, TcpStream, UnixStream},
    sync::watch,
};
#[cfg(feature = "server")]
pub use user_places::{UserPlace, UserPlaces};
pub use waits::Waits;

/// How connections are opened and accepted, and peers authenticated. A process has one, from its configuration; cheap to
/// clone. The default is plaintext.
#[derive(Clone, Debug, Default)]
pub struct Transport {
    identity: Option<Arc<dyn TlsIdentity>>,
    plaintext_callers: Option<Arc<PlaintextCallers>>,
    federated_callers: Option<Arc<FederatedCallers>>,
    token: Option<BearerToken>,
    /// The processes of the mesh that it connects to.
    dialed: Dialed,
}

/// The processes of the mesh that a transport connects to.
#[derive(Clone, Copy, Debug, Default)]
enum Dialed {
    /// All that have records.
    #[default]
    Any,
    /// Control planes and replicas.
    Upstreams,
    KeyServers,
}

impl Transport {
    /// Mutual TLS by `identity`: with endpoints that speak it, as a server with callers, and over TCP with processes of
    /// the mesh once they are [secured](TlsIdentity::secures_mesh). Unix sockets stay as they are.
    pub fn tls(identity: Arc<dyn TlsIdentity>) -> Self {
        Self { identity: Some(identity), ..Self::default() }
    }

    /// The same for one server, which may be permitted to accept plaintext beside mutual TLS, and callers of federated trust
    /// domains. A clone is of the same server.
    #[must_use]
    pub fn of_server(self) -> Self {
        let plaintext_callers = self.identity.as_ref().map(|_| Arc::default());
        let federated_callers = self.identity.as_ref().map(|_| Arc::default());
        Self { plaintext_callers, federated_callers, ..self }
    }

    /// The same for a user with a token, which calls and watches of control planes carry beside the identity.
    #[must_use]
    pub fn with_token(self, token: BearerToken) -> Self {
        Self { token: Some(token), ..self }
    }

    /// The same for connections to a key server: no other process of the mesh is accepted in its place.
    #[must_use]
    pub fn to_key_server(self) -> Self {
        Self { dialed: Dialed::KeyServers, ..self }
    }

    /// The same for an agent or a replica, which follows control planes and replicas: an agent or a proxy is not accepted in their
    /// place, whose certificate an agent gives to programs of its machine.
    #[must_use]
    pub fn to_upstreams(self) -> Self {
        Self { dialed: Dialed::Upstreams, ..self }
    }

    /// The token of the user.
    pub(crate) fn token(&self) -> Option<&BearerToken> {
        self.token.as_ref()
    }

    /// The callers in plaintext of a [server](Self::of_server) that speaks mutual TLS.
    pub fn plaintext_callers(&self) -> Option<&Arc<PlaintextCallers>> {
        self.plaintext_callers.as_ref()
    }

    /// The callers of other trust domains of a [server](Self::of_server) that speaks mutual TLS.
    pub fn federated_callers(&self) -> Option<&Arc<FederatedCallers>> {
        self.federated_callers.as_ref()
    }

    /// Whether callers are accepted with mutual TLS only.
    pub fn is_tls(&self) -> bool {
        self.of_callers().is_some()
    }

    /// For connections of callers.
    fn of_callers(&self) -> Option<&Arc<dyn TlsIdentity>> {
        self.identity.as_ref().filter(|identity| identity.speaks_tls())
    }

    /// Whether connections with processes of the mesh over TCP are secured, and not in plaintext.
    pub fn secures_mesh(&self) -> bool {
        self.of_mesh().is_some()
    }

    /// The identity of this process, once it has a certificate.
    pub fn id(&self) -> Option<SpiffeId> {
        self.identity.as_ref().and_then(|identity| identity.id())
    }

    /// Why this process does not have the certificate that its connections need; `None` if it has it, or needs none.
    pub fn lacks_certificate(&self) -> Option<String> {
        let identity = self.of_callers().filter(|identity| !identity.is_ready())?;
        Some(identity.problem().unwrap_or_else(|| "it has not been issued yet".to_owned()))
    }

    /// Why connections with processes of the mesh over TCP fail whether they respond or not: they have to be secured, and there
    /// is no certificate.
    pub fn lacks_identity(&self) -> Option<String> {
        self.of_mesh().and_then(|_| self.lacks_certificate())
    }

    /// The error of a connection with a process of the mesh: what this process lacks for it, if that is why.
    pub(crate) fn reason(
        &self,
        error: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Box<dyn Error + Send + Sync> {
        let error = error.into();
        let problem = self.identity.as_ref().and_then(|identity| identity.problem());
        match problem.filter(|_| is_no_identity(&*error)) {
            Some(problem) => Box::new(LacksCertificate(problem)),
            None => error,
        }
    }

    /// Neither opens nor accepts connections with processes of the mesh in plaintext from now on: it is known that the mesh
    /// has a trust domain. Without effect on a transport that has no identity and cannot get one.
    pub fn require_identity(&self) {
        if let Some(identity) = &self.identity {
            identity.require();
        }
    }

    /// Changes when peers are revoked. Pools of connections that nothing reads have to look for those that ended.
    pub fn revocation_changes(&self) -> watch::Receiver<u64> {
        let changes = self.identity.as_ref().and_then(|identity| identity.revocation_changes());
        changes.unwrap_or_else(|| watch::channel(0).1)
    }

    /// Changes after [`is_tls`](Self::is_tls) has. Without a sender if it never does.
    pub fn tls_changes(&self) -> watch::Receiver<()> {
        let changes = self.identity.as_ref().and_then(|identity| identity.tls_changes());
        changes.unwrap_or_else(|| watch::channel(()).1)
    }

    /// As [`TlsIdentity::close`]; every transport with the same identity is concerned.
    pub async fn close(&self) {
        if let Some(identity) = &self.identity {
            identity.close().await;
        }
    }

    /// A statement of a call of this process to a peer, if it signs any.
    fn sign_call(&self, call: StatedCall<'_>, peer: &Identity) -> Option<Vec<u8>> {
        self.identity.as_ref()?.sign_call(call, peer)
    }

    /// Who signed a statement of a call, by the roots that this process trusts.
    ///
    /// # Errors
    /// Why the statement does not prove it, for its sender.
    pub fn verify_call(&self, statement: &[u8], call: StatedCall<'_>) -> Result<SpiffeId, String> {
        let identity = self.identity.as_ref().ok_or_else(|| identity::NO_TRUST.to_owned())?;
        identity.verify_call(statement, call)
    }

    /// For connections with processes of the mesh.
    fn of_mesh(&self) -> Option<&Arc<dyn TlsIdentity>> {
        self.identity.as_ref().filter(|identity| identity.secures_mesh())
    }

    /// Opens a connection to a process of the mesh. The caller applies a timeout.
    ///
    /// # Errors
    /// When there is no connection.
    pub async fn dial(&self, address: &Address) -> io::Result<Socket> {
        let stream = match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                configure(&stream)?;
                let peer = match self.dialed {
                    Dialed::Any => ExpectedPeer::Mesh,
                    Dialed::Upstreams => ExpectedPeer::Upstream,
                    Dialed::KeyServers => ExpectedPeer::KeyServer,
                };
                match self.of_mesh() {
                    Some(identity) => Stream::Tls(identity.connect(peer, stream).await?),
                    None => Stream::Tcp(stream),
                }
            }
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
        };
        Socket::new(GuardedStream::outgoing(stream))
    }

    /// Opens a connection to an endpoint, for calls or probes. The caller applies a timeout.
    ///
    /// # Errors
    /// When there is no connection: with [`NoIdentity`] as its source if the endpoint speaks mutual TLS and this
    /// process has no identity, with [`PlaintextRefused`] if it speaks plaintext, which is not permitted, and this process
    /// is of a mesh with a trust domain.
    pub async fn connect_endpoint(&self, endpoint: EndpointAddress<'_>) -> io::Result<Stream> {
        let EndpointAddress { address, peer, accepts_plaintext, from } = endpoint;
        let identity = self.identity.as_ref().filter(|identity| identity.is_ready());
        let secured = match (peer, identity) {
            (None, _) if !accepts_plaintext && self.secures_mesh() => {
                return Err(io::Error::other(PlaintextRefused));
            }
            (None, _) => None,
            (Some(peer), Some(identity)) => Some((peer, identity)),
            (Some(_), None) if accepts_plaintext => None,
            (Some(_), None) => return Err(io::Error::other(NoIdentity)),
        };
        let stream = match from.filter(|from| from.is_ipv4() == address.is_ipv4()) {
            None => TcpStream::connect(address).await?,
            Some(from) => {
                let socket = if from.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
                socket.bind(SocketAddr::new(from, 0))?;
                socket.connect(address).await?
            }
        };
        match secured {
            None => Ok(Stream::Tcp(stream)),
            Some((peer, identity)) => {
                configure(&stream)?;
                identity.connect(peer, stream).await.map(Stream::Tls)
            }
        }
    }

    /// Starts to listen for processes of the mesh.
    ///
    /// # Errors
    /// [`BindError`] with the address.
    #[cfg(feature = "server")]
    pub async fn bind(&self, address: &Address) -> Result<Listener, BindError> {
        Listener::bind(address, self.clone()).await
    }

    /// Performs the server's handshake on an accepted connection of a caller. For a task of its own, since the peer may
    /// be slow. A failed handshake closes the connection.
    ///
    /// # Errors
    /// When the handshake fails, or a limit of the listener closed the connection.
    pub async fn accept(&self, stream: GuardedStream<Stream>) -> io::Result<GuardedStream<Stream>> {
        let Some(identity) = self.of_callers() else { return Ok(stream) };
        let secure = |stream| match &self.federated_callers {
            Some(callers) => identity.accept_federated(stream, callers),
            None => identity.accept(stream),
        };
        let permitted = self.plaintext_callers.as_ref().filter(|callers| callers.are_permitted());
        let Some(callers) = permitted else {
            return establish(stream, secure).await;
        };
        let mut noted = None;
        let either = async |stream| match stream {
            Stream::Tcp(stream) if !plaintext_callers::begins_tls(&stream).await? => {
                noted = Some(callers.note(&stream)?);
                Ok(Stream::Tcp(stream))
            }
            Stream::Tcp(stream) => secure(stream).await.map(Stream::Tls),
            other => Ok(other),
        };
        let stream = stream.establish(either).await?;
        Ok(match noted {
            Some(noted) => stream.holding(Arc::new(noted)),
            None => stream,
        })
    }

    /// Performs the server's handshake on an accepted connection of a client of pages, where that begins with TLS. It needs no
    /// certificate.
    ///
    /// # Errors
    /// When the handshake fails, or a limit of the listener closed the connection.
    #[cfg(feature = "server")]
    pub async fn accept_pages(&self, stream: GuardedStream<TcpStream>) -> io::Result<GuardedStream<Stream>> {
        let Some(identity) = &self.identity else {
            return stream.establish(async |stream| Ok(Stream::Tcp(stream))).await;
        };
        let either = async |stream| match plaintext_callers::begins_tls(&stream).await? {
            true => identity.accept_joining(stream).await.map(Stream::Tls),
            false => Ok(Stream::Tcp(stream)),
        };
        stream.establish(either).await
    }

    /// Performs the server's handshake on an accepted connection of a process of the mesh.
    #[cfg(feature = "server")]
    async fn accept_mesh(
        &self,
        stream: GuardedStream<Stream>,
        with_joining: bool,
    ) -> io::Result<GuardedStream<Stream>> {
        let Some(identity) = self.of_mesh() else { return Ok(stream) };
        match with_joining {
            true => establish(stream, |stream| identity.accept_joining(stream)).await,
            false => establish(stream, |stream| identity.accept(stream)).await,
        }
    }
}

/// An endpoint, for a connection to it.
#[derive(Clone, Copy, Debug)]
pub struct EndpointAddress<'a> {
    /// Where it listens.
    pub address: SocketAddr,
    /// Whose identity it proves by mutual TLS; `None` for plaintext.
    pub peer: Option<ExpectedPeer<'a>>,
    /// Whether plaintext is permitted: to an endpoint that proves an identity, for a process that has none; to one that proves
    /// none, in a mesh with a trust domain too.
    pub accepts_plaintext: bool,
    /// The address to connect from, if that is given and of the same address family.
    pub from: Option<IpAddr>,
}

/// Secures a connection over TCP.
async fn establish(
    stream: GuardedStream<Stream>,
    accept: impl Fn(TcpStream) -> Handshake,
) -> io::Result<GuardedStream<Stream>> {
    let handshake = async |stream| match stream {
        Stream::Tcp(stream) => accept(stream).await.map(Stream::Tls),
        other => Ok(other),
    };
    stream.establish(handshake).await
}

/// Prepares a socket for calls, which are small and latency-sensitive: Nagle's algorithm would delay each by a round
/// trip.
fn configure(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)
}

/// The agent that registers endpoints for programs of its machine, among the extensions of a request whose caller was
/// checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerAgent(pub Label);

/// The agent of the caller's machine, if it called through one that proved its identity.
pub fn agent_of<T>(request: &tonic::Request<T>) -> Option<&Label> {
    request.extensions().get::<CallerAgent>().map(|CallerAgent(agent)| agent)
}

/// The metadata key by which a forwarding process names the original caller.
pub const ON_BEHALF_OF: &str = "fairmesh-on-behalf-of";

/// The metadata with the statement of the process that made a forwarded call.
pub const STATEMENT: &str = "fairmesh-statement-bin";

/// The metadata of a call that carries the statement of a process other than the one that sends it.
pub const RELAYED: &str = "fairmesh-relayed";

/// The original caller as stated by the forwarding process, for display: an agent knows the programs of its machine.
/// Empty if not stated. No decision may depend on it, since every client that reaches the port can claim it.
pub fn on_behalf_of<T>(request: &tonic::Request<T>) -> &str {
    request.metadata().get(ON_BEHALF_OF).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// States in a forwarded call that its original caller is `identity`.
pub fn set_on_behalf_of<T>(request: &mut tonic::Request<T>, identity: &Identity) {
    // Identities are displayed in ASCII.
    if let Ok(value) = identity.to_string().parse() {
        request.metadata_mut().insert(ON_BEHALF_OF, value);
    }
}

/// The caller's identity, as established by the transport of its connection.
pub fn identity_of<T>(request: &tonic::Request<T>) -> Identity {
    request.extensions().get::<Identity>().cloned().unwrap_or_default()
}

/// What the kernel says of the calling program; `None` unless the call came over a Unix socket of an
/// [attesting](Listener::attesting) listener.
#[cfg(feature = "server")]
pub fn program_of<T>(request: &tonic::Request<T>) -> Option<&ProgramFacts> {
    request.extensions().get::<Arc<ProgramFacts>>().map(|facts| &**facts)
}
