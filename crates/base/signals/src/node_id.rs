use std::{
    num::NonZeroU16,
    sync::{PoisonError, RwLock},
};

use fairmesh_model::{CallNode, ServiceName};

/// Maximum number of nodes that one process serves: 60 services with 16 classes each. Calls to further nodes are not
/// distinguished.
const MAX_NODES: u16 = 1_024;

/// The nodes that this process serves, numbered from 1. Entries are never removed, since counters refer to nodes by
/// number.
static SERVED: RwLock<Vec<CallNode>> = RwLock::new(Vec::new());

/// Number of a call graph node that this process serves. Every poll of a call sets the current number; setting a name
/// instead would cost a reference count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(NonZeroU16);

impl NodeId {
    /// Returns the number of `node`; `None` if the process serves too many nodes.
    pub fn of(node: &CallNode) -> Option<Self> {
        let mut served = SERVED.write().unwrap_or_else(PoisonError::into_inner);
        let position = match served.iter().position(|known| known == node) {
            Some(position) => position,
            None if served.len() < usize::from(MAX_NODES) => {
                served.push(node.clone());
                served.len() - 1
            }
            None => return None,
        };
        u16::try_from(position + 1).ok().and_then(Self::from_bits)
    }

    /// Returns the node with this number; `None` if the number comes from another process and is unknown here.
    pub fn node(self) -> Option<CallNode> {
        let served = SERVED.read().unwrap_or_else(PoisonError::into_inner);
        served.get(usize::from(self.0.get()) - 1).cloned()
    }

    pub(crate) fn from_bits(bits: u16) -> Option<Self> {
        NonZeroU16::new(bits).map(Self)
    }

    pub(crate) fn bits(self) -> u16 {
        self.0.get()
    }
}

/// Whether this process serves calls to `service`.
pub fn serves(service: &ServiceName) -> bool {
    let served = SERVED.read().unwrap_or_else(PoisonError::into_inner);
    served.iter().any(|node| node.service == *service)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_graph_node_keeps_its_number() {
        let node = |service: &str, class: Option<&str>| CallNode {
            service: ServiceName::new(service).unwrap(),
            class: class.map(|class| class.parse().unwrap()),
        };
        let (plain, bulk) = (node("nodes/one", None), node("nodes/one", Some("bulk")));
        let ids = [&plain, &bulk, &plain].map(|node| NodeId::of(node).unwrap());
        assert_eq!(ids[0], ids[2]);
        assert_ne!(ids[0], ids[1]);
        assert_eq!(ids.map(|id| id.node().unwrap()), [plain.clone(), bulk, plain.clone()]);
        assert!(serves(&plain.service) && !serves(&ServiceName::new("nodes/two").unwrap()));
    }
}
