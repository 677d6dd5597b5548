use std::net::SocketAddr;

use axum::{
    Router,
    extract::{Request, State},
    http::{
        StatusCode,
        header::{self, USER_AGENT},
    },
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get,
};
use fairmesh_listen::{Limits, Listeners, PageListener};
use fairmesh_model::Probe;
use tokio_util::sync::CancellationToken;

use crate::{error::AgentError, metrics, served_rib::AgentRib, usage_forwarder::UsageForwarder};

/// Media type of the OpenMetrics text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// State that the HTTP handlers read.
#[derive(Clone)]
pub(crate) struct Pages {
    pub(crate) backend: AgentRib,
    pub(crate) usages: UsageForwarder,
    pub(crate) listeners: Listeners,
}

pub(crate) async fn bind(
    address: Option<SocketAddr>,
    listeners: &Listeners,
) -> Result<Option<PageListener>, AgentError> {
    match address {
        None => Ok(None),
        Some(address) => {
            let bound = PageListener::bind(address, listeners.acceptor("http", Limits::pages())).await;
            bound.map(Some).map_err(|source| AgentError::Metrics { address, source })
        }
    }
}

/// Serves `/metrics`, `/healthz` and `/readyz` until `stopping`.
pub(crate) async fn serve(listener: PageListener, pages: Pages, stopping: CancellationToken) {
    let router = Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readiness))
        .with_state(pages)
        .layer(from_fn(refuse_probes));
    listener.serve(router, stopping).await;
}

/// Refuses health checks, so that a verdict never carries the content of these pages.
async fn refuse_probes(request: Request, next: Next) -> Response {
    if request.headers().get(USER_AGENT).is_some_and(|agent| agent == Probe::USER_AGENT) {
        return (StatusCode::FORBIDDEN, "health checks do not reach the mesh's own ports\n").into_response();
    }
    next.run(request).await
}

async fn metrics_page(State(pages): State<Pages>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, OPEN_METRICS)], metrics::text(&pages))
}

/// Ready when connected to an upstream, or when saved copies can be served.
async fn readiness(State(Pages { backend, .. }): State<Pages>) -> (StatusCode, String) {
    let state = backend.upstream.state().borrow().clone();
    match (state.connected, backend.shared.node.store()) {
        (true, _) => (StatusCode::OK, "ready\n".into()),
        (false, Some(_)) => {
            (StatusCode::OK, "ready, serving saved copies; no control plane is reachable\n".into())
        }
        (false, None) => {
            let reason = state.error.unwrap_or_else(|| "not reached yet".into());
            (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("no control plane is reachable and no copy is saved: {reason}\n"),
            )
        }
    }
}
