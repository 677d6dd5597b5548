use std::sync::Arc;

use fairmesh_listen::Listeners;
use fairmesh_pages::{Process, Readiness};
use prometheus_client::registry::Registry;

use crate::{
    identity::AgentIdentity, metrics, reports::Reports, served_rib::AgentRib, zone_probes::ZoneProbeCounts,
};

/// State shown on the admin pages.
pub(crate) struct Pages {
    pub(crate) backend: AgentRib,
    pub(crate) reports: Reports,
    pub(crate) listeners: Listeners,
    pub(crate) identity: Option<AgentIdentity>,
    pub(crate) probing: Option<Arc<ZoneProbeCounts>>,
}

impl Process for Pages {
    const KIND: &'static str = "agent";

    fn register(&self, metrics: &mut Registry) {
        metrics::register(self, metrics.sub_registry_with_prefix(Self::KIND));
    }

    /// Whether the agent is ready: connected to an upstream, or able to serve saved copies.
    async fn readiness(&self) -> Readiness {
        let state = self.backend.upstream.state().borrow().clone();
        match (state.connected, self.backend.shared.node.store()) {
            (true, _) => Readiness::ready(),
            (false, Some(_)) => {
                Readiness::Ready("ready, serving saved copies; no control plane is reachable".into())
            }
            (false, None) => {
                let refusal = self.identity.as_ref().and_then(|identity| identity.refusal());
                let reason = refusal.map(str::to_owned).or(state.error);
                let reason = reason.unwrap_or_else(|| "not reached yet".into());
                Readiness::Unready(format!("no control plane is reachable and no copy is saved: {reason}"))
            }
        }
    }
}
