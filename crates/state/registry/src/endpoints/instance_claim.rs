use fairmesh_model::{Endpoint, InstanceId, ServiceName};

use super::Registration;
use crate::stored_records::StoredEndpoint;

/// How far a process's clock may be ahead, in milliseconds. Within this bound, a wrong clock keeps a successor out until
/// the predecessor's lease expires.
const MAX_AHEAD_MS: u64 = 10 * 60_000;

/// An endpoint by service and instance id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceRef {
    /// Its service.
    pub service: ServiceName,
    /// Its id within the service.
    pub instance: InstanceId,
}

/// The claim of a process to act for an instance. Several processes run under an instance's name, one after the other.
///
/// A replaced process may still have a renewal, report or deregistration in flight. Without an incarnation, that would
/// affect its successor. Processes choose increasing incarnations themselves, and the record keeps the last one, so
/// that neither a restart of the control plane nor a lost response confuses them. Incarnations assigned in the
/// response to a registration were rejected: a process that missed the response would count as its own successor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceClaim {
    /// The instance.
    pub instance: InstanceRef,
    /// The incarnation of the process; 0 matches any, for operators and for programs without incarnations.
    pub incarnation: u64,
}

impl InstanceClaim {
    /// Whether the claimant may act for the registered process.
    pub(crate) fn matches(&self, registered: u64) -> bool {
        self.incarnation == 0 || registered == 0 || self.incarnation == registered
    }
}

impl From<InstanceRef> for InstanceClaim {
    fn from(instance: InstanceRef) -> Self {
        Self { instance, incarnation: 0 }
    }
}

impl Registration {
    pub(crate) fn instance_ref(&self) -> InstanceRef {
        InstanceRef { service: self.service.clone(), instance: self.endpoint.instance.clone() }
    }

    pub(super) fn claim(&self) -> InstanceClaim {
        InstanceClaim { instance: self.instance_ref(), incarnation: self.endpoint.incarnation() }
    }

    /// Whether an earlier process registers while a later one, `held`, is registered. An incarnation from the future,
    /// by this process's clock in milliseconds since 1970 and by the other process, does not count as later, because
    /// it would refuse every successor until its lease expires. If both are ahead, this clock is slow.
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

    /// The claim of the registered process.
    pub(super) fn claim(&self) -> InstanceClaim {
        InstanceClaim { instance: self.instance_ref(), incarnation: self.endpoint.incarnation() }
    }
}
