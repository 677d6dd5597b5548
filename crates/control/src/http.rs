//! What is served over HTTP: the registry as JSON, health, metrics.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    ControlError,
    metrics::{Metrics, Sources},
};

/// What the handlers share.
pub(crate) struct Shared {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) sources: Sources,
    pub(crate) closing: CancellationToken,
}

/// Listens on `address`.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, ControlError> {
    TcpListener::bind(address).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ControlError::HttpInUse { address },
        _ => ControlError::Http { address, source },
    })
}

/// Everything under one roof.
pub(crate) fn router(shared: Arc<Shared>, registry: Router) -> Router {
    let own = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(shared);
    own.merge(registry)
}

/// Serves until `closing` is cancelled, and then lets requests under way finish for at most `drain`.
pub(crate) async fn serve(
    router: Router,
    listener: TcpListener,
    closing: CancellationToken,
    drain: Duration,
) -> io::Result<()> {
    let overdue = async {
        closing.cancelled().await;
        tokio::time::sleep(drain).await;
    };
    let serving = axum::serve(listener, router).with_graceful_shutdown(closing.clone().cancelled_owned());
    tokio::select! {
        served = serving => served,
        () = overdue => Ok(()),
    }
}

/// Whether new callers should come here.
async fn ready(State(shared): State<Arc<Shared>>) -> (StatusCode, String) {
    match (shared.sources.store.fatal_error(), shared.closing.is_cancelled()) {
        (Some(reason), _) => (StatusCode::SERVICE_UNAVAILABLE, format!("the store: {reason}\n")),
        (None, true) => (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n".into()),
        (None, false) => (StatusCode::OK, "ready\n".into()),
    }
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    match shared.metrics.encode(&shared.sources) {
        Ok(text) => {
            let form = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(CONTENT_TYPE, form)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
