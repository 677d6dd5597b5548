//! How connections are made and accepted: the one place where security will be added.
//!
//! TCP between machines, Unix sockets within one, where the kernel vouches for the user at the other end. [`Transport`]
//! is the seam for TLS; until then [`Plaintext`] is its only form, and whoever comes over TCP is anonymous.

mod address;
mod channel;
mod listener;
mod serve;
mod socket;

use std::{future::Future, io};

pub use address::Address;
pub use channel::{CONNECT_TIMEOUT, connect_channel, connect_channel_lazy};
use fairmesh_model::Identity;
pub use listener::{BindError, Listener};
pub use serve::serve;
pub use socket::Socket;

/// How bytes get from one process to another, and what is known of the peer.
pub trait Transport: Clone + Send + Sync + 'static {
    /// Opens a connection. The caller bounds how long it may take.
    fn dial(&self, address: &Address) -> impl Future<Output = io::Result<Socket>> + Send;

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

    async fn bind(&self, address: &Address) -> Result<Listener, BindError> {
        Listener::bind(address).await
    }
}

/// Who makes a call, as the transport of its connection established it.
pub fn identity_of<T>(request: &tonic::Request<T>) -> Identity {
    request.extensions().get::<Identity>().cloned().unwrap_or_default()
}
