use fairmesh_model::{InstanceId, ServiceName};

/// An endpoint, identified by service and instance id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceRef {
    /// The endpoint's service.
    pub service: ServiceName,
    /// Instance id within the service.
    pub instance: InstanceId,
}

/// The process that acts for an instance. Several processes may run under the same name, one after the other.
///
/// A replaced process may still have a renewal, a report or a deregistration in flight, which without an incarnation
/// would affect its successor. Processes choose increasing incarnations themselves, and the record keeps the
/// incarnation of the last process. Neither a restart of the control plane nor a lost response can therefore confuse
/// two processes. Incarnations assigned in the response to a registration were rejected: a process that missed the
/// response would count as its own successor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceClaim {
    /// The instance.
    pub instance: InstanceRef,
    /// Incarnation of the process. 0 matches any process; operators and programs without incarnations send 0.
    pub incarnation: u64,
}

impl InstanceClaim {
    /// Whether this claim may act for the process registered with the incarnation `registered`.
    pub(crate) fn matches(&self, registered: u64) -> bool {
        self.incarnation == 0 || registered == 0 || self.incarnation == registered
    }
}

impl From<InstanceRef> for InstanceClaim {
    fn from(instance: InstanceRef) -> Self {
        Self { instance, incarnation: 0 }
    }
}
