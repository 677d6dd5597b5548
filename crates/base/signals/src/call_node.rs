use std::{
    num::NonZeroU16,
    sync::{PoisonError, RwLock},
};

use fairmesh_model::{CallNode, ServiceName};

/// The most nodes that one process serves: 16 classes of 60 services. Calls of further ones are not told apart.
const MAX_NODES: u16 = 1_024;

/// The nodes that this process serves, numbered from 1. None is forgotten, since counters name nodes by their numbers.
static SERVED: RwLock<Vec<CallNode>> = RwLock::new(Vec::new());

/// The number of a node of the call graph that this process serves: it is marked at each poll of a call, where a name would
/// cost a reference count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(NonZeroU16);

impl NodeId {
    /// The number of a node; `None` if the process serves too many.
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

    /// Its node; `None` of a number that was read from elsewhere.
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

/// Whether this process serves calls of a service.
pub fn serves(service: &ServiceName) -> bool {
    let served = SERVED.read().unwrap_or_else(PoisonError::into_inner);
    served.iter().any(|node| node.service == *service)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_keeps_its_number() {
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
