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
use tokio_util::sync::CancellationToken;

use crate::{error::AgentError, identity::AgentIdentity, metrics, served_rib::AgentRib, signals::Reports};

/// State that the HTTP handlers read.
#[derive(Clone)]
pub(crate) struct Pages {
    pub(crate) backend: AgentRib,
    pub(crate) reports: Reports,
    pub(crate) listeners: Listeners,
    pub(crate) identity: Option<AgentIdentity>,
}

impl Pages {
    pub(crate) fn new(
        backend: AgentRib,
        (reports, listeners, identity): (Reports, Listeners, Option<AgentIdentity>),
    ) -> Self {
        Self { backend, reports, listeners, identity }
    }
}

pub(crate) async fn bind(
    address: Option<SocketAddr>,
    listeners: &Listeners,
) -> Result<Option<PageListener>, AgentError> {
    match address {
        None => Ok(None),
        Some(address) => {
            let bound =
                PageListener::bind(address, listeners.acceptor(&table::AGENT_HTTP, Limits::pages())).await;
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
        .with_state(pages);
    listener.refusing(Probe::USER_AGENT).serve(router, stopping).await;
}

async fn metrics_page(State(pages): State<Pages>, headers: HeaderMap) -> impl IntoResponse {
    fairmesh_exposition::page("agent", &headers, |registry| metrics::register(&pages, registry))
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
