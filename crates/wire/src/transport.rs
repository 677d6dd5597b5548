//! How connections are made and accepted: the one place where security will be added.
//!
//! TCP between machines, Unix sockets within one, where the kernel vouches for the user at the other end. [`Transport`]
//! is the seam for TLS, for the mesh's own connections and for those that calls and probes go over; until then [`Plaintext`] is its only form, and whoever comes over TCP is anonymous.

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

/// How bytes get from one process to another, and what is known of the peer.
pub trait Transport: Clone + Send + Sync + 'static {
    /// Opens a connection. The caller bounds how long it may take.
    fn dial(&self, address: &Address) -> impl Future<Output = io::Result<Socket>> + Send;

    /// Opens a connection to an endpoint, for calls or to probe it, from one of this machine's addresses where that is given
    /// and of the same family. Apart from [`dial`](Self::dial), since calls write and read the socket without a layer.
    fn reach(
        &self,
        endpoint: SocketAddr,
        from: Option<IpAddr>,
    ) -> impl Future<Output = io::Result<TcpStream>> + Send;

    /// Starts to listen.
    fn bind(&self, address: &Address) -> impl Future<Output = Result<Listener, BindError>> + Send;
}

/// Neither encryption nor proof of identity.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plaintext;

impl Transport for Plaintext {
    async fn dial(&self, address: &Address) -> io::Result<Socket> {
        Socket::dial(address).await
    }

    async fn reach(&self, endpoint: SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
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

/// The metadata key with which one who passes a call on says for whom.
const ON_BEHALF_OF: &str = "fairmesh-on-behalf-of";

/// Whom the caller says that it passes the call on for, for people: an agent knows the programs of its machine. Empty
/// where it did not say. Nothing may be decided by it, since whoever reaches the port can claim it.
pub fn on_behalf_of<T>(request: &tonic::Request<T>) -> &str {
    request.metadata().get(ON_BEHALF_OF).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Says in a call that it is passed on for `identity`.
pub fn pass_on_for<T>(request: &mut tonic::Request<T>, identity: &Identity) {
    // Identities are written in ASCII.
    if let Ok(value) = identity.to_string().parse() {
        request.metadata_mut().insert(ON_BEHALF_OF, value);
    }
}

/// Who makes a call, as the transport of its connection established it.
pub fn identity_of<T>(request: &tonic::Request<T>) -> Identity {
    request.extensions().get::<Identity>().cloned().unwrap_or_default()
}
