//! The pages that every process has.

use std::sync::Arc;

use axum::{Router, extract::State, response::IntoResponse, routing::get};
use http::{HeaderMap, StatusCode};
use prometheus_client::registry::Registry;

use crate::exposition;

/// What a process shows of itself.
pub trait Process: Send + Sync + 'static {
    /// Its kind in `fairmesh_build_info`, such as `agent`.
    const KIND: &'static str;

    /// Registers its metrics as they are now. Names begin with `fairmesh_`; those of the process alone are registered below its
    /// kind.
    fn register(&self, metrics: &mut Registry);

    /// Whether load balancers and programs should come to it.
    fn readiness(&self) -> impl Future<Output = Readiness> + Send;
}

/// Whether a process is ready, and why, in a line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It serves; the reason says how.
    Ready(String),
    /// It does not serve, for this reason.
    Unready(String),
}

impl Readiness {
    /// It serves, and there is nothing to say.
    pub fn ready() -> Self {
        Self::Ready("ready".to_owned())
    }
}

/// `/metrics`, `/healthz` and `/readyz` of a process, to which it adds its own pages.
pub fn router<P: Process>(process: Arc<P>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz::<P>))
        .route("/metrics", get(metrics::<P>))
        .with_state(process)
}

async fn readyz<P: Process>(State(process): State<Arc<P>>) -> (StatusCode, String) {
    match process.readiness().await {
        Readiness::Ready(reason) => (StatusCode::OK, reason + "\n"),
        Readiness::Unready(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n"),
    }
}

async fn metrics<P: Process>(State(process): State<Arc<P>>, headers: HeaderMap) -> impl IntoResponse {
    exposition::page(P::KIND, &headers, |metrics| process.register(metrics))
}
