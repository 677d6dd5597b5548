//! Pages about this very proxy, for people as text and for programs as JSON.

use std::{
    collections::HashSet,
    convert::Infallible,
    fmt::Write as _,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use axum::{
    Json, Router,
    extract::{self, FromRequestParts, Path},
    http::{header, request::Parts},
    response::{IntoResponse, Response},
    routing::get,
};
use fairmesh_client::{ServiceName, discovery::ServiceState};
use http::StatusCode;
use serde::Serialize;

use super::{State, about::Shown};
use crate::{
    lasts::{Lasts, Record},
    service::Target,
};

const INDEX: &str = "\
/config                      what this proxy runs, what it was told, and how fresh what it knows is
/services                    the services called so far (JSON)
/last                        why the last request of each service went where it went
/services/TENANT/NAME/last   why the last requests of one service did
/metrics                     counters, as OpenMetrics
/readyz, /healthz            whether it takes requests, whether it lives

/config and /last are for people; ?json, or 'accept: application/json', gives them to programs.
";

/// How an answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json,
}

impl<S: Sync> FromRequestParts<S> for Form {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let query = parts.uri.query().unwrap_or_default();
        let asked = query.split('&').any(|word| matches!(word, "json" | "format=json"));
        let accept = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
        let accepted = accept.is_some_and(|accept| accept.contains("application/json"));
        Ok(if asked || accepted { Self::Json } else { Self::Text })
    }
}

/// One service, for people and programs.
#[derive(Debug, Serialize)]
struct Row {
    service: String,
    /// Answers by the first digit of their status.
    answers: [u64; 5],
    /// The same by the region that they come from.
    regions: Vec<(String, [u64; 5])>,
    /// Those of them that the proxy gave, since no server did.
    faults: u64,
    under_way: u64,
    /// To the head of an answer, on average.
    mean_ms: Option<f64>,
    #[serde(flatten)]
    known: Known,
}

/// What is known of a service.
#[derive(Debug, Default, Serialize)]
struct Known {
    /// `ready`, `waiting`, `unknown` or `unavailable`.
    state: &'static str,
    /// The revision that calls are decided by; 0 when it came from disk.
    revision: u64,
    map_version: u64,
    /// Endpoints that are known, and those of the nearest ring in this proxy's subset.
    endpoints: usize,
    nearest: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'static str>,
}

/// What the proxy goes by.
#[derive(Debug, Serialize)]
struct Routing {
    connected: bool,
    from: Option<String>,
    region: Option<String>,
    data_age_seconds: f64,
    /// The newest of all services.
    revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct Config<'a> {
    #[serde(flatten)]
    about: Shown<'a>,
    ready: bool,
    routing: Routing,
    services: Vec<Row>,
}

pub(super) fn router() -> Router<State> {
    Router::new()
        .route("/", get(|| async { INDEX }))
        .route("/config", get(config))
        .route("/services", get(services))
        .route("/last", get(last))
        .route("/services/{tenant}/{name}/last", get(last_of))
}

async fn services(extract::State(state): extract::State<State>) -> Json<Vec<Row>> {
    Json(rows(&state))
}

fn rows(state: &State) -> Vec<Row> {
    state.services.all().into_iter().map(|(name, target)| Row::of(&name, &target)).collect()
}

async fn config(extract::State(state): extract::State<State>, form: Form) -> Response {
    let services = rows(&state);
    let revision = services.iter().map(|row| row.known.revision).max().unwrap_or_default();
    let config = Config {
        about: state.about.shown(),
        ready: state.ready.load(Relaxed),
        routing: routing(&state, revision),
        services,
    };
    match form {
        Form::Json => Json(config).into_response(),
        Form::Text => config.text().into_response(),
    }
}

