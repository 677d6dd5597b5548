//! The pages for operators: what this proxy runs, whether it is ready, what it has counted, and why requests went where they
//! went.

mod about;
mod pages;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Router, extract, http::header, response::IntoResponse, routing::get};
use fairmesh_client::{Mesh, Stats};
use fairmesh_listen::{Limits, Listeners, PageListener};
use fairmesh_server::{Admission, Server};
use http::StatusCode;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};
use tokio::{net::TcpListener, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

pub(crate) use self::about::About;
use crate::{
    exposition,
    insight::Seeing,
    metrics::{Captured, Metrics},
    service::Services,
};

/// What OpenMetrics text is called on the wire.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long pages may take at the end.
const LAST_PAGES: Duration = Duration::from_secs(1);

/// What the pages are about.
#[derive(Clone, Debug)]
pub(crate) struct State {
    mesh: Mesh,
    services: Arc<Services>,
    metrics: Arc<Metrics>,
    seeing: Arc<Seeing>,
    about: Arc<About>,
    ready: Arc<AtomicBool>,
    inbound: Option<Server>,
    listeners: Listeners,
}

impl State {
    pub(crate) fn new(
        mesh: Mesh,
        services: Arc<Services>,
        (metrics, seeing): (Arc<Metrics>, Arc<Seeing>),
        about: About,
    ) -> Self {
        let about = Arc::new(about);
        Self {
            mesh,
            services,
            metrics,
            seeing,
            about,
            ready: Arc::default(),
            inbound: None,
            listeners: Listeners::default(),
        }
    }

    /// Shows an endpoint that is served for a program, too.
    pub(crate) fn showing(self, inbound: Option<Server>) -> Self {
        Self { inbound, ..self }
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Relaxed);
    }
}

/// The pages, served until they are told to end.
#[derive(Debug)]
pub(crate) struct Pages {
    served: JoinHandle<()>,
    stopping: CancellationToken,
}

impl Pages {
    /// Serves no more: who reads a page slowly, or asks for none, holds nobody up.
    pub(crate) async fn stop(mut self) {
        self.stopping.cancel();
        let _ = timeout(LAST_PAGES, &mut self.served).await;
        self.served.abort();
    }
}

/// Serves the pages.
pub(crate) fn start(listener: TcpListener, state: State) -> Pages {
    let listener = PageListener::new(listener, state.listeners.acceptor("admin", Limits::pages()));
    let router = Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readiness))
        .merge(pages::router())
        .with_state(state);
    let stopping = CancellationToken::new();
    let served = tokio::spawn(listener.serve(router, stopping.clone()));
    Pages { served, stopping }
}

async fn readiness(extract::State(state): extract::State<State>) -> (StatusCode, &'static str) {
    match state.ready.load(Relaxed) {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "starting, or draining\n"),
    }
}

async fn metrics_page(extract::State(state): extract::State<State>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, OPEN_METRICS)], text(&state))
}

fn text(state: &State) -> String {
    let mut registry = Registry::with_prefix("fairmesh_proxy");
    connections(&mut registry, &state.metrics);
    tunnels(&mut registry, &state.metrics);
    state.metrics.tls.register(&mut registry);
    captured(&mut registry, &state.metrics.captured);
    calls(&mut registry, &state.mesh.stats());
    exposition::register(&mut registry, &state.services, &state.seeing);
    if let Some(server) = &state.inbound {
        inbound(&mut registry, &server.admission());
    }
    state.listeners.register(&mut registry);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text
}

fn connections(registry: &mut Registry, metrics: &Metrics) {
    let open = ConstGauge::new(metrics.open.load(Relaxed));
    registry.register("connections_open", "Connections of programs", open);
    let counters: [(&str, &str, &AtomicU64); 11] = [
        ("connections_accepted", "Connections of programs accepted", &metrics.accepted),
        ("connections_broken", "Connections of programs that ended early", &metrics.broken),
        ("connections_cut", "Connections cut off at the end of a drain", &metrics.cut),
        ("connections_restless", "Connections that took back most of their requests", &metrics.restless),
        (
            "connections_flooding",
            "Connections that sent little but frames that ask for nothing",
            &metrics.flooding,
        ),
        (
            "accepts_delayed",
            "Waits for a place or a descriptor before a connection was accepted",
            &metrics.accepts_delayed,
        ),
        ("answers_not_taken", "Answers that were dropped since nobody made room for them", &metrics.untaken),
        (
            "requests_for_nobody",
            "Requests for hosts of no service, or of one that nobody declared",
            &metrics.nobody,
        ),
        ("requests_refused", "Requests for what a proxy does not do", &metrics.refused),
        ("requests_too_large", "Requests with bodies that are too long", &metrics.too_large),
        ("log_lines_dropped", "Access log lines that nobody read in time", &metrics.log_lines_dropped),
    ];
    for (name, help, counter) in counters {
        registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
    }
}

