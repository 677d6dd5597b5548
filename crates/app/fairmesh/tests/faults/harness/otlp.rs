//! Collectors of traces and metrics.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use axum::{Router, body::Bytes, http::HeaderMap, routing::post};
use fairmesh_otlp::{
    metrics::v1::{ExportMetricsServiceRequest, Metric},
    v1::{ExportTraceServiceRequest, KeyValue, Span, any_value},
};
use prost::Message as _;
use tokio::net::TcpListener;

use super::until;

/// Receives spans by OTLP over HTTP.
pub(crate) struct TraceCollector {
    pub(crate) address: String,
    spans: Arc<Mutex<Vec<Span>>>,
    /// Header `authorization` and resource attributes of the last batch.
    last: Arc<Mutex<(String, BTreeMap<String, String>)>>,
    /// `service.name` of all batches.
    services: Arc<Mutex<BTreeSet<String>>>,
}

impl TraceCollector {
    pub(crate) async fn start() -> Self {
        let spans = Arc::<Mutex<Vec<Span>>>::default();
        let last = Arc::<Mutex<(String, BTreeMap<String, String>)>>::default();
        let services = Arc::<Mutex<BTreeSet<String>>>::default();
        let (kept, kept_last, kept_services) = (Arc::clone(&spans), Arc::clone(&last), Arc::clone(&services));
        let take = move |headers: HeaderMap, body: Bytes| async move {
            let batch = ExportTraceServiceRequest::decode(body).unwrap();
            let authorization = headers.get("authorization").map_or("", |value| value.to_str().unwrap());
            let resource = batch.resource_spans[0].resource.clone().unwrap();
            let attributes = texts(&resource.attributes);
            kept_services.lock().unwrap().insert(attributes["service.name"].clone());
            *kept_last.lock().unwrap() = (authorization.to_owned(), attributes);
            let scopes = batch.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
            kept.lock().unwrap().extend(scopes.flat_map(|scope| scope.spans));
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/traces", post(take));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, spans, last, services }
    }

    /// `service.name` of all batches.
    pub(crate) fn services(&self) -> BTreeSet<String> {
        self.services.lock().unwrap().clone()
    }

    /// Header `authorization` and resource attributes of the last batch.
    pub(crate) fn last(&self) -> (String, BTreeMap<String, String>) {
        self.last.lock().unwrap().clone()
    }

    /// Waits for `count` spans of a trace; returns them with server spans first, then by start time.
    pub(crate) async fn trace(&self, trace: &str, count: usize) -> Vec<Span> {
        let of = |spans: &[Span]| -> Vec<Span> {
            spans.iter().filter(|span| hex(&span.trace_id) == trace).cloned().collect()
        };
        until("the spans are told", async || of(&self.spans.lock().unwrap()).len() >= count).await;
        let mut spans = of(&self.spans.lock().unwrap());
        spans.sort_by_key(|span| (span.kind, span.start_time_unix_nano));
        spans
    }

    /// All received spans.
    pub(crate) fn all(&self) -> Vec<Span> {
        self.spans.lock().unwrap().clone()
    }

    /// Number of received spans.
    pub(crate) fn count(&self) -> usize {
        self.spans.lock().unwrap().len()
    }
}

/// Receives metrics by OTLP over HTTP.
pub(crate) struct MetricCollector {
    pub(crate) address: String,
    last: Arc<Mutex<Option<ExportMetricsServiceRequest>>>,
}

impl MetricCollector {
    pub(crate) async fn start() -> Self {
        let last = Arc::<Mutex<Option<ExportMetricsServiceRequest>>>::default();
        let kept = Arc::clone(&last);
        let take = move |body: Bytes| async move {
            *kept.lock().unwrap() = Some(ExportMetricsServiceRequest::decode(body).unwrap());
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/metrics", post(take));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, last }
    }

    /// Resource attributes and metrics of the last push.
    pub(crate) fn last(&self) -> Option<(BTreeMap<String, String>, Vec<Metric>)> {
        let resource = self.last.lock().unwrap().clone()?.resource_metrics.remove(0);
        let scopes = resource.scope_metrics.into_iter();
        Some((
            texts(&resource.resource.unwrap().attributes),
            scopes.flat_map(|scope| scope.metrics).collect(),
        ))
    }
}

/// Attributes of a span as text.
pub(crate) fn attributes(span: &Span) -> BTreeMap<String, String> {
    texts(&span.attributes)
}

pub(crate) fn texts(pairs: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &any_value::Value| match value {
        any_value::Value::StringValue(text) => text.clone(),
        any_value::Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    pairs
        .iter()
        .map(|pair| {
            (pair.key.clone(), text(pair.value.as_ref().and_then(|value| value.value.as_ref()).unwrap()))
        })
        .collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