fn routing(state: &State, revision: u64) -> Routing {
    let fresh = state.mesh.freshness();
    let home = || state.services.all().into_iter().find_map(|(_, target)| target.known());
    let region = home().map(|(home, _)| home).or_else(|| fresh.location.map(|location| location.region));
    Routing {
        connected: fresh.connected,
        from: fresh.address.map(|address| address.to_string()),
        region: region.map(|region| region.to_string()),
        data_age_seconds: fresh.age.as_secs_f64(),
        revision,
        problem: fresh.error,
    }
}

async fn last(extract::State(state): extract::State<State>, form: Form) -> Response {
    let mut records = kept(&state);
    let mut told = HashSet::new();
    records.retain(|record| told.insert(record.service.clone()));
    shown(&records, form)
}

async fn last_of(
    extract::State(state): extract::State<State>,
    Path((tenant, name)): Path<(String, String)>,
    form: Form,
) -> Response {
    let name = format!("{tenant}/{name}");
    let mut records = kept(&state);
    records.retain(|record| record.service == name);
    match records.is_empty() {
        false => shown(&records, form),
        true => {
            let words = "this service was not called through this proxy; /last names those that were\n";
            (StatusCode::NOT_FOUND, words).into_response()
        }
    }
}

/// What is kept of requests, newest first: the last ones of all, services that nobody declared included, and the last one of
/// each.
fn kept(state: &State) -> Vec<Arc<Record>> {
    let mut records = state.seeing.lasts.as_ref().map(Lasts::all).unwrap_or_default();
    for (_, target) in state.services.all() {
        let last = target.last.record();
        records.extend(last.filter(|last| !records.iter().any(|record| Arc::ptr_eq(record, last))));
    }
    records.sort_by(|a, b| b.time.total_cmp(&a.time));
    records
}

fn shown(records: &[Arc<Record>], form: Form) -> Response {
    let records: Vec<&Record> = records.iter().map(|record| &**record).collect();
    match form {
        Form::Json => Json(records).into_response(),
        Form::Text if records.is_empty() => "no request was made yet\n".into_response(),
        Form::Text => {
            let texts: Vec<_> = records.iter().map(ToString::to_string).collect();
            texts.join("\n").into_response()
        }
    }
}

impl Row {
    fn of(name: &ServiceName, target: &Target) -> Self {
        let golden = &target.golden;
        let regions = golden.answers.each().filter(|(_, signals)| signals.classes() != [0; 5]);
        Self {
            service: name.to_string(),
            answers: golden.answers.classes(),
            regions: regions.map(|(region, signals)| (region.to_owned(), signals.classes())).collect(),
            faults: golden.faults.load(Relaxed),
            under_way: golden.under_way.load(Relaxed),
            mean_ms: golden.answers.mean().map(|seconds| seconds * 1e3),
            known: Known::of(target),
        }
    }
}

impl Known {
    fn of(target: &Target) -> Self {
        let state = |state| Self { state, ..Self::default() };
        match &*target.handle.state() {
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

impl Config<'_> {
    fn text(&self) -> String {
        let Self { about, ready, routing, services } = self;
        let mut text = about.to_string();
        let from = routing.from.as_deref().unwrap_or("nobody");
        let how = match (routing.connected, &routing.problem) {
            (true, _) => "connected".to_owned(),
            (false, problem) => {
                format!("goes by memory or disk: {}", problem.as_deref().unwrap_or("not connected"))
            }
        };
        let (age, revision) = (routing.data_age_seconds, routing.revision);
        let region = routing.region.as_deref().unwrap_or("unknown");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<22} {}", "ready", if *ready { "yes" } else { "no" });
        let _ = writeln!(text, "{:<22} {from}: {how}; {age:.1} s old, revision {revision}", "routing");
        let _ = writeln!(text, "{:<22} {region}", "region");
        for row in services {
            let Known { state, revision, endpoints, nearest, .. } = &row.known;
            let _ = writeln!(
                text,
                "{:<22} {} {state}, revision {revision}, {endpoints} endpoints, {nearest} of them near",
                "service", row.service
            );
        }
        text
    }
}
