//! The pages of a node for operators and monitoring.

use std::sync::Arc;

use axum::{Router, extract::State, response::IntoResponse, routing::get};
use fairmesh_listen::{Limits, Listeners, PageListener, table};
use fairmesh_model::Probe;
use http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    metrics::{self, NodeMetrics},
    pods::Pods,
};

/// The state behind the pages.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    pub(crate) metrics: Arc<NodeMetrics>,
    pub(crate) pods: Arc<Pods>,
    pub(crate) listeners: Listeners,
}

/// Serves `/metrics`, `/healthz` and `/readyz` until `stopping`.
pub(crate) fn start(listener: TcpListener, pages: Pages, stopping: CancellationToken) {
    let listener = PageListener::new(listener, pages.listeners.acceptor(&table::NODE_ADMIN, Limits::pages()));
    let router = Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readiness))
        .with_state(pages);
    tokio::spawn(listener.refusing(Probe::USER_AGENT).serve(router, stopping));
}

async fn metrics_page(State(pages): State<Pages>, headers: HeaderMap) -> impl IntoResponse {
    fairmesh_exposition::page("node", &headers, |registry| {
        metrics::register(registry, &pages.metrics, &pages.pods);
        pages.listeners.register(registry);
    })
}

/// A node is ready once it has the certificate of every pod.
async fn readiness(State(pages): State<Pages>) -> (StatusCode, String) {
    match pages.pods.lacks_certificate() {
        None => (StatusCode::OK, "ready\n".into()),
        Some(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
    }
}
