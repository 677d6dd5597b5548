//! The pages of a node for operators and monitoring.

use std::sync::Arc;

use fairmesh_listen::{Listeners, listener_table};
use fairmesh_pages::{AdminListener, AdminServer, Process, Readiness};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::{
    metrics::{self, NodeMetrics},
    pods::Pods,
};

/// The data that the admin pages show.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) metrics: Arc<NodeMetrics>,
    pub(crate) pods: Arc<Pods>,
    pub(crate) listeners: Listeners,
}

impl Process for Pages {
    const KIND: &'static str = "node";

    fn register(&self, metrics: &mut Registry) {
        let registry = metrics.sub_registry_with_prefix(Self::KIND);
        metrics::register(registry, &self.metrics, &self.pods);
        self.listeners.register(registry);
    }

    /// Ready once the node has the certificate of every pod.
    async fn readiness(&self) -> Readiness {
        self.pods.lacks_certificate().map_or_else(Readiness::ready, Readiness::Unready)
    }
}

/// Serves the pages.
pub(crate) fn start(bound: TcpListener, pages: Pages) -> AdminServer {
    let listener = AdminListener::of(bound, &pages.listeners, &listener_table::NODE_ADMIN);
    listener.start(fairmesh_pages::router(Arc::new(pages)))
}
