//! Opens, accepts and secures connections between processes.
//!
//! Connections use TCP between machines, and Unix sockets within a machine, where the kernel authenticates the peer's
//! user. A [`Transport`] is passed to all code that opens or accepts connections: those of the mesh's processes, and
//! those of calls and probes. By default TCP connections are plaintext and their peers are anonymous. With a
//! [`TlsIdentity`] both sides prove their identity.
//!
//! The identity implements TLS itself: keys, certificates and the verification of names are outside this crate.

mod address;
mod bearer_token;
#[cfg(feature = "server")]
mod call_guard;
mod channel;
mod connect_timeout;
mod federated_callers;
#[cfg(feature = "server")]
mod join_check;
#[cfg(feature = "server")]
mod listener;
#[cfg(feature = "server")]
mod peer_program;
mod plaintext_callers;
#[cfg(feature = "server")]
mod serve;
mod socket;
mod stream;
mod tls_identity;
#[cfg(feature = "server")]
mod unix_authority;
#[cfg(feature = "server")]
mod user_places;
mod wait_limits;

use std::{
    error::Error,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

pub use address::Address;
pub use bearer_token::BearerToken;
#[cfg(feature = "server")]
pub use call_guard::{CallGuard, GuardedCalls};
pub use channel::{CONNECT_TIMEOUT, Channel, connect_channel, connect_channel_lazy};
use fairmesh_listen::GuardedStream;
#[cfg(feature = "server")]
use fairmesh_model::ProgramFacts;
use fairmesh_model::{Identity, Label, SpiffeId};
pub use federated_callers::FederatedCallers;
#[cfg(feature = "server")]
pub use join_check::WithoutCertificate;
#[cfg(feature = "server")]
pub use listener::{Accepted, BindError, Listener};
pub use plaintext_callers::{PlaintextCaller, PlaintextCallers};
#[cfg(feature = "server")]
pub use serve::{Services, serve};
#[cfg(feature = "server")]
pub use socket::Peer;
pub use socket::Socket;
pub use stream::Stream;
use tls_identity::is_no_identity;
pub use tls_identity::{
    Closed, ExpectedPeer, HANDSHAKE_FAILED, Handshake, NoIdentity, PlaintextRefused, SPEAKS_PLAINTEXT,
    SecureStream, StatedCall, TlsIdentity,
};
pub(crate) use tls_identity::{LacksCertificate, PlaintextPeer};
use tokio::{
    net::{TcpSocket, TcpStream, UnixStream},
    sync::watch,
};
#[cfg(feature = "server")]
pub use user_places::{UserPlace, UserPlaces};
pub use wait_limits::Waits;

/// How connections are opened and accepted, and how peers are authenticated. A process has one transport, from its
/// configuration. Cheap to clone. The default is plaintext.
#[derive(Clone, Debug, Default)]
pub struct Transport {
    identity: Option<Arc<dyn TlsIdentity>>,
    plaintext_callers: Option<Arc<PlaintextCallers>>,
    federated_callers: Option<Arc<FederatedCallers>>,
    token: Option<BearerToken>,
    /// Kinds of mesh processes that this transport accepts as servers.
    dialed: Dialed,
}

/// Kinds of mesh processes that a transport accepts as servers.
#[derive(Clone, Copy, Debug, Default)]
enum Dialed {
    /// Any process that serves records.
    #[default]
    Any,
    /// Control planes and replicas.
    Upstreams,
    KeyServers,
}

impl Transport {
    /// Creates a transport that uses mutual TLS with `identity`:
    /// - to endpoints with mutual TLS;
    /// - as a server for callers;
    /// - over TCP with mesh processes, once these connections are [secured](TlsIdentity::secures_mesh).
    ///
    /// Unix sockets are not affected.
    pub fn tls(identity: Arc<dyn TlsIdentity>) -> Self {
        Self { identity: Some(identity), ..Self::default() }
    }

    /// Adapts the transport to one server, which may then also accept plaintext and callers from federated trust
    /// domains, if permitted. Clones belong to the same server.
    #[must_use]
    pub fn of_server(self) -> Self {
        let plaintext_callers = self.identity.as_ref().map(|_| Arc::default());
        let federated_callers = self.identity.as_ref().map(|_| Arc::default());
        Self { plaintext_callers, federated_callers, ..self }
    }

    /// Adds a user token. Calls and watches of control planes then carry the token besides the identity.
    #[must_use]
    pub fn with_token(self, token: BearerToken) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Restricts mesh connections to key servers: no other mesh process is accepted as the peer.
    #[must_use]
    pub fn to_key_server(self) -> Self {
        Self { dialed: Dialed::KeyServers, ..self }
    }

    /// Restricts mesh connections to control planes and replicas, as agents and replicas need. Agents and proxies are
    /// not accepted as peers, since an agent gives such certificates to programs on its machine.
    #[must_use]
    pub fn to_upstreams(self) -> Self {
        Self { dialed: Dialed::Upstreams, ..self }
    }

    /// The user token.
    pub(crate) fn token(&self) -> Option<&BearerToken> {
        self.token.as_ref()
    }

    /// The plaintext callers of a [server](Self::of_server) with mutual TLS.
    pub fn plaintext_callers(&self) -> Option<&Arc<PlaintextCallers>> {
        self.plaintext_callers.as_ref()
    }

    /// The federated callers accepted by a [server](Self::of_server) with mutual TLS.
    pub fn federated_callers(&self) -> Option<&Arc<FederatedCallers>> {
        self.federated_callers.as_ref()
    }

    /// Whether callers must use mutual TLS.
    pub fn is_tls(&self) -> bool {
        self.of_callers().is_some()
    }

    /// Identity for connections from callers; `None` if callers use plaintext.
    fn of_callers(&self) -> Option<&Arc<dyn TlsIdentity>> {
        self.identity.as_ref().filter(|identity| identity.speaks_tls())
    }

    /// Whether TCP connections with mesh processes are secured rather than plaintext.
    pub fn secures_mesh(&self) -> bool {
        self.of_mesh().is_some()
    }

    /// The SPIFFE id of this process, once it has a certificate.
    pub fn id(&self) -> Option<SpiffeId> {
        self.identity.as_ref().and_then(|identity| identity.id())
    }

    /// Reason why this process lacks the certificate that its connections need; `None` if it has the certificate or
    /// needs none.
    pub fn lacks_certificate(&self) -> Option<String> {
        let identity = self.of_callers().filter(|identity| !identity.is_ready())?;
        Some(identity.problem().unwrap_or_else(|| "it has not been issued yet".to_owned()))
    }

    /// Reason why no TCP connection with a mesh process can succeed: connections must be secured, and this process
    /// has no certificate. `None` if connections can succeed.
    pub fn lacks_identity(&self) -> Option<String> {
        self.of_mesh().and_then(|_| self.lacks_certificate())
    }

    /// Reason why the last attempt to get a certificate failed; `None` if this process has one, or needs none.
    pub fn identity_problem(&self) -> Option<String> {
        self.identity.as_ref().filter(|identity| !identity.is_ready())?.problem()
    }

    /// The error of a connection with a mesh process. If a missing certificate caused the error, says why it is
    /// missing.
    pub(crate) fn reason(
        &self,
        error: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Box<dyn Error + Send + Sync> {
        let error = error.into();
        if error.to_string().ends_with(SPEAKS_PLAINTEXT)
            && let Some(id) = self.id()
        {
            return Box::new(PlaintextPeer(id));
        }
        let problem = self.identity.as_ref().and_then(|identity| identity.problem());
        match problem.filter(|_| is_no_identity(&*error)) {
            Some(problem) => Box::new(LacksCertificate(problem)),
            None => error,
        }
    }

    /// Stops opening and accepting plaintext connections with mesh processes, because the mesh is known to have a
    /// trust domain. Has no effect on a transport that has no identity.
    pub fn require_identity(&self) {
        if let Some(identity) = &self.identity {
            identity.require();
        }
    }

    /// Receiver that changes when peers are revoked. Pools must then look for ended connections, since nothing reads
    /// idle connections.
    pub fn revocation_changes(&self) -> watch::Receiver<u64> {
        let changes = self.identity.as_ref().and_then(|identity| identity.revocation_changes());
        changes.unwrap_or_else(|| watch::channel(0).1)
    }

    /// Receiver that changes after [`is_tls`](Self::is_tls) has changed. Its sender is closed if that never changes.
    pub fn tls_changes(&self) -> watch::Receiver<()> {
        let changes = self.identity.as_ref().and_then(|identity| identity.tls_changes());
        changes.unwrap_or_else(|| watch::channel(()).1)
    }

    /// Like [`TlsIdentity::close`]. Affects every transport with the same identity.
    pub async fn close(&self) {
        if let Some(identity) = &self.identity {
            identity.close().await;
        }
    }

    /// Signs a statement about this process's call to a peer; `None` if this process signs no statements.
    fn sign_call(&self, call: StatedCall<'_>, peer: &Identity) -> Option<Vec<u8>> {
        self.identity.as_ref()?.sign_call(call, peer)
    }

    /// Verifies a statement about a call by the roots that this process trusts. Returns the signer.
    ///
    /// # Errors
    /// Why the statement is not proved, as a message for its sender.
    pub fn verify_call(&self, statement: &[u8], call: StatedCall<'_>) -> Result<SpiffeId, String> {
        let identity = self.identity.as_ref().ok_or_else(|| tls_identity::NO_TRUST.to_owned())?;
        identity.verify_call(statement, call)
    }

    /// Identity for connections with mesh processes; `None` if these connections are plaintext.
    fn of_mesh(&self) -> Option<&Arc<dyn TlsIdentity>> {
        self.identity.as_ref().filter(|identity| identity.secures_mesh())
    }

    /// Opens a connection to a mesh process. The caller applies a timeout.
    ///
    /// # Errors
    /// If the connection cannot be established.
    pub async fn dial(&self, address: &Address) -> io::Result<Socket> {
        self.dial_noting(address, &AtomicBool::new(false)).await
    }

    /// Like [`dial`](Self::dial), and notes when the connection is established and only TLS is missing.
    async fn dial_noting(&self, address: &Address, is_connected: &AtomicBool) -> io::Result<Socket> {
        let stream = match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                is_connected.store(true, Relaxed);
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
    /// If the connection cannot be established. The source is [`NoIdentity`] if the endpoint requires mutual TLS and
    /// this process has no identity. The source is [`PlaintextRefused`] if the endpoint uses plaintext without
    /// permission, and this process belongs to a mesh with a trust domain.
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

    /// Opens a connection to the pages of a control plane, which has to prove this host name or address. The caller
    /// applies a timeout.
    ///
    /// # Errors
    /// If the connection cannot be established, or this process has no identity to show.
    pub async fn connect_host(&self, host: &str, port: u16) -> io::Result<Stream> {
        let identity = self.identity.as_ref().filter(|identity| identity.is_ready());
        let identity = identity.ok_or_else(|| io::Error::other(NoIdentity))?;
        let stream = TcpStream::connect((host, port)).await?;
        configure(&stream)?;
        identity.connect(ExpectedPeer::Host(host), stream).await.map(Stream::Tls)
    }

    /// Starts to listen for mesh processes.
    ///
    /// # Errors
    /// [`BindError`] with the address.
    #[cfg(feature = "server")]
    pub async fn bind(&self, address: &Address) -> Result<Listener, BindError> {
        Listener::bind(address, self.clone()).await
    }

    /// Performs the server's handshake on a connection accepted from a caller. Must run in a separate task, since the
    /// peer may be slow. A failed handshake closes the connection.
    ///
    /// # Errors
    /// If the handshake fails, or a limit of the listener closed the connection.
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

    /// Performs the server's handshake on a connection accepted for HTTP pages, if the connection begins with TLS.
    /// The client needs no certificate.
    ///
    /// # Errors
    /// If the handshake fails, or a limit of the listener closed the connection.
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

    /// Performs the server's handshake on a connection accepted from a mesh process.
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

/// Where and how to connect to an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointAddress<'a> {
    /// The address on which the endpoint listens.
    pub address: SocketAddr,
    /// The identity that the endpoint must prove by mutual TLS; `None` for plaintext.
    pub peer: Option<ExpectedPeer<'a>>,
    /// Whether plaintext is permitted. If so, a process without an identity may connect to an endpoint that requires
    /// one, and a process in a mesh with a trust domain may connect to a plaintext endpoint.
    pub accepts_plaintext: bool,
    /// Local address to connect from, used if it has the endpoint's address family.
    pub from: Option<IpAddr>,
}

/// Secures a TCP connection.
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

/// Configures a socket for calls, which are small and latency-sensitive. Nagle's algorithm would delay each call by a
/// round trip.
fn configure(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)
}

/// The caller's agent, which registers endpoints for programs on its machine. Stored in the extensions of a request
/// once the caller is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerAgent(pub Label);

/// The agent of the caller's machine, if the caller called through an agent that proved its identity.
pub fn agent_of<T>(request: &tonic::Request<T>) -> Option<&Label> {
    request.extensions().get::<CallerAgent>().map(|CallerAgent(agent)| agent)
}

/// Metadata key with which a forwarding process names the original caller.
pub const ON_BEHALF_OF: &str = "fairmesh-on-behalf-of";

/// Metadata key of the statement signed by the original process of a forwarded call.
pub const STATEMENT: &str = "fairmesh-statement-bin";

/// Metadata key that marks a call whose statement was signed by another process than the sender.
pub const RELAYED: &str = "fairmesh-relayed";

/// The original caller as named by the forwarding process, for display: an agent knows the programs on its machine.
/// Empty if not named. No decision may depend on it, since every client that reaches the port can set it.
pub fn on_behalf_of<T>(request: &tonic::Request<T>) -> &str {
    request.metadata().get(ON_BEHALF_OF).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Names `identity` as the original caller of a forwarded call.
pub fn set_on_behalf_of<T>(request: &mut tonic::Request<T>, identity: &Identity) {
    // Identities are displayed in ASCII.
    if let Ok(value) = identity.to_string().parse() {
        request.metadata_mut().insert(ON_BEHALF_OF, value);
    }
}

/// The caller's identity, as authenticated by the transport.
pub fn identity_of<T>(request: &tonic::Request<T>) -> Identity {
    request.extensions().get::<Identity>().cloned().unwrap_or_default()
}

/// Facts about the calling program from the kernel. `None` unless the call came over a Unix socket of an
/// [attesting](Listener::attesting) listener.
#[cfg(feature = "server")]
pub fn program_of<T>(request: &tonic::Request<T>) -> Option<&ProgramFacts> {
    request.extensions().get::<Arc<ProgramFacts>>().map(|facts| &**facts)
}
