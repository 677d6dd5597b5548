use std::sync::Arc;

use fairmesh_listen::Listeners;
use fairmesh_pages::{Process, Readiness};
use fairmesh_wire::transport::Transport;
use prometheus_client::registry::Registry;

use crate::metrics::Metrics;

/// Data for the admin pages.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) listeners: Listeners,
    pub(crate) transport: Transport,
}

impl Process for Pages {
    const KIND: &'static str = "keyserver";

    fn register(&self, metrics: &mut Registry) {
        let registry = metrics.sub_registry_with_prefix(Self::KIND);
        self.metrics.register(registry);
        self.listeners.register(registry);
    }

    /// A key server is ready once callers accept its certificate.
    async fn readiness(&self) -> Readiness {
        match self.transport.lacks_certificate() {
            None => Readiness::ready(),
            Some(problem) => Readiness::Unready(format!("it has no certificate: {problem}")),
        }
    }
}
