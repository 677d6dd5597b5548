//! Accepts connections to other addresses, which the system redirects to a listener of this process.

use std::{io, net::SocketAddr};

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

/// Sets `IP_TRANSPARENT`, so that the listener accepts connections to other addresses. An inherited socket already
/// has it, regardless of the privileges of this process.
///
/// # Errors
/// The process lacks `CAP_NET_RAW` and `CAP_NET_ADMIN`.
pub fn set_transparent(listener: &TcpListener) -> io::Result<()> {
    let socket = SockRef::from(listener);
    // Covers IPv6 as well: Linux has one flag for both.
    if socket.ip_transparent_v4()? { Ok(()) } else { socket.set_ip_transparent_v4(true) }
}

/// Original destination of a connection; `None` if the destination is the listener itself. `own` is the address of a
/// transparent listener.
pub fn original_dst(stream: &TcpStream, own: Option<SocketAddr>) -> Option<SocketAddr> {
    let socket = SockRef::from(stream);
    let here = stream.local_addr().ok()?;
    if own.is_some_and(|own| own != here) {
        return Some(here);
    }
    let original = if here.is_ipv4() { socket.original_dst_v4() } else { socket.original_dst_v6() };
    original.ok()?.as_socket().filter(|original| *original != here)
}
