//! Connections between processes: opened, accepted and, in future, secured here.
//!
//! TCP between machines, Unix sockets within one, where the kernel authenticates the peer's user. [`Transport`] is the
//! interface for TLS, both for the mesh's own connections and for those of calls and probes; so far [`Plaintext`] is
//! its only implementation, and TCP peers are anonymous.

mod address;
mod calls;
mod channel;
mod listener;
mod serve;
mod socket;
mod waits;

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
};

pub use address::Address;
pub use calls::{CallGuard, GuardedCalls};
pub use channel::{CONNECT_TIMEOUT, connect_channel, connect_channel_lazy};
use fairmesh_model::Identity;
pub use listener::{BindError, Listener};
pub use serve::{Services, serve};
pub use socket::{Peer, Socket};
use tokio::net::{TcpSocket, TcpStream};
pub use waits::Waits;

/// How connections are opened and accepted, and peers authenticated.
pub trait Transport: Clone + Send + Sync + 'static {
    /// Opens a connection. The caller applies a timeout.
    fn dial(&self, address: &Address) -> impl Future<Output = io::Result<Socket>> + Send;

    /// Opens a connection to an endpoint, for calls or probes, from `from` if that is given and of the same address
    /// family. Separate from [`dial`](Self::dial), since calls use the socket without a layer.
    fn connect_endpoint(
        &self,
        endpoint: SocketAddr,
        from: Option<IpAddr>,
    ) -> impl Future<Output = io::Result<TcpStream>> + Send;

    /// Starts to listen.
    fn bind(&self, address: &Address) -> impl Future<Output = Result<Listener, BindError>> + Send;
}

/// Neither encryption nor authentication.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plaintext;

impl Transport for Plaintext {
    async fn dial(&self, address: &Address) -> io::Result<Socket> {
        Socket::dial(address).await
    }

    async fn connect_endpoint(&self, endpoint: SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
        let Some(from) = from.filter(|from| from.is_ipv4() == endpoint.is_ipv4()) else {
            return TcpStream::connect(endpoint).await;
        };
        let socket = if from.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.bind(SocketAddr::new(from, 0))?;
        socket.connect(endpoint).await
    }

    async fn bind(&self, address: &Address) -> Result<Listener, BindError> {
        Listener::bind(address).await
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
