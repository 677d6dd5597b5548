//! The pages of a gateway for operators and monitoring.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use fairmesh_listen::{Listeners, listener_table};
use fairmesh_metrics::{DurationFamily, Side, UNKNOWN, families};
use fairmesh_pages::{AdminListener, AdminServer, Process, Readiness};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::{entry::SharedAddress, metrics, node_connections::Connections};

/// The data that the admin pages show.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) connections: Arc<Connections>,
    pub(crate) listeners: Listeners,
    /// Whether connections are accepted.
    pub(crate) is_ready: Arc<AtomicBool>,
    /// The redirector, if there is one.
    pub(crate) entry: Option<Arc<SharedAddress>>,
}

impl Process for Pages {
    const KIND: &'static str = "gateway";

    fn register(&self, metrics: &mut Registry) {
        let registry = metrics.sub_registry_with_prefix(Self::KIND);
        metrics::register(registry, &self.connections);
        if let Some(entry) = &self.entry {
            entry.register(registry);
        }
        self.listeners.register(registry);
    }

    fn calls(&self) -> Vec<DurationFamily> {
        let tenants = self.connections.tenants.all();
        let rows = tenants.iter().flat_map(|(_, tenant)| tenant.server.forwarder.services.call_rows(UNKNOWN));
        families(Side::Client, rows)
    }

    async fn readiness(&self) -> Readiness {
        if self.is_ready.load(Relaxed) {
            return Readiness::ready();
        }
        let problem = self.connections.transport.lacks_certificate();
        Readiness::Unready(problem.map_or_else(
            || "waits for the records of the mesh, or drains".to_owned(),
            |problem| format!("it has no certificate: {problem}"),
        ))
    }
}

/// Serves the pages.
pub(crate) fn start(bound: TcpListener, pages: Pages) -> AdminServer {
    let listener = AdminListener::of(bound, &pages.listeners, &listener_table::GATEWAY_ADMIN);
    listener.start(fairmesh_pages::router(Arc::new(pages)))
}
