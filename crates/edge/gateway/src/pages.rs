//! The pages of a gateway for operators and monitoring.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use axum::{Router, extract::State, response::IntoResponse, routing::get};
use fairmesh_listen::{Limits, Listeners, PageListener, table};
use fairmesh_model::Probe;
use http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{connection::Connections, metrics};

/// The state behind the pages.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    pub(crate) connections: Arc<Connections>,
    pub(crate) listeners: Listeners,
    /// Whether connections are accepted.
    pub(crate) is_ready: Arc<AtomicBool>,
}

/// Serves `/metrics`, `/healthz` and `/readyz` until `stopping`.
pub(crate) fn start(listener: TcpListener, pages: Pages, stopping: CancellationToken) {
    let acceptor = pages.listeners.acceptor(&table::GATEWAY_ADMIN, Limits::pages());
    let router = Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readiness))
        .with_state(pages);
    let listener = PageListener::new(listener, acceptor);
    tokio::spawn(listener.refusing(Probe::USER_AGENT).serve(router, stopping));
}

async fn metrics_page(State(pages): State<Pages>, headers: HeaderMap) -> impl IntoResponse {
    fairmesh_exposition::page("gateway", &headers, |registry| {
        metrics::register(registry, &pages.connections);
        pages.listeners.register(registry);
    })
}

async fn readiness(State(pages): State<Pages>) -> (StatusCode, String) {
    if pages.is_ready.load(Relaxed) {
        return (StatusCode::OK, "ready\n".into());
    }
    let problem = pages.connections.transport.lacks_certificate();
    let problem = problem.map_or_else(
        || "waits for the records of the mesh, or drains".to_owned(),
        |problem| format!("it has no certificate: {problem}"),
    );
    (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n"))
}
