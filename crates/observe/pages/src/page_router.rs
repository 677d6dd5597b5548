//! The pages that every process has.

use std::sync::Arc;

use axum::{
    Router, body::Body, extract::State, middleware::from_fn_with_state, response::IntoResponse, routing::get,
};
use fairmesh_metrics::DurationFamily;
use fairmesh_otlp::MetricsExporter;
use http::{HeaderMap, Response, StatusCode};
use prometheus_client::registry::Registry;
use tokio::task::spawn_blocking;

use crate::{HostNames, exposition, host_names, metrics_push};

/// A process as shown by its admin pages.
pub trait Process: Send + Sync + 'static {
    /// Kind of the process in `fairmesh_build_info`, such as `agent`.
    const KIND: &'static str;

    /// Registers the current metrics of the process. Names begin with `fairmesh_`; metrics that only this kind of
    /// process has are registered under a prefix with the kind.
    fn register(&self, metrics: &mut Registry);

    /// Returns the current durations of calls, named as in OpenTelemetry.
    fn calls(&self) -> Vec<DurationFamily> {
        Vec::new()
    }

    /// Returns whether load balancers and programs should use the process.
    fn readiness(&self) -> impl Future<Output = Readiness> + Send;
}

/// Whether a process is ready, with the reason in a line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The process is ready. The text says how.
    Ready(String),
    /// The process is not ready, for this reason.
    Unready(String),
}

impl Readiness {
    /// Returns the ready state without further information.
    pub fn ready() -> Self {
        Self::Ready("ready".to_owned())
    }
}

/// The pages of a process, and the push of its metrics to a collector.
#[derive(Debug)]
pub struct ProcessRouter {
    pub(crate) routes: Router,
    pub(crate) push: Option<Arc<MetricsExporter>>,
    hosts: HostNames,
}

/// State shared by the handlers of the pages.
struct Shown<P> {
    process: Arc<P>,
    push: Option<Arc<MetricsExporter>>,
}

/// Creates the pages `/metrics`, `/healthz` and `/readyz` of a process, which may add its own pages. Starts pushing
/// metrics to a collector if the OpenTelemetry environment variables name one. Must be called within a tokio runtime.
pub fn router<P: Process>(process: Arc<P>) -> ProcessRouter {
    let push = metrics_push::start(&process).map(Arc::new);
    let shown = Arc::new(Shown { process, push: push.clone() });
    let routes = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz::<P>))
        .route("/metrics", get(metrics::<P>))
        .with_state(shown);
    ProcessRouter { routes, push, hosts: HostNames::default() }
}

impl ProcessRouter {
    /// Adds pages of the process.
    #[must_use]
    pub fn merge(self, own: Router) -> Self {
        Self { routes: self.routes.merge(own), ..self }
    }

    /// Sets the names under which browsers may address the pages, besides `localhost` and IP addresses.
    #[must_use]
    pub fn at_hosts(self, hosts: HostNames) -> Self {
        Self { hosts, ..self }
    }

    /// Returns all pages, guarded against pages of other sites.
    pub(crate) fn guarded(self) -> (Router, Option<Arc<MetricsExporter>>) {
        let guard = from_fn_with_state(Arc::new(self.hosts), host_names::guard);
        (self.routes.layer(guard), self.push)
    }

    /// Applies a layer to all pages.
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

/// Serves the metrics. They are read on a thread that may block, because long reads hold the lock of some metrics.
async fn metrics<P: Process>(State(shown): State<Arc<Shown<P>>>, headers: HeaderMap) -> Response<Body> {
    let counts = shown.push.as_ref().map(|push| push.counts());
    match spawn_blocking(move || exposition::gather(&*shown.process, counts)).await {
        Ok(families) => exposition::page(&families, &headers).map(Body::from),
        // Reading a metric panicked, or the process is stopping.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
