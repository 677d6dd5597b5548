//! Pages about the proxy itself, as text and as JSON.

use std::{
    collections::{BTreeSet, HashSet},
    convert::Infallible,
    fmt::{self, Write as _},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use axum::{
    Json, Router,
    extract::{self, FromRequestParts, Path},
    http::{header, request::Parts},
    response::{IntoResponse, Response},
    routing::get,
};
use fairmesh_calls::{ServiceName, discovery::ServiceState, forwarding::service_state};
use fairmesh_edge::{
    observe::recent_requests::{RecentRequests, RequestRecord},
    services::target::Target,
};
use fairmesh_identity::RemoteKey;
use http::StatusCode;
use serde::Serialize;

use crate::admin::{endpoints_page, proxy_info::ProxyInfoView, routes_page, state::AdminState, tap_page};

const INDEX: &str = "\
/config                      version, listeners, options, and age of the routing information
/services                    the services called so far (JSON)
/last                        why the last request of each service went where it went
/services/TENANT/NAME/last   why the last requests of one service did
/services/TENANT/NAME/endpoints  the endpoints of one service as this proxy sees them, with its ejections (JSON)
/services/TENANT/NAME/routes     the policy by which this proxy routes calls of one service (JSON)
/tap?service=TENANT/NAME     requests of one service as they complete, a line of JSON each; path=, method=, status=, failed=true,
                             minMs= and oneIn= select
/metrics                     counters, as OpenMetrics
/readyz, /healthz            readiness and liveness

/config and /last are text; ?json, or 'accept: application/json', selects JSON.
";

/// Format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageFormat {
    Text,
    Json,
}

impl<S: Sync> FromRequestParts<S> for PageFormat {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let query = parts.uri.query().unwrap_or_default();
        let in_query = query.split('&').any(|word| matches!(word, "json" | "format=json"));
        let accept = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
        let accepted = accept.is_some_and(|accept| accept.contains("application/json"));
        Ok(if in_query || accepted { Self::Json } else { Self::Text })
    }
}

/// One service.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceRow {
    service: String,
    /// Responses by status class, 1xx to 5xx.
    responses: [u64; 5],
    /// The same by region of the server.
    regions: Vec<(String, [u64; 5])>,
    /// Responses of the proxy itself because no server responded.
    faults: u64,
    in_flight: u64,
    /// Endpoints that this proxy avoids because of the outcomes of its calls, those of backends included.
    ejected: usize,
    /// The other services that its routes send calls to.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    backends: BTreeSet<String>,
    /// Mean time to the response headers.
    mean_ms: Option<f64>,
    #[serde(flatten)]
    status: ServiceStatus,
}

/// State of the routing information of a service.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceStatus {
    /// `ready`, `waiting`, `unknown` or `unavailable`.
    state: &'static str,
    /// Revision of the records; 0 if they were read from disk.
    revision: u64,
    map_version: u64,
    /// All endpoints, and those of the nearest ring in this proxy's subset.
    endpoints: usize,
    nearest: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'static str>,
}

/// Source and age of the routing information.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RoutingStatus {
    connected: bool,
    from: Option<String>,
    region: Option<String>,
    /// The identity by which services know this proxy.
    identity: Option<String>,
    data_age_seconds: f64,
    /// Highest revision of all services.
    revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigPage<'a> {
    #[serde(flatten)]
    about: ProxyInfoView<'a>,
    ready: bool,
    routing: RoutingStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_server: Option<KeyServerStatus>,
    services: Vec<ServiceRow>,
}

/// The key server of the listeners' certificate.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct KeyServerStatus {
    key: String,
    /// Why it does not sign at present.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

pub(crate) fn router() -> Router<AdminState> {
    Router::new()
        .route("/", get(|| async { INDEX }))
        .route("/config", get(config))
        .route("/services", get(services))
        .route("/last", get(last_requests))
        .route("/services/{tenant}/{name}/last", get(last_requests_of))
        .route("/services/{tenant}/{name}/endpoints", get(endpoints_page::endpoints))
        .route("/services/{tenant}/{name}/routes", get(routes_page::routes))
        .route("/tap", get(tap_page::tap))
}

async fn services(extract::State(state): extract::State<AdminState>) -> Json<Vec<ServiceRow>> {
    Json(rows(&state))
}

fn rows(state: &AdminState) -> Vec<ServiceRow> {
    let row = |(name, target): (ServiceName, Arc<Target>)| {
        let backends = target.backends();
        let handles = backends.iter().filter_map(|name| state.mesh.service(name.to_string()).ok());
        let ejected = handles.map(|handle| handle.ejected_endpoints()).sum::<usize>();
        ServiceRow {
            ejected: ejected + target.handle.ejected_endpoints(),
            backends: backends.iter().map(ToString::to_string).collect(),
            ..ServiceRow::of(&name, &target)
        }
    };
    state.services.all().into_iter().map(row).collect()
}

async fn config(extract::State(state): extract::State<AdminState>, form: PageFormat) -> Response {
    let services = rows(&state);
    let revision = services.iter().map(|row| row.status.revision).max().unwrap_or_default();
    let config = ConfigPage {
        about: state.about.shown(),
        ready: state.ready.load(Relaxed),
        routing: routing(&state, revision),
        key_server: state.key_server.as_ref().map(|key| KeyServerStatus::of(key)),
        services,
    };
    match form {
        PageFormat::Json => Json(config).into_response(),
        PageFormat::Text => config.text().into_response(),
    }
}

