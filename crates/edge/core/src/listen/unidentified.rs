//! Connections whose peers have not proved who they are: bounded for all, and for each address once they become scarce.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
};

use crate::counter::increment;

/// The part of all connections that one address may have, once half of them are taken. A handshake takes milliseconds, so that a node needs
/// few places at a time; a single attacker without a certificate holds each until the deadline.
const SHARES: usize = 16;
/// Leading bits of an IPv6 address that count as one: what a site assigns to a link (RFC 4291, 2.5.4).
const PREFIX_BITS: u32 = 64;

/// The connections that are not identified yet. Listeners accept no more than their limit.
#[derive(Debug)]
pub struct Unidentified {
    limit: usize,
    open: Mutex<OpenConnections>,
    /// Connections refused beyond the share of their address.
    pub refused: AtomicU64,
}

#[derive(Debug, Default)]
struct OpenConnections {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// The place of a connection until its peer is identified or refused.
#[derive(Debug)]
pub struct UnidentifiedPlace {
    of: Arc<Unidentified>,
    address: IpAddr,
}

impl Unidentified {
    /// A table for a listener that accepts at most `limit` connections of unknown peers.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, open: Mutex::default(), refused: AtomicU64::new(0) })
    }

    /// The number of connections.
    pub fn open(&self) -> u64 {
        self.lock().total as u64
    }

    /// A place for a connection from `peer`; `None`, which is counted, where half of all places are taken and its address has its share.
    pub fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<UnidentifiedPlace> {
        let address = site_of(peer);
        let mut open = self.lock();
        let of_address = open.by_address.get(&address).copied().unwrap_or_default();
        if open.total >= self.limit.div_ceil(2) && of_address >= self.limit.div_ceil(SHARES) {
            increment(&self.refused);
            return None;
        }
        open.total += 1;
        open.by_address.insert(address, of_address + 1);
        drop(open);
        Some(UnidentifiedPlace { of: Arc::clone(self), address })
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnidentifiedPlace {
    fn drop(&mut self) {
        let mut open = self.of.lock();
        open.total -= 1;
        if let Some(count) = open.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.by_address.remove(&self.address);
            }
        }
    }
}

/// The address whose connections count together.
pub(crate) fn site_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & u128::MAX << (u128::BITS - PREFIX_BITS)).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn address_beyond_its_share_is_refused_once_half_is_taken() {
        let table = Unidentified::new(32);
        let [flood, other]: [IpAddr; 2] = [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()];
        let mut held: Vec<_> = (0..16).map_while(|_| table.enter(flood)).collect();
        assert_eq!(held.len(), 16, "half of all are for any address");
        assert!(table.enter(flood).is_none());
        let others: Vec<_> = (0..3).map_while(|_| table.enter(other)).collect();
        assert_eq!((others.len(), table.refused.load(Relaxed)), (2, 2), "its share of a sixteenth");
        held.truncate(1);
        assert!(table.enter(flood).is_some());
        drop((held, others));
        assert_eq!((table.open(), table.lock().by_address.len()), (0, 0));
    }

    #[test]
    fn addresses_of_one_ipv6_site_share() {
        let table = Unidentified::new(2);
        let _first = table.enter("2001:db8::1".parse().unwrap()).unwrap();
        assert!(table.enter("2001:db8::2".parse().unwrap()).is_none());
        assert!(table.enter("2001:db8:0:1::1".parse().unwrap()).is_some());
    }
}
