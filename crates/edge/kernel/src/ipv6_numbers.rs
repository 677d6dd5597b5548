//! Numbers of the IPv6 addresses at which servers accept connections from this machine. The programs give them; a number stands for
//! its address in the keys of maps, which are those of connections over IPv4.

use std::{fmt, net::SocketAddr};

use aya::maps::{HashMap, Map, MapData};

use crate::{
    KernelError,
    map_layout::{LocalConnection, MappedAddress},
};

/// The numbers that have been given.
pub(crate) struct Ipv6Numbers(HashMap<MapData, MappedAddress, u32>);

impl Ipv6Numbers {
    /// Opens the map `ipv6_numbers`.
    pub(crate) fn open(map: Map) -> Result<Self, KernelError> {
        let map = map.try_into();
        map.map(Self).map_err(|error| KernelError::refused("map ipv6_numbers", &error))
    }

    /// A connection of the proxy to a server on this machine. `None` if the server is elsewhere, or has accepted no connection
    /// over IPv6 at its address that the programs know.
    pub(crate) fn connection(&self, proxy: SocketAddr, server: SocketAddr) -> Option<LocalConnection> {
        LocalConnection::new(proxy, server, |address| self.0.get(&address, 0).ok())
    }
}

impl fmt::Debug for Ipv6Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ipv6Numbers").finish_non_exhaustive()
    }
}
