//! Serves the admin pages.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use axum::{Router, extract, response::IntoResponse, routing::get};
use fairmesh_listen::{Limits, PageListener, table};
use fairmesh_model::Probe;
use http::{HeaderMap, StatusCode};
use tokio::{net::TcpListener, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::admin::{metrics, pages, state::AdminState};

/// Time for requests in flight when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// A running admin server.
#[derive(Debug)]
pub(crate) struct AdminServer {
    served: JoinHandle<()>,
    shutdown: CancellationToken,
}

impl AdminServer {
    /// Stops within [`STOP_TIMEOUT`], so that a slow reader does not delay the proxy.
    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        let _ = timeout(STOP_TIMEOUT, &mut self.served).await;
        self.served.abort();
    }
}

/// Starts the admin server.
pub(crate) fn start(listener: TcpListener, state: AdminState) -> AdminServer {
    let listener =
        PageListener::new(listener, state.listeners.acceptor(&table::PROXY_ADMIN, Limits::pages()));
    let router = Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readiness))
        .merge(pages::router())
        .with_state(state);
    let shutdown = CancellationToken::new();
    let served = tokio::spawn(listener.refusing(Probe::USER_AGENT).serve(router, shutdown.clone()));
    AdminServer { served, shutdown }
}

async fn readiness(extract::State(state): extract::State<AdminState>) -> (StatusCode, String) {
    match state.ready.load(Relaxed) {
        true => (StatusCode::OK, "ready\n".to_owned()),
        false => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", state.waits_for())),
    }
}

async fn metrics_page(
    extract::State(state): extract::State<AdminState>,
    headers: HeaderMap,
) -> impl IntoResponse {
    fairmesh_exposition::page("proxy", &headers, |registry| metrics::register(&state, registry))
}
