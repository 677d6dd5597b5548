//! Connections to servers on this machine on which the proxy sends requests itself.

use std::{
    fmt,
    net::SocketAddr,
    os::fd::BorrowedFd,
    sync::{Mutex, PoisonError},
};

use aya::maps::{HashMap, Map, MapData, SockHash};
use rustix::net::sockopt::socket_cookie;

use crate::{KernelError, layout::LocalConnection};

/// The maps by which the programs know them.
pub(crate) struct ForwardingSockets {
    /// Those that servers in attached cgroups have accepted.
    accepted: HashMap<MapData, LocalConnection, u32>,
    /// The kernel needs no lock; the type of the map does.
    sockets: Mutex<SockHash<MapData, LocalConnection>>,
}

impl ForwardingSockets {
    /// The maps are `exchanges` and `forwarding_sockets`.
    pub(crate) fn open(accepted: Map, sockets: Map) -> Result<Self, KernelError> {
        let refused = |error| KernelError::refused("a map of connections", &error);
        let sockets = Mutex::new(sockets.try_into().map_err(refused)?);
        Ok(Self { accepted: accepted.try_into().map_err(refused)?, sockets })
    }

    /// Has the requests on this connection take the short cut, and their responses, for as long as it is open. Where its server is not
    /// in an attached cgroup, or the kernel refuses, they pass TCP.
    pub(crate) fn add(&self, proxy: SocketAddr, server: SocketAddr, socket: BorrowedFd<'_>) {
        let Some(connection) = LocalConnection::new(proxy, server) else { return };
        // The kernel gives it a cookie when it is asked for one, by which the programs know it.
        if self.accepted.get(&connection, 0).is_ok() && socket_cookie(socket).is_ok() {
            let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = sockets.insert(connection, socket, 0);
        }
    }
}

impl fmt::Debug for ForwardingSockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardingSockets").finish_non_exhaustive()
    }
}
