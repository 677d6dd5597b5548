use std::net::SocketAddr;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{backend::ReplicaBackend, error::ReplicaError, metrics};

/// What OpenMetrics text is called on the wire.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) async fn bind(address: Option<SocketAddr>) -> Result<Option<TcpListener>, ReplicaError> {
    match address {
        None => Ok(None),
        Some(address) => {
            let bound = TcpListener::bind(address).await;
            bound.map(Some).map_err(|source| ReplicaError::Metrics { address, source })
        }
    }
}

/// Serves `/metrics`, `/healthz` and `/readyz` until `stopping`.
pub(crate) async fn serve(listener: TcpListener, backend: ReplicaBackend, stopping: CancellationToken) {
    let router = Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readiness))
        .with_state(backend);
    let served = axum::serve(listener, router).with_graceful_shutdown(stopping.cancelled_owned());
    if let Err(error) = served.await {
        tracing::error!(%error, "metrics are no longer served");
    }
}

async fn metrics_page(State(backend): State<ReplicaBackend>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, OPEN_METRICS)], metrics::text(&backend))
}

/// Ready is a replica that can answer: from its upstream, or from its disk.
async fn readiness(State(backend): State<ReplicaBackend>) -> (StatusCode, String) {
    let state = backend.upstream.state().borrow().clone();
    match (state.connected, backend.shared.holds()) {
        (true, true) => (StatusCode::OK, "ready\n".into()),
        (false, true) => (StatusCode::OK, "ready, from what is held; no upstream answers\n".into()),
        (true, false) => (StatusCode::SERVICE_UNAVAILABLE, "the first copy is under way\n".into()),
        (false, false) => {
            let reason = state.error.unwrap_or_else(|| "it was not reached yet".into());
            (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("no upstream answers and nothing is on disk: {reason}\n"),
            )
        }
    }
}
