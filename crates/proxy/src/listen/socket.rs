//! Socket options of connections of clients.

use std::{net::SocketAddr, time::Duration};

use socket2::SockRef;
use tokio::net::TcpStream;

use crate::listen::{client_stream::ClientStream, proxy_protocol::Addresses};

/// Between whom a connection is, as the system says.
pub(crate) fn connection_addresses(stream: &TcpStream, caller: SocketAddr) -> Addresses {
    Addresses { source: caller, destination: stream.local_addr().unwrap_or(caller) }
}

/// Breaks a connection whose program takes nothing of what is sent to it for this long: what waits for it holds a server's
/// connection as well, and nothing else ends that, as deadlines are for servers.
pub(crate) fn set_user_timeout(stream: &TcpStream, time_limit: Duration) {
    // Fails only on a socket that is already broken.
    let _ = SockRef::from(stream).set_tcp_user_timeout(Some(time_limit));
}

/// Ends a connection in a way that its program cannot take for an empty answer.
pub(crate) fn reset(stream: impl ClientStream) {
    // Fails only on a socket that is already broken.
    let _ = stream.socket().set_zero_linger();
}