fn routing(state: &AdminState, revision: u64) -> RoutingStatus {
    let fresh = state.mesh.freshness();
    let home = || state.services.all().into_iter().find_map(|(_, target)| target.home_and_revision());
    let region = home().map(|(home, _)| home).or_else(|| fresh.location.map(|location| location.region));
    RoutingStatus {
        connected: fresh.connected,
        from: fresh.address.map(|address| address.to_string()),
        region: region.map(|region| region.to_string()),
        identity: state.mesh.identity().map(|id| id.to_string()),
        data_age_seconds: fresh.age.as_secs_f64(),
        revision,
        problem: fresh.error,
    }
}

async fn last_requests(extract::State(state): extract::State<AdminState>, form: PageFormat) -> Response {
    let mut records = recorded(&state);
    let mut seen = HashSet::new();
    records.retain(|record| seen.insert(record.service.clone()));
    render(&records, form)
}

async fn last_requests_of(
    extract::State(state): extract::State<AdminState>,
    Path((tenant, name)): Path<(String, String)>,
    form: PageFormat,
) -> Response {
    let name = format!("{tenant}/{name}");
    let mut records = recorded(&state);
    records.retain(|record| record.service == name);
    match records.is_empty() {
        false => render(&records, form),
        true => {
            let message = "this service was not called through this proxy; /last lists those that were\n";
            (StatusCode::NOT_FOUND, message).into_response()
        }
    }
}

/// Records of requests, newest first: the last ones of all services, undeclared ones included, and the last one of each
/// service.
fn recorded(state: &AdminState) -> Vec<Arc<RequestRecord>> {
    let mut records = state.observer.recent_requests.as_ref().map(RecentRequests::all).unwrap_or_default();
    for (_, target) in state.services.all() {
        let last = target.last.record();
        records.extend(last.filter(|last| !records.iter().any(|record| Arc::ptr_eq(record, last))));
    }
    records.sort_by(|a, b| b.time.total_cmp(&a.time));
    records
}

fn render(records: &[Arc<RequestRecord>], form: PageFormat) -> Response {
    let records: Vec<&RequestRecord> = records.iter().map(|record| &**record).collect();
    match form {
        PageFormat::Json => Json(records).into_response(),
        PageFormat::Text if records.is_empty() => "no requests yet\n".into_response(),
        PageFormat::Text => {
            let texts: Vec<_> = records.iter().map(ToString::to_string).collect();
            texts.join("\n").into_response()
        }
    }
}

impl ServiceRow {
    fn of(name: &ServiceName, target: &Target) -> Self {
        let metrics = &target.metrics;
        let total = metrics.responses.total();
        let regions = total.iter().filter(|(_, region_metrics)| region_metrics.classes() != [0; 5]);
        Self {
            service: name.to_string(),
            responses: metrics.responses.classes(),
            regions: regions
                .map(|(region, region_metrics)| (region.to_owned(), region_metrics.classes()))
                .collect(),
            faults: metrics.faults.load(Relaxed),
            in_flight: metrics.in_flight.load(Relaxed),
            ejected: 0,
            backends: BTreeSet::new(),
            mean_ms: metrics.responses.mean_seconds().map(|seconds| seconds * 1e3),
            status: ServiceStatus::of(target),
        }
    }
}

impl ServiceStatus {
    fn of(target: &Target) -> Self {
        let state = |state| Self { state, ..Self::default() };
        match &*service_state(&target.handle) {
            ServiceState::Waiting => state("waiting"),
            ServiceState::Unknown => state("unknown"),
            ServiceState::Unavailable(_) => state("unavailable"),
            ServiceState::Ready(ready) => Self {
                revision: ready.revision,
                map_version: ready.map_version,
                endpoints: ready.upstream.candidates().count(),
                nearest: ready.upstream.nearest().len(),
                policy: Some(ready.upstream.policy().balancing.policy.as_str()),
                ..state("ready")
            },
        }
    }
}

impl KeyServerStatus {
    fn of(key: &RemoteKey) -> Self {
        Self { key: key.name().to_owned(), problem: key.problem() }
    }
}

impl fmt::Display for KeyServerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            None => write!(f, "{}: signs", self.key),
            Some(problem) => write!(f, "{}: does not sign: {problem}", self.key),
        }
    }
}

impl ConfigPage<'_> {
    fn text(&self) -> String {
        let Self { about, ready, routing, key_server, services } = self;
        let mut text = about.to_string();
        let from = routing.from.as_deref().unwrap_or("none");
        let state = match (routing.connected, &routing.problem) {
            (true, _) => "connected".to_owned(),
            (false, problem) => {
                format!(
                    "disconnected, using memory or disk: {}",
                    problem.as_deref().unwrap_or("not connected")
                )
            }
        };
        let (age, revision) = (routing.data_age_seconds, routing.revision);
        let region = routing.region.as_deref().unwrap_or("unknown");
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{:<22} {}", "ready", if *ready { "yes" } else { "no" });
        let _ = writeln!(text, "{:<22} {from}: {state}; {age:.1} s old, revision {revision}", "routing");
        let _ = writeln!(text, "{:<22} {region}", "region");
        if let Some(identity) = &routing.identity {
            let _ = writeln!(text, "{:<22} {identity}", "identity");
        }
        if let Some(key_server) = key_server {
            let _ = writeln!(text, "{:<22} {key_server}", "key server");
        }
        for row in services {
            let ServiceStatus { state, revision, endpoints, nearest, .. } = &row.status;
            let _ = writeln!(
                text,
                "{:<22} {} {state}, revision {revision}, {endpoints} endpoints, {nearest} of them near",
                "service", row.service
            );
        }
        text
    }
}
