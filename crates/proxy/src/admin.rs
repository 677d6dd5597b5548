//! The pages for operators: what this proxy runs, whether it is ready, and what it has counted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Json, Router, extract, http::header, response::IntoResponse, routing::get};
use fairmesh_client::{Mesh, Stats};
use http::StatusCode;
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet, text::encode},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};
use serde::Serialize;
use tokio::{net::TcpListener, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{metrics::Metrics, service::Services};

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
    ready: Arc<AtomicBool>,
}

impl State {
    pub(crate) fn new(mesh: Mesh, services: Arc<Services>, metrics: Arc<Metrics>) -> Self {
        Self { mesh, services, metrics, ready: Arc::default() }
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
    let router = Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readiness))
        .route("/services", get(services_page))
        .with_state(state);
    let stopping = CancellationToken::new();
    let served = axum::serve(listener, router).with_graceful_shutdown(stopping.clone().cancelled_owned());
    let served = tokio::spawn(async move {
        if let Err(error) = served.await {
            tracing::error!(%error, "the admin pages are no longer served");
        }
    });
    Pages { served, stopping }
}

async fn readiness(extract::State(state): extract::State<State>) -> (StatusCode, &'static str) {
    match state.ready.load(Relaxed) {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "starting, or draining\n"),
    }
}

/// One service, for people and programs.
#[derive(Serialize)]
struct Row {
    service: String,
    /// Answers by the first digit of their status.
    answers: [u64; 5],
    /// Those of them that the proxy gave, since no server did.
    faults: u64,
    under_way: u64,
}

async fn services_page(extract::State(state): extract::State<State>) -> Json<Vec<Row>> {
    let rows = state.services.all().into_iter().map(|(name, target)| Row {
        service: name.to_string(),
        answers: target.golden.classes(),
        faults: target.golden.faults.load(Relaxed),
        under_way: target.golden.under_way.load(Relaxed),
    });
    Json(rows.collect())
}

async fn metrics_page(extract::State(state): extract::State<State>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, OPEN_METRICS)], text(&state))
}

fn text(state: &State) -> String {
    let mut registry = Registry::with_prefix("fairmesh_proxy");
    connections(&mut registry, &state.metrics);
    tunnels(&mut registry, &state.metrics);
    calls(&mut registry, &state.mesh.stats());
    registry.register("answers", "Answers by service and class", Answers(Arc::clone(&state.services)));
    registry.register("faults", "Requests that no server answered", Faults(Arc::clone(&state.services)));
    let times = Times(Arc::clone(&state.services));
    registry.register_with_unit("head_duration", "Time to the head of the answer", Unit::Seconds, times);
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
        ("requests_for_nobody", "Requests for no service", &metrics.nobody),
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

fn calls(registry: &mut Registry, stats: &Stats) {
    let counters = [
        ("tries", "Tries to send a request to an endpoint", stats.tries),
        ("retries", "Tries after the first", stats.retries),
        ("retries_refused", "Retries that the budget refused", stats.retries_refused),
        ("hedges", "Tries made beside one that took long", stats.hedges),
        ("limited", "Calls that a limit of a policy did not let through", stats.limited),
        ("aborted", "Calls that a policy answered with a failure on purpose", stats.aborted),
        ("mirrored", "Copies of calls sent to another service", stats.mirrored),
        ("mirrors_failed", "Copies of calls that got no answer", stats.mirrors_failed),
        ("mirrors_skipped", "Copies of calls that were not sent", stats.mirrors_skipped),
        ("unroutable", "Tries for which there was no endpoint to choose", stats.unroutable),
        ("panics", "Tries made while nobody was avoided", stats.panics),
        ("upstream_connections_opened", "Connections to endpoints opened", stats.connections_opened),
        ("upstream_reused", "Tries over a connection that had carried another", stats.reused),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
    let open = ConstGauge::new(stats.connections_open);
    registry.register("upstream_connections_open", "Connections to endpoints", open);
    let age = ConstGauge::new(stats.data_age.as_secs_f64());
    registry.register_with_unit("data_age", "How old what is known may be", Unit::Seconds, age);
}

/// Counters by service and class.
#[derive(Debug)]
struct Answers(Arc<Services>);

/// Counters by service.
#[derive(Debug)]
struct Faults(Arc<Services>);

/// Histograms by service.
#[derive(Debug)]
struct Times(Arc<Services>);

type Encoded = Result<(), std::fmt::Error>;

impl EncodeMetric for Answers {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Encoded {
        for (name, target) in self.0.all() {
            for (class, count) in (1..).zip(target.golden.classes()) {
                let labels = [("service", name.to_string()), ("class", format!("{class}xx"))];
                encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

impl EncodeMetric for Faults {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Encoded {
        for (name, target) in self.0.all() {
            let labels = [("service", name.to_string())];
            let count = target.golden.faults.load(Relaxed);
            encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

impl EncodeMetric for Times {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Encoded {
        for (name, target) in self.0.all() {
            let (buckets, sum) = target.golden.times();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let labels = [("service", name.to_string())];
            encoder.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}
