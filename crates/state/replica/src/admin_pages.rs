use fairmesh_listen::Listeners;
use fairmesh_pages::{Process, Readiness};
use fairmesh_rib::ReportRelay;
use prometheus_client::registry::Registry;

use crate::{metrics, served_rib::ReplicaRib};

/// Data for the admin pages.
pub(crate) struct Pages {
    pub(crate) backend: ReplicaRib,
    pub(crate) rates: ReportRelay,
    pub(crate) listeners: Listeners,
}

impl Process for Pages {
    const KIND: &'static str = "replica";

    fn register(&self, metrics: &mut Registry) {
        metrics::register(self, metrics.sub_registry_with_prefix(Self::KIND));
    }

    /// A replica is ready once it can serve, either from its upstream or from its copy on disk.
    async fn readiness(&self) -> Readiness {
        let state = self.backend.upstream.state().borrow().clone();
        match (state.connected, self.backend.shared.has_copy()) {
            (true, true) => Readiness::ready(),
            (false, true) => {
                Readiness::Ready("ready, from the copy on disk; no upstream is reachable".into())
            }
            (true, false) => Readiness::Unready("the first snapshot is being fetched".into()),
            (false, false) => {
                let reason = state.error.unwrap_or_else(|| "it is not connected yet".into());
                Readiness::Unready(format!("no upstream is reachable and there is no copy on disk: {reason}"))
            }
        }
    }
}
