use fairmesh_model::Endpoint;

use super::Registration;
use crate::{InstanceClaim, InstanceRef, stored_records::StoredEndpoint};

/// Maximum clock skew between processes, in milliseconds. A process whose clock is ahead by at most this time keeps
/// its successor out until its lease expires.
const MAX_AHEAD_MS: u64 = 10 * 60_000;

impl Registration {
    pub(crate) fn instance_ref(&self) -> InstanceRef {
        InstanceRef { service: self.service.clone(), instance: self.endpoint.instance.clone() }
    }

    pub(super) fn claim(&self) -> InstanceClaim {
        InstanceClaim { instance: self.instance_ref(), incarnation: self.endpoint.incarnation() }
    }

    /// Whether an earlier process registers while a later one, `held`, is registered. An incarnation that lies in the
    /// future by both this process's clock (`now_ms`, milliseconds since 1970) and the registering process does not
    /// count as later, because it would refuse every successor until its lease expires. If both incarnations lie in
    /// the future, this process's clock is slow.
    pub(super) fn is_outdated(&self, held: &Endpoint, now_ms: u64) -> bool {
        let (own, held) = (self.endpoint.incarnation(), held.incarnation());
        let is_possible = held / 1_000 <= now_ms.max(own / 1_000).saturating_add(MAX_AHEAD_MS);
        !self.claim().matches(held) && own < held && is_possible
    }
}

impl StoredEndpoint {
    pub(crate) fn instance_ref(&self) -> InstanceRef {
        InstanceRef { service: self.service.clone(), instance: self.endpoint.instance.clone() }
    }

    /// Returns the claim of the registered process.
    pub(super) fn claim(&self) -> InstanceClaim {
        InstanceClaim { instance: self.instance_ref(), incarnation: self.endpoint.incarnation() }
    }
}
