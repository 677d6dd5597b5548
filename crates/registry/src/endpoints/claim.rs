use fairmesh_model::{Endpoint, InstanceId, ServiceName};

use super::Registration;
use crate::view::Held;

/// How far the clocks of two machines may be apart, in milliseconds.
const MAX_AHEAD_MS: u64 = 10 * 60_000;

/// One endpoint, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceRef {
    /// Its service.
    pub service: ServiceName,
    /// Its identity within the service.
    pub instance: InstanceId,
}

/// Who speaks for an instance: which of the processes that ran under its name, one after the other.
///
/// A process that was replaced may still have a renewal, a report or its farewell under way; without telling the two
/// apart, it would take its successor out. Processes make their incarnations themselves, the later the greater, and the
/// record keeps that of the last one: so neither a restart of the control plane nor a lost answer confuses them. Handing
/// them out with the answer to a registration was rejected: a process that missed the answer would be its own successor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The instance.
    pub instance: InstanceRef,
    /// The process; 0 stands for whichever is registered, for people and for programs that know of none.
    pub incarnation: u64,
}

impl Claim {
    /// Whether it may speak for the process that is registered.
    pub(crate) fn fits(&self, registered: u64) -> bool {
        self.incarnation == 0 || registered == 0 || self.incarnation == registered
    }
}

impl From<InstanceRef> for Claim {
    fn from(instance: InstanceRef) -> Self {
        Self { instance, incarnation: 0 }
    }
}

impl Registration {
    pub(crate) fn who(&self) -> InstanceRef {
        InstanceRef { service: self.service.clone(), instance: self.endpoint.instance.clone() }
    }

    pub(super) fn claim(&self) -> Claim {
        Claim { instance: self.who(), incarnation: self.endpoint.incarnation() }
    }

    /// Whether an earlier process speaks here while a later one, `held`, is there. An incarnation from the future, by this process's
    /// clock in milliseconds since 1970, does not outrank others: it would keep every successor out until its lease has run out.
    pub(super) fn is_outdated(&self, held: &Endpoint, now_ms: u64) -> bool {
        let (own, held) = (self.endpoint.incarnation(), held.incarnation());
        let is_possible = held / 1_000 <= now_ms.saturating_add(MAX_AHEAD_MS);
        !self.claim().fits(held) && own < held && is_possible
    }
}

impl Held {
    pub(crate) fn who(&self) -> InstanceRef {
        InstanceRef { service: self.service.clone(), instance: self.endpoint.instance.clone() }
    }

    /// What the process that is registered says of itself.
    pub(super) fn claim(&self) -> Claim {
        Claim { instance: self.who(), incarnation: self.endpoint.incarnation() }
    }
}
