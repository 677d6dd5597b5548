//! What the page reads: `/ui/api/…`. Who may read it is decided before, by the tenant and the service that are named.

mod mesh;
mod service;

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    http::{StatusCode, header},
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
    commands::Commands,
    files::BUILD,
    inventory::Inventories,
    shown::{Shown, text},
    snapshots::Snapshots,
    source::{Refusal, Source},
    streams::{Part, Streams},
};

/// The window of a request without one, in seconds.
const DEFAULT_WINDOW: u64 = 60;
/// The windows of pages, in seconds. Others are rounded up to them: each is a reading of the whole history.
const WINDOWS: [u64; 4] = [10, 60, 600, 3_600];
/// Pairs without a report in the window are shown as unknown if they had one in this time.
const EARLIER: Duration = Duration::from_secs(600);
/// Intervals between two looks at records, and at what other processes report.
const RECORDS_EVERY: u32 = 2;
/// Intervals between two looks at what changes by minutes, or takes long to read.
const SLOW_EVERY: u32 = 5;

/// The most questions at once: an answer may need a large shard map.
const MAX_QUESTIONS: usize = 2;

/// What the handlers share.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    source: Arc<dyn Source>,
    commands: Commands,
    version: &'static str,
    streams: Streams,
    snapshots: Arc<Snapshots>,
    inventories: Arc<Inventories>,
    questions: Arc<Semaphore>,
}

impl Served {
    pub(crate) fn new(
        source: Arc<dyn Source>,
        services: Routes,
        (version, closing): (&'static str, CancellationToken),
    ) -> Self {
        let questions = Arc::new(Semaphore::new(MAX_QUESTIONS));
        let (commands, streams) = (Commands(services), Streams::new(closing));
        let (snapshots, inventories) = Default::default();
        Self { source, commands, version, streams, snapshots, inventories, questions }
    }

    /// A part of a stream. Pages whose parts have the same `key` share what is made.
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
        .route("/ui/api/regions", get(mesh::regions))
        .route("/ui/api/forecast/{region}", get(mesh::forecast))
        .route("/ui/api/imbalance", get(mesh::imbalance))
        .route("/ui/api/security", get(mesh::security))
        .route("/ui/api/audit/{log}", get(mesh::audit))
        .route("/ui/api/fleet", get(mesh::fleet))
        .with_state(served)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Asked {
    /// Only this tenant; empty: all tenants.
    tenant: String,
    /// Only calls from or to this region; empty: calls of all regions.
    region: String,
    /// `region`: services of each region are told apart.
    split: String,
    /// Seconds.
    window: u64,
    /// Breakdown of wasted cores.
    by: String,
    /// Window of wasted cores, in minutes.
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

/// Error body, as in the registry.
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

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The release and the build, by which a page knows that it is older than its control plane.
fn hello(version: &str) -> String {
    text(&json!({ "version": version, "build": *BUILD }))
}

fn stream(served: &Served, parts: Vec<Part>) -> Response {
    match served.streams.open(hello(served.version), parts) {
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
    fn window_is_rounded_up_to_one_of_the_page() {
        let rounded = |window| Asked { window, ..Asked::default() }.window().as_secs();
        assert_eq!([0, 1, 10, 11, 601, 9_999].map(rounded), [60, 10, 10, 60, 3_600, 3_600]);
    }
}
