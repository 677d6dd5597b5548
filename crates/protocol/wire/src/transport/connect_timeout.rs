//! Limits the time for opening a connection to a process of the mesh. The error of a timeout names the slow phase.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use tokio::time::timeout;

use super::{Address, CONNECT_TIMEOUT, Socket, Transport};

impl Transport {
    /// Opens a connection to a mesh process within [`CONNECT_TIMEOUT`].
    ///
    /// # Errors
    /// If the connection cannot be established. The error of a timeout names the phase that was slow.
    pub(crate) async fn dial_in_time(&self, address: &Address) -> io::Result<Socket> {
        let is_connected = AtomicBool::new(false);
        let dialled = timeout(CONNECT_TIMEOUT, self.dial_noting(address, &is_connected)).await;
        dialled.unwrap_or_else(|_| Err(late(address, is_connected.load(Relaxed))))
    }
}

fn late(address: &Address, is_connected: bool) -> io::Error {
    let phase = match address {
        Address::Tcp(_) if is_connected => "the TLS handshake",
        Address::Tcp(_) => "the TCP connection, with the lookup of its name,",
        Address::Unix(_) => "the connection to the socket",
    };
    let within = CONNECT_TIMEOUT.as_secs();
    io::Error::new(io::ErrorKind::TimedOut, format!("{phase} took longer than {within} s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_connection_names_slow_phase() {
        let (tcp, unix) = (Address::Tcp("127.0.0.1:7400".into()), Address::Unix("/run/control.sock".into()));
        let said = |address, is_connected| late(address, is_connected).to_string();
        assert_eq!(said(&tcp, true), "the TLS handshake took longer than 2 s");
        assert_eq!(
            said(&tcp, false),
            "the TCP connection, with the lookup of its name, took longer than 2 s"
        );
        assert_eq!(said(&unix, false), "the connection to the socket took longer than 2 s");
    }
}
