//! Serves the admin pages.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use fairmesh_listen::listener_table;
use fairmesh_metrics::{DurationFamily, Side, families};
use fairmesh_pages::{AdminListener, AdminServer, Process, Readiness};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::admin::{metrics, process_pages, state::AdminState};

impl Process for AdminState {
    const KIND: &'static str = "proxy";

    fn register(&self, metrics: &mut Registry) {
        metrics::register(self, metrics.sub_registry_with_prefix(Self::KIND));
    }

    fn calls(&self) -> Vec<DurationFamily> {
        let mut all = families(Side::Client, self.services.call_rows(&self.calling_service()));
        let served = self.inbound.iter().flat_map(|endpoint| endpoint.observer.metrics().call_rows());
        let in_place = self.metrics.kernel.in_place.call_rows();
        all.extend(families(Side::Server, served.chain(in_place)));
        all
    }

    async fn readiness(&self) -> Readiness {
        match self.ready.load(Relaxed) {
            true => Readiness::Ready(self.ready_text()),
            false => Readiness::Unready(self.waits_for()),
        }
    }
}

/// Starts the admin server.
pub(crate) fn start(bound: TcpListener, state: AdminState) -> AdminServer {
    let listener = AdminListener::of(bound, &state.listeners, &listener_table::PROXY_ADMIN);
    let own = process_pages::router().with_state(state.clone());
    listener.start(fairmesh_pages::router(Arc::new(state)).merge(own))
}
