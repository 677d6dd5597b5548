//! Addresses and options of client sockets.

use std::{net::SocketAddr, time::Duration};

use socket2::SockRef;
use tokio::net::TcpStream;

use crate::listen::{client_stream::TcpClientStream, proxy_protocol::Addresses};

/// The addresses of a connection according to the system.
pub(crate) fn connection_addresses(stream: &TcpStream, caller: SocketAddr) -> Addresses {
    Addresses { source: caller, destination: stream.local_addr().map_or(caller, canonical) }
}

/// The address of a client over IPv4, also where the listener is one of IPv6.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Breaks a connection whose client reads nothing for this long: pending data holds a server connection as well, and
/// deadlines of calls do not cover reads by the client.
pub fn set_user_timeout(stream: &TcpStream, time_limit: Duration) {
    // Fails only on a broken socket.
    let _ = SockRef::from(stream).set_tcp_user_timeout(Some(time_limit));
}

/// Makes closing send a reset, which clients cannot mistake for an empty response.
pub fn reset(stream: impl TcpClientStream) {
    // Fails only on a broken socket.
    let _ = stream.socket().set_zero_linger();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_are_those_of_ipv4() {
        for (accepted, expected) in [
            ("[::ffff:192.0.2.1]:80", "192.0.2.1:80"),
            ("192.0.2.1:80", "192.0.2.1:80"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
        ] {
            assert_eq!(canonical(accepted.parse().unwrap()), expected.parse().unwrap());
        }
    }
}
