//! Connections between processes: opened, accepted and, in future, secured here.
//!
//! TCP between machines, Unix sockets within one, where the kernel authenticates the peer's user. A [`Transport`] is
//! passed to all code that opens or accepts connections, both the mesh's own and those of calls and probes. So far it
//! has no options: connections are plaintext, and TCP peers are anonymous.

mod address;
mod calls;
mod channel;
mod listener;
mod serve;
mod socket;
mod stream;
mod waits;

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

pub use address::Address;
pub use calls::{CallGuard, GuardedCalls};
pub use channel::{CONNECT_TIMEOUT, connect_channel, connect_channel_lazy};
use fairmesh_listen::GuardedStream;
use fairmesh_model::Identity;
pub use listener::{BindError, Listener};
pub use serve::{Services, serve};
pub use socket::{Peer, Socket};
pub use stream::Stream;
use tokio::net::{TcpSocket, TcpStream, UnixStream};
pub use waits::Waits;

/// How connections are opened and accepted, and peers authenticated. A process has one, from its configuration; cheap to
/// clone. The default is plaintext.
#[derive(Clone, Debug, Default)]
pub struct Transport {}

impl Transport {
    /// Opens a connection to a process of the mesh. The caller applies a timeout.
    ///
    /// # Errors
    /// When there is no connection.
    pub async fn dial(&self, address: &Address) -> io::Result<Socket> {
        let stream = match address {
            Address::Tcp(address) => Stream::Tcp(TcpStream::connect(address).await?),
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
        };
        Socket::outgoing(stream)
    }

    /// Opens a connection to an endpoint, for calls or probes, from `from` if that is given and of the same address
    /// family. The caller applies a timeout.
    ///
    /// # Errors
    /// When there is no connection.
    pub async fn connect_endpoint(&self, endpoint: SocketAddr, from: Option<IpAddr>) -> io::Result<Stream> {
        let Some(from) = from.filter(|from| from.is_ipv4() == endpoint.is_ipv4()) else {
            return TcpStream::connect(endpoint).await.map(Stream::Tcp);
        };
        let socket = if from.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.bind(SocketAddr::new(from, 0))?;
        socket.connect(endpoint).await.map(Stream::Tcp)
    }

    /// Starts to listen for processes of the mesh.
    ///
    /// # Errors
    /// [`BindError`] with the address.
    pub async fn bind(&self, address: &Address) -> Result<Listener, BindError> {
        Listener::bind(address).await
    }

    /// The stream of a connection for calls that a server has accepted.
    ///
    /// # Errors
    /// When a limit of the listener closed the connection.
    pub async fn accept(&self, stream: GuardedStream<TcpStream>) -> io::Result<GuardedStream<Stream>> {
        stream.establish(async |stream| Ok(Stream::Tcp(stream))).await
    }
}

/// The metadata key by which a forwarding process names the original caller.
const ON_BEHALF_OF: &str = "fairmesh-on-behalf-of";

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
