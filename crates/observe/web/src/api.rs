//! The API that the web page reads, at `/ui/api/…`. Access is checked before, by the tenant and the service that a
//! request names.

mod mesh;
mod requests;
mod service;
mod traces;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    http::{Extensions, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use fairmesh_model::{Invalid, RecordKind, ServiceName, Tenant};
use fairmesh_views::{Scope, View};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::{
    command_queries::Commands,
    event_delta::{Shown, text},
    event_streams::{Part, Streams},
    page_files::BUILD,
    page_source::{Refusal, Source},
    proxy_requests::ProxyRequests,
    service_inventory::Inventories,
    shared_snapshots::Snapshots,
};

/// Default window of a request, in seconds.
const DEFAULT_WINDOW: u64 = 60;
/// Windows that the page offers, in seconds. Other windows are rounded up to these, because each distinct window
/// costs a read of the whole history.
const WINDOWS: [u64; 4] = [10, 60, 600, 3_600];
/// Time within which a pair without a report in the window must have had a report to be shown as unknown.
const EARLIER: Duration = Duration::from_secs(600);
/// Number of intervals between two updates of the parts that come from records or from other processes' reports.
const RECORDS_EVERY: u32 = 2;
/// Number of intervals between two updates of parts that change every few minutes, or are slow to read.
const SLOW_EVERY: u32 = 5;

/// Maximum number of concurrent one-off requests. Their responses may need a large shard map.
const MAX_QUESTIONS: usize = 2;

/// State shared by the handlers.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    source: Arc<dyn Source>,
    commands: Commands,
    version: &'static str,
    streams: Streams,
    snapshots: Arc<Snapshots>,
    inventories: Arc<Inventories>,
    proxy_requests: Arc<ProxyRequests>,
    questions: Arc<Semaphore>,
}

impl Served {
    pub(crate) fn new(
        source: Arc<dyn Source>,
        services: Routes,
        (version, closing): (&'static str, CancellationToken),
        proxies: Vec<SocketAddr>,
    ) -> Self {
        let questions = Arc::new(Semaphore::new(MAX_QUESTIONS));
        let proxy_requests = Arc::new(ProxyRequests::new(proxies, closing.clone()));
        let (commands, streams) = (Commands(services), Streams::new(closing));
        let (snapshots, inventories) = Default::default();
        Self { source, commands, version, streams, snapshots, inventories, proxy_requests, questions }
    }

    /// Creates a part of a stream. Pages whose parts have the same `key` share its snapshots.
    fn part(
        &self,
        name: &'static str,
        (every, key): (u32, String),
        make: impl Fn(&Self) -> Shown + Send + Sync + 'static,
    ) -> Part {
        let served = self.clone();
        let make = self.snapshots.shared(format!("{name} {key}"), move || make(&served));
        Part { name, every, make }
    }

    fn view(&self, scope: &Scope, kinds: &[RecordKind]) -> View {
        View::of_readable(self.source.records(scope, kinds))
    }
}

pub(crate) fn router(served: Served) -> Router {
    Router::new()
        .route("/ui/api/live", get(mesh::live))
        .route("/ui/api/live/{tenant}/{service}", get(service::live))
        .route("/ui/api/history/{tenant}/{service}", get(service::history))
        .route("/ui/api/why/{tenant}/{service}", get(service::why))
        .route("/ui/api/planner/{tenant}/{service}", get(service::planner))
        .route("/ui/api/requests/{tenant}/{service}", get(requests::live))
        .route("/ui/api/regions", get(mesh::regions))
        .route("/ui/api/forecast/{region}", get(mesh::forecast))
        .route("/ui/api/imbalance", get(mesh::imbalance))
        .route("/ui/api/security", get(mesh::security))
        .route("/ui/api/audit/{log}", get(mesh::audit))
        .route("/ui/api/fleet", get(mesh::fleet))
        .route("/ui/api/traces", get(traces::list))
        .route("/ui/api/trace/{id}", get(traces::one))
        .with_state(served)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Asked {
    /// Show only this tenant; if empty, all tenants.
    tenant: String,
    /// Show only calls from or to this region; if empty, all calls.
    region: String,
    /// `region` shows a service separately for each region.
    split: String,
    /// Length of the window, in seconds.
    window: u64,
    /// Field by which wasted cores are broken down.
    by: String,
    /// Window for wasted cores, in minutes.
    minutes: u32,
}

impl Asked {
    fn window(&self) -> Duration {
        let seconds = if self.window == 0 { DEFAULT_WINDOW } else { self.window };
        let rounded = WINDOWS.into_iter().find(|window| seconds <= *window);
        Duration::from_secs(rounded.unwrap_or(WINDOWS[WINDOWS.len() - 1]))
    }

    fn scope(&self) -> Result<Scope, Invalid> {
        match self.tenant.as_str() {
            "" => Ok(Scope::All),
            tenant => Ok(Scope::Tenant(Tenant::new(tenant).map_err(|error| error.within("tenant"))?)),
        }
    }
}

/// JSON body of an error response, as in the registry.
#[derive(Serialize)]
struct Failure {
    error: String,
    field: String,
    hint: String,
}

fn failure(status: StatusCode, error: &str, hint: &str) -> Response {
    (status, Json(Failure { error: error.to_owned(), field: String::new(), hint: hint.to_owned() }))
        .into_response()
}

fn invalid(Invalid { field, problem, hint }: Invalid) -> Response {
    (StatusCode::BAD_REQUEST, Json(Failure { error: problem, field, hint })).into_response()
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the release and the build, by which a page notices that it is older than its control plane.
fn hello(version: &str) -> String {
    text(&json!({ "version": version, "build": *BUILD }))
}

fn stream(served: &Served, asker: Extensions, parts: Vec<Part>) -> Response {
    let source = Arc::clone(&served.source);
    let is_permitted = move || source.is_still_permitted(&asker);
    match served.streams.open(hello(served.version), parts, is_permitted) {
        Some(events) => ([(header::CACHE_CONTROL, "no-store")], events).into_response(),
        None => failure(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open", "close some, or retry"),
    }
}

fn named((tenant, service): (String, String)) -> Result<ServiceName, Invalid> {
    ServiceName::new(format!("{tenant}/{service}")).map_err(|error| error.within("service"))
}

fn answer(answer: Option<Result<Value, Refusal>>) -> Response {
    match answer {
        Some(Ok(value)) => ([(header::CACHE_CONTROL, "no-store")], Json(value)).into_response(),
        Some(Err(Refusal { problem, hint })) => failure(StatusCode::NOT_FOUND, &problem, &hint),
        // The runtime has reported the panic.
        None => failure(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be made", "see the log"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_call_window_is_rounded_up_to_offered_one() {
        let rounded = |window| Asked { window, ..Asked::default() }.window().as_secs();
        assert_eq!([0, 1, 10, 11, 601, 9_999].map(rounded), [60, 10, 10, 60, 3_600, 3_600]);
    }
}
