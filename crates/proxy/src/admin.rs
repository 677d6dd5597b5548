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
    registry.register("connections_open", "Open connections of programs", open);
    let counters: [(&str, &str, &AtomicU64); 12] = [
        ("connections_accepted", "Accepted connections of programs", &metrics.accepted),
        ("connections_failed", "Connections of programs that failed", &metrics.broken),
        ("connections_drain_timeout", "Connections closed at the drain deadline", &metrics.cut),
        ("rapid_reset_connections", "HTTP/2 connections closed by the rapid-reset guard", &metrics.restless),
        (
            "frame_flood_connections",
            "HTTP/2 connections closed for a flood of control frames",
            &metrics.flooding,
        ),
        (
            "accepts_delayed",
            "Accepts delayed by the maximum of connections or of descriptors",
            &metrics.accepts_delayed,
        ),
        ("stalled_responses", "HTTP/2 responses dropped because the client read nothing", &metrics.untaken),
        ("unrouted_requests", "Requests whose host matches no declared service", &metrics.nobody),
        ("unsupported_requests", "Requests that the proxy does not support", &metrics.refused),
        ("requests_too_large", "Requests with bodies above the maximum size", &metrics.too_large),
        (
            "access_log_lines_dropped",
            "Access log lines dropped because the reader was slow",
            &metrics.log_lines_dropped,
        ),
        ("loops", "Requests that this proxy had forwarded to itself", &metrics.looped),
    ];
    for (name, help, counter) in counters {
        registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
    }
}

fn tunnels(registry: &mut Registry, metrics: &Metrics) {
    let open = ConstGauge::new(metrics.tunnels_open.load(Relaxed));
    registry.register("tunnels_open", "Open tunnels: upgraded connections, CONNECT, TCP", open);
    let counters: [(&str, &str, &AtomicU64); 5] = [
        ("tunnels", "Tunnels opened", &metrics.tunnels),
        ("tunnel_idle_timeouts", "Tunnels closed by the idle timeout", &metrics.tunnels_idle),
        ("tunnels_failed", "Tunnels that failed on either side", &metrics.tunnels_broken),
        (
            "proxy_protocol_errors",
            "Connections without a valid PROXY protocol header",
            &metrics.proxy_heads_refused,
        ),
        (
            "tcp_connections_refused",
            "TCP connections refused because no endpoint was available",
            &metrics.tcp_refused,
        ),
    ];
    for (name, help, counter) in counters {
        registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
    }
    let [up, down] = metrics.bytes().map(ConstCounter::new);
    registry.register("tunnel_sent_bytes", "Bytes sent to servers by closed tunnels", up);
    registry.register("tunnel_received_bytes", "Bytes received from servers by closed tunnels", down);
}

fn inbound(registry: &mut Registry, admission: &Admission) {
    let limit = ConstGauge::new(u64::from(admission.limit.unwrap_or(u32::MAX)));
    registry.register("inbound_concurrency_limit", "Current concurrency limit of the program", limit);
    let under_way = ConstGauge::new(u64::from(admission.outstanding.calls));
    registry.register(
        "inbound_requests_in_flight",
        "Requests in flight at the program, without streams",
        under_way,
    );
    let counters = [
        ("inbound_requests_rejected", "Requests rejected by the concurrency limit", admission.refused),
        ("inbound_deadline_exceeded", "Requests cancelled because their deadline had passed", admission.late),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
}

fn captured(registry: &mut Registry, captured: &Captured) {
    let counters: [(&str, &str, &AtomicU64); 6] = [
        ("captured_connections_served", "Captured connections to services, or of HTTP/2", &captured.served),
        (
            "captured_connections_passthrough",
            "Captured connections passed through to their original destination",
            &captured.passed_on,
        ),
        (
            "original_dst_failures",
            "Captured connections and requests that failed at their original destination",
            &captured.in_vain,
        ),
        (
            "captured_requests_passthrough",
            "HTTP/2 requests passed through to the original destination of their connection",
            &captured.requests_passed_on,
        ),
        ("captured_refused", "Captured connections and requests that were refused", &captured.refused),
        (
            "captured_loops",
            "Connections on a capturing listener that were the proxy's own, or not redirected",
            &captured.looped,
        ),
    ];
    for (name, help, counter) in counters {
        registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
    }
}

fn calls(registry: &mut Registry, stats: &Stats) {
    let counters = [
        ("attempts", "Attempts to send a request to an endpoint", stats.tries),
        ("retries", "Attempts after the first", stats.retries),
        ("retry_budget_exhausted", "Retries refused by the retry budget", stats.retries_refused),
        ("hedges", "Hedged attempts", stats.hedges),
        ("rate_limited_calls", "Calls rejected by a rate limit of a policy", stats.limited),
        ("injected_aborts", "Calls aborted by fault injection of a policy", stats.aborted),
        ("mirrored_calls", "Calls mirrored to another service", stats.mirrored),
        ("mirrors_failed", "Mirrored calls without a response", stats.mirrors_failed),
        ("mirrors_skipped", "Mirrored calls that were not sent", stats.mirrors_skipped),
        ("attempts_without_endpoint", "Attempts without an available endpoint", stats.unroutable),
        (
            "lookaside_fallbacks",
            "Calls decided by the records because the service's own lookaside never responded",
            stats.lookaside_missed,
        ),
        ("panic_picks", "Attempts picked at the panic threshold, ignoring outliers and health", stats.panics),
        ("upstream_connections_opened", "Connections opened to endpoints", stats.connections_opened),
        ("upstream_connection_reuses", "Attempts over a reused connection", stats.reused),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
    let open = ConstGauge::new(stats.connections_open);
    registry.register("upstream_connections_open", "Open connections to endpoints", open);
    let age = ConstGauge::new(stats.data_age.as_secs_f64());
    registry.register_with_unit(
        "data_age",
        "Maximum age of the routing information; 0 while current",
        Unit::Seconds,
        age,
    );
}
