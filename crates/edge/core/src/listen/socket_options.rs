//! Addresses and options of client sockets.

use std::{net::SocketAddr, time::Duration};

use socket2::SockRef;
use tokio::net::TcpStream;

use crate::listen::{client_stream::TcpClientStream, proxy_protocol::Addresses};

/// Both addresses of a connection, as the operating system knows them.
pub(crate) fn connection_addresses(stream: &TcpStream, caller: SocketAddr) -> Addresses {
    Addresses { source: caller, destination: stream.local_addr().map_or(caller, canonical) }
}

/// The address of a client, with IPv4-mapped IPv6 addresses converted to IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Breaks a connection whose client accepts no data for `time_limit`. Pending data also occupies a server connection,
/// and call deadlines do not cover reads by the client.
pub fn set_user_timeout(stream: &TcpStream, time_limit: Duration) {
    // Fails only on a broken socket.
    let _ = SockRef::from(stream).set_tcp_user_timeout(Some(time_limit));
}

/// Closes a connection with a reset, which clients cannot mistake for an empty response.
pub fn reset(stream: impl TcpClientStream) {
    // Fails only on a broken socket.
    let _ = stream.socket().set_zero_linger();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_mapped_ipv6_addresses_become_ipv4() {
        for (accepted, expected) in [
            ("[::ffff:192.0.2.1]:80", "192.0.2.1:80"),
            ("192.0.2.1:80", "192.0.2.1:80"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
        ] {
            assert_eq!(canonical(accepted.parse().unwrap()), expected.parse().unwrap());
        }
    }
}
