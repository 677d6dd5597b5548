//! Active health checks as the control plane sees them: who probes a region, and what was found (Uber, assisted balancing; Canal Mesh §6.1).
//!
//! One agent of a region holds its office of checker, by a call that lasts: when the call ends, whatever the reason, the
//! next applicant has the office. The office is kept in memory only, since a restarted control plane is applied to anew.
//! A lease in the RIB was rejected: its renewals would write, and its loss would be noticed no sooner.

mod keeper;
mod roll;
mod seats;
mod service;
mod write;

use std::sync::Arc;

use fairmesh_rib::Node;
use fairmesh_store::Store;

pub(crate) use roll::Roll;
use seats::Seats;
pub(crate) use service::CheckerService;

/// What the parts that deal with health checks share. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Checks {
    node: Node,
    store: Arc<dyn Store>,
    roll: Arc<Roll>,
    seats: Arc<Seats>,
}

impl Checks {
    pub(crate) fn new(node: Node, store: Arc<dyn Store>, roll: Arc<Roll>) -> Self {
        Self { node, store, roll, seats: Arc::default() }
    }
}
