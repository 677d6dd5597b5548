//! The pages that every process has.

use std::sync::Arc;

use axum::{Router, body::Body, extract::State, response::IntoResponse, routing::get};
use fairmesh_metrics::DurationFamily;
use fairmesh_otlp::MetricsExporter;
use http::{HeaderMap, Response, StatusCode};
use prometheus_client::registry::Registry;
use tokio::task::spawn_blocking;

use crate::{exposition, push};

/// What a process shows of itself.
pub trait Process: Send + Sync + 'static {
    /// Its kind in `fairmesh_build_info`, such as `agent`.
    const KIND: &'static str;

    /// Registers its metrics as they are now. Names begin with `fairmesh_`; those of the process alone are registered below its
    /// kind.
    fn register(&self, metrics: &mut Registry);

    /// Durations of calls as they are now, by the names of OpenTelemetry.
    fn calls(&self) -> Vec<DurationFamily> {
        Vec::new()
    }

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

/// The pages of a process, and the push of its metrics to a collector.
#[derive(Debug)]
pub struct ProcessRouter {
    pub(crate) routes: Router,
    pub(crate) push: Option<Arc<MetricsExporter>>,
}

/// What the pages show.
struct Shown<P> {
    process: Arc<P>,
    push: Option<Arc<MetricsExporter>>,
}

/// `/metrics`, `/healthz` and `/readyz` of a process, to which it adds its own pages. Metrics are pushed to a collector from now on if
/// the variables of OpenTelemetry name one. Must be called within a tokio runtime.
pub fn router<P: Process>(process: Arc<P>) -> ProcessRouter {
    let push = push::start(&process).map(Arc::new);
    let shown = Arc::new(Shown { process, push: push.clone() });
    let routes = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz::<P>))
        .route("/metrics", get(metrics::<P>))
        .with_state(shown);
    ProcessRouter { routes, push }
}

impl ProcessRouter {
    /// Adds pages of the process.
    #[must_use]
    pub fn merge(self, own: Router) -> Self {
        Self { routes: self.routes.merge(own), ..self }
    }

    /// Changes all pages, as a layer in front of them does.
    #[must_use]
    pub fn map(self, change: impl FnOnce(Router) -> Router) -> Self {
        Self { routes: change(self.routes), ..self }
    }
}

async fn readyz<P: Process>(State(shown): State<Arc<Shown<P>>>) -> (StatusCode, String) {
    match shown.process.readiness().await {
        Readiness::Ready(reason) => (StatusCode::OK, reason + "\n"),
        Readiness::Unready(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n"),
    }
}

/// Metrics are read on a thread that may block: some are behind a lock that long reads hold.
async fn metrics<P: Process>(State(shown): State<Arc<Shown<P>>>, headers: HeaderMap) -> Response<Body> {
    let counts = shown.push.as_ref().map(|push| push.counts());
    match spawn_blocking(move || exposition::gather(&*shown.process, counts)).await {
        Ok(families) => exposition::page(&families, &headers).map(Body::from),
        // A metric panicked, or the process stops.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
