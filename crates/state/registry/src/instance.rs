use fairmesh_model::{InstanceId, ServiceName};

/// An endpoint by service and instance id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceRef {
    /// Its service.
    pub service: ServiceName,
    /// Its id within the service.
    pub instance: InstanceId,
}

/// The process that acts for an instance. Several processes may run under the name, one after the other.
///
/// A replaced process may still have a renewal, a report or a deregistration in flight, which without an incarnation
/// would affect its successor. Processes choose increasing incarnations themselves, and the record keeps that of the
/// last one: so neither a restart of the control plane nor a lost response confuses them. Incarnations assigned in the
/// response to a registration were rejected: a process that missed the response would count as its own successor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceClaim {
    /// The instance.
    pub instance: InstanceRef,
    /// The incarnation of the process; 0 stands for any, for operators and for programs without incarnations.
    pub incarnation: u64,
}

impl InstanceClaim {
    /// Whether it may act for the registered process.
    pub(crate) fn matches(&self, registered: u64) -> bool {
        self.incarnation == 0 || registered == 0 || self.incarnation == registered
    }
}

impl From<InstanceRef> for InstanceClaim {
    fn from(instance: InstanceRef) -> Self {
        Self { instance, incarnation: 0 }
    }
}