fn tunnels(registry: &mut Registry, metrics: &Metrics) {
    let open = ConstGauge::new(metrics.tunnels_open.load(Relaxed));
    registry.register("tunnels_open", "Tunnels: upgraded connections, CONNECT, TCP", open);
    let counters: [(&str, &str, &AtomicU64); 5] = [
        ("tunnels", "Tunnels begun", &metrics.tunnels),
        ("tunnels_idle", "Tunnels ended since nothing came over them", &metrics.tunnels_idle),
        ("tunnels_broken", "Tunnels that one side broke", &metrics.tunnels_broken),
        (
            "proxy_heads_refused",
            "Connections without the PROXY protocol where it was due",
            &metrics.proxy_heads_refused,
        ),
        ("tcp_refused", "Connections over TCP without a server to take them", &metrics.tcp_refused),
    ];
    for (name, help, counter) in counters {
        registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
    }
    let [up, down] = metrics.bytes().map(ConstCounter::new);
    registry.register("tunnel_sent_bytes", "Carried to servers by tunnels that have ended", up);
    registry.register("tunnel_received_bytes", "Carried from servers by tunnels that have ended", down);
}

fn inbound(registry: &mut Registry, admission: &Admission) {
    let limit = ConstGauge::new(u64::from(admission.limit.unwrap_or(u32::MAX)));
    registry.register("inbound_limit", "Requests that the program gets at one time now", limit);
    let under_way = ConstGauge::new(u64::from(admission.outstanding.calls));
    registry.register("inbound_under_way", "Requests that the program works on, without streams", under_way);
    let counters = [
        ("inbound_refused", "Requests refused since the program had as many as it takes", admission.refused),
        ("inbound_late", "Requests cut off since their callers' time had passed", admission.late),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
}

fn captured(registry: &mut Registry, captured: &Captured) {
    let counters: [(&str, &str, &AtomicU64); 6] = [
        ("captured_served", "Captured connections that were for services, or spoke HTTP/2", &captured.served),
        (
            "captured_passed_on",
            "Captured connections that went on to where they were meant to go",
            &captured.passed_on,
        ),
        ("captured_in_vain", "Those of them, and requests, that nobody took there", &captured.in_vain),
        (
            "captured_requests_passed_on",
            "Requests over HTTP/2 that went on to where their connections were meant to go",
            &captured.requests_passed_on,
        ),
        (
            "captured_refused",
            "Captured connections and requests that were not let through",
            &captured.refused,
        ),
        (
            "captured_looped",
            "Connections to be captured that were the proxy's own, or not redirected",
            &captured.looped,
        ),
    ];
    for (name, help, counter) in counters {
        registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
    }
}

fn calls(registry: &mut Registry, stats: &Stats) {
    let counters = [
        ("tries", "Tries to send a request to an endpoint", stats.attempts),
        ("retries", "Tries after the first", stats.retries),
        ("retries_refused", "Retries that the budget refused", stats.retry_budget_exhausted),
        ("hedges", "Tries made beside one that took long", stats.hedges),
        ("limited", "Calls that a limit of a policy did not let through", stats.rate_limited_calls),
        ("aborted", "Calls that a policy answered with a failure on purpose", stats.injected_aborts),
        ("mirrored", "Copies of calls sent to another service", stats.mirrored_calls),
        ("mirrors_failed", "Copies of calls that got no answer", stats.mirrors_failed),
        ("mirrors_skipped", "Copies of calls that were not sent", stats.mirrors_skipped),
        ("unroutable", "Tries for which there was no endpoint to choose", stats.attempts_without_endpoint),
        (
            "lookaside_missed",
            "Calls by the records, since a service's own lookaside had never answered",
            stats.lookaside_fallbacks,
        ),
        ("panics", "Tries made while nobody was avoided", stats.panic_picks),
        ("upstream_connections_opened", "Connections to endpoints opened", stats.connections_opened),
        ("upstream_reused", "Tries over a connection that had carried another", stats.connection_reuses),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
    let open = ConstGauge::new(stats.connections_open);
    registry.register("upstream_connections_open", "Connections to endpoints", open);
    let age = ConstGauge::new(stats.data_age.as_secs_f64());
    registry.register_with_unit("data_age", "How old what is known may be", Unit::Seconds, age);
}
