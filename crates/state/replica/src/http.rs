use std::net::SocketAddr;

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
    routing::get,
};
use fairmesh_listen::{Limits, Listeners, PageListener, table};
use fairmesh_model::Probe;
use fairmesh_rib::ReportRelay;
use tokio_util::sync::CancellationToken;

use crate::{error::ReplicaError, metrics, served_rib::ReplicaRib};

/// The state behind the pages.
#[derive(Clone)]
pub(crate) struct Pages {
    pub(crate) backend: ReplicaRib,
    pub(crate) rates: ReportRelay,
    pub(crate) listeners: Listeners,
}

pub(crate) async fn bind(
    address: Option<SocketAddr>,
    listeners: &Listeners,
) -> Result<Option<PageListener>, ReplicaError> {
    match address {
        None => Ok(None),
        Some(address) => {
            let bound =
                PageListener::bind(address, listeners.acceptor(&table::REPLICA_HTTP, Limits::pages())).await;
            bound.map(Some).map_err(|source| ReplicaError::Metrics { address, source })
        }
    }
}

/// Serves `/metrics`, `/healthz` and `/readyz` until `stopping`.
pub(crate) async fn serve(listener: PageListener, pages: Pages, stopping: CancellationToken) {
    let router = Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readiness))
        .with_state(pages);
    listener.refusing(Probe::USER_AGENT).serve(router, stopping).await;
}

async fn metrics_page(State(pages): State<Pages>, headers: HeaderMap) -> impl IntoResponse {
    fairmesh_exposition::page("replica", &headers, |registry| metrics::register(&pages, registry))
}

/// A replica is ready when it can serve, from its upstream or its copy on disk.
async fn readiness(State(Pages { backend, .. }): State<Pages>) -> (StatusCode, String) {
    let state = backend.upstream.state().borrow().clone();
    match (state.connected, backend.shared.has_copy()) {
        (true, true) => (StatusCode::OK, "ready\n".into()),
        (false, true) => (StatusCode::OK, "ready, from the copy on disk; no upstream is reachable\n".into()),
        (true, false) => (StatusCode::SERVICE_UNAVAILABLE, "the first snapshot is being fetched\n".into()),
        (false, false) => {
            let reason = state.error.unwrap_or_else(|| "it is not connected yet".into());
            (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("no upstream is reachable and there is no copy on disk: {reason}\n"),
            )
        }
    }
}
