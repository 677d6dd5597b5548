//! Records which service registered each address last: another service may have reused the address of a dead
//! endpoint. Pure: callers pass `now`.

use std::{collections::HashMap, net::SocketAddr};

use tokio::time::Instant;

use crate::{InstanceClaim, InstanceRef};

/// [`AddressClaims::prune`] removes nothing until claims outnumber twice the leases by this number.
const PRUNED_FROM: usize = 1024;

/// The last registration of each address, and the lost endpoints that had registered an address before.
///
/// A plaintext endpoint does not prove its service. While it is lost, callers may still use it as a last resort and would
/// reach whichever process listens there. Only one process listens at an address, so a later registration for another
/// service shows that the earlier process has ended. If one process serves both services, the earlier endpoint has renewed
/// its lease since. After a restart, the control plane knows only claims made since.
#[derive(Debug, Default)]
pub(crate) struct AddressClaims {
    claims: HashMap<SocketAddr, Claim>,
    lost: HashMap<SocketAddr, Vec<LostClaim>>,
}

#[derive(Clone, Debug)]
struct Claim {
    holder: InstanceClaim,
    since: Instant,
}

#[derive(Clone, Debug)]
struct LostClaim {
    instance: InstanceRef,
    /// When the endpoint was last known to be alive.
    renewed: Instant,
}

impl AddressClaims {
    /// Records a registration. Returns the lost endpoints of other services that had the same address. Repeating a
    /// registration changes nothing.
    pub(crate) fn claim(
        &mut self,
        address: SocketAddr,
        holder: &InstanceClaim,
        now: Instant,
    ) -> Vec<InstanceRef> {
        let is_known = self.claims.get(&address).is_some_and(|claim| claim.holder == *holder);
        if !is_known {
            self.claims.insert(address, Claim { holder: holder.clone(), since: now });
        }
        let Some(claim) = self.claims.get(&address) else { return Vec::new() };
        let displaced = self.lost.get(&address).into_iter().flatten().filter(|lost| claim.displaces(lost));
        displaced.map(|lost| lost.instance.clone()).collect()
    }

    /// Returns the endpoint of another service that registered `address` after `instance` last renewed its lease.
    pub(crate) fn displacing(
        &self,
        address: SocketAddr,
        instance: &InstanceRef,
        renewed: Instant,
    ) -> Option<&InstanceRef> {
        let lost = LostClaim { instance: instance.clone(), renewed };
        let claim = self.claims.get(&address).filter(|claim| claim.displaces(&lost))?;
        Some(&claim.holder.instance)
    }

    /// Drops claims without a lease once they are the majority: ending a lease does not remove its claim.
    pub(crate) fn prune(&mut self, leases: usize, has_lease: impl Fn(&InstanceRef) -> bool) {
        if self.claims.len() > 2 * leases + PRUNED_FROM {
            self.claims.retain(|_, claim| has_lease(&claim.holder.instance));
        }
    }

    /// Records an endpoint whose lease expired.
    pub(crate) fn note_lost(&mut self, address: SocketAddr, instance: &InstanceRef, renewed: Instant) {
        self.note_gone(address, instance);
        self.lost.entry(address).or_default().push(LostClaim { instance: instance.clone(), renewed });
    }

    /// Forgets a lost endpoint because it was removed or is alive again.
    pub(crate) fn note_gone(&mut self, address: SocketAddr, instance: &InstanceRef) {
        if let Some(lost) = self.lost.get_mut(&address) {
            lost.retain(|known| known.instance != *instance);
            if lost.is_empty() {
                self.lost.remove(&address);
            }
        }
    }
}

impl Claim {
    fn displaces(&self, lost: &LostClaim) -> bool {
        self.holder.instance.service != lost.instance.service && self.since > lost.renewed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn claim_of(service: &str, incarnation: u64) -> InstanceClaim {
        let instance = InstanceRef { service: service.parse().unwrap(), instance: "a".parse().unwrap() };
        InstanceClaim { instance, incarnation }
    }

    #[tokio::test(start_paused = true)]
    async fn endpoint_address_belongs_to_service_that_registered_it_last() {
        let (address, start) = ("10.0.0.1:80".parse().unwrap(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let [cart, web] = ["shop/cart", "shop/web"].map(|name| claim_of(name, 1));
        let mut claims = AddressClaims::default();
        claims.claim(address, &cart, at(0));
        claims.note_lost(address, &cart.instance, at(5));
        assert_eq!(claims.claim(address, &claim_of("shop/cart", 2), at(6)), [], "the same service");
        assert_eq!(claims.claim(address, &web, at(7)), std::slice::from_ref(&cart.instance));
        claims.note_gone(address, &cart.instance);
        assert_eq!(claims.claim(address, &web, at(8)), []);

        assert_eq!(claims.displacing(address, &cart.instance, at(6)), Some(&web.instance));
        assert_eq!(
            claims.displacing(address, &cart.instance, at(9)),
            None,
            "both renew: one process serves both"
        );
        claims.note_lost(address, &cart.instance, at(9));
        assert_eq!(claims.claim(address, &web, at(10)), [], "repeated");
    }
}
