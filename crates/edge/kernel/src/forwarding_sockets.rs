//! Connections on which the proxy forwards requests to servers on this machine.

use std::{
    fmt,
    net::SocketAddr,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, PoisonError},
};

use aya::maps::{HashMap, Map, MapData, SockHash};
use rustix::net::sockopt::socket_cookie;

use crate::{KernelError, ipv6_numbers::Ipv6Numbers, map_layout::LocalConnection};

/// The maps in which the programs find these connections.
pub(crate) struct ForwardingSockets {
    /// Connections accepted by servers in attached cgroups.
    accepted: HashMap<MapData, LocalConnection, u32>,
    /// The kernel needs no lock, but the Rust type of the map needs `&mut`.
    sockets: Mutex<SockHash<MapData, LocalConnection>>,
    numbers: Arc<Ipv6Numbers>,
}

impl ForwardingSockets {
    /// Opens the maps `exchanges` and `forwarding_sockets`.
    pub(crate) fn open(accepted: Map, sockets: Map, numbers: Arc<Ipv6Numbers>) -> Result<Self, KernelError> {
        let refused = |error| KernelError::refused("a map of connections", &error);
        let sockets = Mutex::new(sockets.try_into().map_err(refused)?);
        Ok(Self { accepted: accepted.try_into().map_err(refused)?, sockets, numbers })
    }

    /// Lets requests and responses of this connection take the short cut while the connection is open. They
    /// pass TCP if the server is not in an attached cgroup, or if the kernel refuses.
    pub(crate) fn add(&self, proxy: SocketAddr, server: SocketAddr, socket: BorrowedFd<'_>) {
        let Some(connection) = self.numbers.connection(proxy, server) else { return };
        // Reading the cookie makes the kernel assign one; the programs find the socket by it.
        if self.accepted.get(&connection, 0).is_ok() && socket_cookie(socket).is_ok() {
            let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = sockets.insert(connection, socket, 0);
        }
    }

    /// Whether a server in an attached cgroup has accepted this connection.
    pub(crate) fn is_accepted(&self, proxy: SocketAddr, server: SocketAddr) -> bool {
        self.numbers
            .connection(proxy, server)
            .is_some_and(|connection| self.accepted.get(&connection, 0).is_ok())
    }
}

impl fmt::Debug for ForwardingSockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardingSockets").finish_non_exhaustive()
    }
}
