use std::{net::SocketAddr, sync::Arc};

use axum::{Router, extract::State, response::IntoResponse, routing::get};
use fairmesh_listen::{Limits, Listeners, PageListener, table};
use fairmesh_model::Probe;
use fairmesh_wire::transport::Transport;
use http::{HeaderMap, StatusCode};
use tokio_util::sync::CancellationToken;

use crate::{KeyServerError, metrics::Metrics};

/// The state behind the pages.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) listeners: Listeners,
    pub(crate) transport: Transport,
}

pub(crate) async fn bind(
    address: Option<SocketAddr>,
    listeners: &Listeners,
) -> Result<Option<PageListener>, KeyServerError> {
    let Some(address) = address else { return Ok(None) };
    let acceptor = listeners.acceptor(&table::KEYSERVER_HTTP, Limits::pages());
    let bound = PageListener::bind(address, acceptor).await;
    bound.map(Some).map_err(|source| KeyServerError::Pages { address, source })
}

/// Serves `/metrics`, `/healthz` and `/readyz` until `stopping`.
pub(crate) async fn serve(listener: PageListener, pages: Pages, stopping: CancellationToken) {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readiness))
        .with_state(pages);
    listener.refusing(Probe::USER_AGENT).serve(router, stopping).await;
}

async fn metrics(State(pages): State<Pages>, headers: HeaderMap) -> impl IntoResponse {
    fairmesh_exposition::page("keyserver", &headers, |registry| {
        pages.metrics.register(registry);
        pages.listeners.register(registry);
    })
}

/// A key server is ready once callers accept its certificate.
async fn readiness(State(pages): State<Pages>) -> (StatusCode, String) {
    match pages.transport.lacks_certificate() {
        None => (StatusCode::OK, "ready\n".into()),
        Some(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("it has no certificate: {problem}\n")),
    }
}
