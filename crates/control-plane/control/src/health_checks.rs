//! Active health checks at the control plane: the election of each region's checker, the verdicts that it reports
//! (Uber, assisted balancing; Canal Mesh §6.1), and the distances to other regions that it measures.
//!
//! One agent of a region is elected checker for as long as its call `Campaign` lasts; when the call ends, for any
//! reason, the next candidate is elected. The election is kept in memory only, since agents campaign anew at a
//! restarted control plane. A lease in the RIB was rejected: its renewals would write, and its loss would be noticed no
//! sooner. The name of the elected agent is recorded, since servers admit its probes and those of no other agent.

mod check_index;
mod distance_targets;
mod distances;
mod elected_checkers;
mod election;
mod janitor;
mod service;
mod write;

use std::{sync::Arc, time::Duration};

use fairmesh_rib::Node;
use fairmesh_store::Store;
use tokio::sync::watch;

pub(crate) use check_index::{CheckIndex, Woken};
use distance_targets::DistanceTargets;
pub(crate) use distance_targets::TargetController;
use distances::DistanceFilters;
use election::Elections;
pub(crate) use janitor::VerdictController;
pub(crate) use service::CheckerService;

/// Time without a checker after which a region's verdicts become stale, and the record of its last checker is deleted.
const LEADERLESS_GRACE: Duration = Duration::from_secs(60);

/// State shared by the parts that deal with health checks. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Checks {
    node: Node,
    store: Arc<dyn Store>,
    check_index: Arc<CheckIndex>,
    elections: Arc<Elections>,
    targets: watch::Sender<Arc<DistanceTargets>>,
    filters: Arc<DistanceFilters>,
}

impl Checks {
    pub(crate) fn new(node: Node, store: Arc<dyn Store>, check_index: Arc<CheckIndex>) -> Self {
        let (elections, targets, filters) = Default::default();
        Self { node, store, check_index, elections, targets, filters }
    }
}
