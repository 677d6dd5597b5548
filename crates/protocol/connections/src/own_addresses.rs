//! Addresses of this process's own forwarding listeners. A connection to one of them would forward a call in a circle.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{Arc, PoisonError, RwLock},
};

/// Addresses of this process, shared by all endpoint pools of a mesh. Checked once for each new connection.
#[derive(Clone, Debug, Default)]
pub struct OwnAddresses(Arc<RwLock<Own>>);

#[derive(Debug, Default)]
struct Own {
    listeners: Vec<SocketAddr>,
    /// Whether all loopback addresses count as own.
    has_loopback: bool,
}

impl OwnAddresses {
    /// Adds addresses of listeners.
    pub fn add(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).listeners.extend(addresses);
    }

    /// Adds all loopback addresses.
    pub fn add_loopback(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).has_loopback = true;
    }

    /// Whether a connection to this address would reach this process.
    pub fn contains(&self, address: SocketAddr) -> bool {
        let own = self.0.read().unwrap_or_else(PoisonError::into_inner);
        own.has_loopback && address.ip().to_canonical().is_loopback()
            || own.listeners.iter().any(|own| own.port() == address.port() && covers(own.ip(), address.ip()))
    }
}

/// Whether a listener at `listener` receives connections to `address`.
fn covers(listener: IpAddr, address: IpAddr) -> bool {
    // The unspecified IPv6 address accepts connections of both families.
    let any = listener.is_unspecified() && (listener.is_ipv6() || address.is_ipv4());
    listener == address || any && is_local(address)
}

/// Whether an address belongs to this machine. The system binds sockets only to such addresses.
fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_on_unspecified_address_covers_only_local_addresses() {
        let own = OwnAddresses::default();
        own.add(["127.0.0.1:80", "0.0.0.0:81", "[::]:82"].map(|address| address.parse().unwrap()));
        for (address, is_own) in [
            ("127.0.0.1:80", true),
            ("127.0.0.2:80", false),
            ("127.0.0.1:83", false),
            ("127.0.0.2:81", true),
            ("192.0.2.1:81", false),
            ("[::1]:81", false),
            ("127.0.0.1:82", true),
        ] {
            assert_eq!(own.contains(address.parse().unwrap()), is_own, "{address}");
        }
    }

    #[test]
    fn proxy_knows_its_loopback_addresses_once_added() {
        let own = OwnAddresses::default();
        let addresses = ["127.0.0.1:7441", "[::1]:80", "[::ffff:127.0.0.2]:80", "192.0.2.1:7441"];
        let excluded = |own: &OwnAddresses| addresses.map(|address| own.contains(address.parse().unwrap()));
        assert_eq!(excluded(&own), [false; 4]);
        own.add_loopback();
        assert_eq!(excluded(&own), [true, true, true, false]);
    }
}
