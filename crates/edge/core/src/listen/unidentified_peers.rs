//! Connections whose peers have not authenticated yet. Their total is bounded, and the number per address
//! once half of the places are taken.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
};

use crate::counter::increment;

/// Once half of all slots are taken, one address may hold at most one in this many slots. A handshake takes
/// milliseconds, so a node needs few slots at a time. An attacker without a certificate holds each slot until the
/// deadline.
const SHARES: usize = 16;
/// Number of leading bits by which IPv6 addresses count as one address: a site assigns a /64 to a link (RFC 4291
/// 2.5.4).
const PREFIX_BITS: u32 = 64;

/// The connections whose peers are not identified yet. A listener accepts no more than its limit.
#[derive(Debug)]
pub struct Unidentified {
    limit: usize,
    open: Mutex<OpenConnections>,
    /// Connections refused because their address had used up its share.
    pub refused: AtomicU64,
}

#[derive(Debug, Default)]
struct OpenConnections {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// Slot of a connection, held until its peer is identified or refused.
#[derive(Debug)]
pub struct UnidentifiedPlace {
    of: Arc<Unidentified>,
    address: IpAddr,
}

impl Unidentified {
    /// A table for a listener that accepts at most `limit` connections from unidentified peers.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, open: Mutex::default(), refused: AtomicU64::new(0) })
    }

    /// Number of connections whose peers are not identified yet.
    pub fn open(&self) -> u64 {
        self.lock().total as u64
    }

    /// Takes a slot for a connection from `peer`. If half of all slots are taken and the address has used up its
    /// share, counts the refusal and returns `None`.
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

/// Maps an address to the unit that shares a limit: an IPv4 address, or an IPv6 /64.
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
    fn client_address_over_its_share_is_refused_once_half_of_limit_is_used() {
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
    fn client_addresses_of_one_ipv6_prefix_share_one_limit() {
        let table = Unidentified::new(2);
        let _first = table.enter("2001:db8::1".parse().unwrap()).unwrap();
        assert!(table.enter("2001:db8::2".parse().unwrap()).is_none());
        assert!(table.enter("2001:db8:0:1::1".parse().unwrap()).is_some());
    }
}
