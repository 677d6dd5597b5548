//! Active health checks at the control plane: elects the checker of each region, records the verdicts that it
//! reports (Uber, assisted balancing; Canal Mesh §6.1) and the distances to other regions that it measures.
//!
//! One agent of each region is elected checker, for as long as its call `Campaign` lasts. When the call ends,
//! for any reason, the next candidate is elected. The election is kept in memory only, since agents campaign
//! again at a restarted control plane. A lease in the RIB was rejected: each renewal would be a write, and
//! its loss would be noticed no sooner. The name of the elected agent is recorded, since servers admit its
//! probes and those of no other agent.

mod distance_filters;
mod distance_targets;
mod elected_checkers;
mod election;
mod health_index;
mod service;
mod verdict_cleanup;
mod verdict_writer;

use std::{sync::Arc, time::Duration};

use fairmesh_rib::Node;
use fairmesh_store::Store;
use tokio::sync::watch;

use distance_filters::DistanceFilters;
use distance_targets::DistanceTargets;
pub(crate) use distance_targets::TargetController;
use election::Elections;
pub(crate) use health_index::{CheckIndex, Woken};
pub(crate) use service::CheckerService;
pub(crate) use verdict_cleanup::VerdictController;

/// Time without a checker after which a region's verdicts become stale, and the record of its last checker is
/// deleted.
const LEADERLESS_GRACE: Duration = Duration::from_secs(60);

/// State of health checking, shared by service, controllers and metrics. Cheap to clone.
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
