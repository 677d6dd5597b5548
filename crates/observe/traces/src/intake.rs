//! Receives spans that processes export with OTLP/HTTP.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::{self, Body},
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::post,
};
use fairmesh_otlp::v1::{ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse};
use fairmesh_wire::v1;
use prost::Message as _;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use crate::{TraceLimits, TraceStore, TraceView, read_spans};

/// Maximum size of a request, in bytes.
const MAX_REQUEST: usize = 4 << 20;
/// Maximum number of concurrent requests. Further requests are refused with 503, so that exporters retry.
const MAX_AT_ONCE: usize = 4;
/// Time limit for receiving a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const PROTOBUF: &str = "application/x-protobuf";

/// Traces exported to this process. Clones share them.
#[derive(Clone, Debug)]
pub struct Traces(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Mutex<TraceStore>,
    began: Instant,
    turns: Semaphore,
}

impl Traces {
    /// Creates an empty store of traces.
    pub fn new(limits: TraceLimits) -> Self {
        let (store, turns) = (Mutex::new(TraceStore::new(limits)), Semaphore::new(MAX_AT_ONCE));
        Self(Arc::new(Shared { store, began: Instant::now(), turns }))
    }

    /// Returns the route `/v1/traces` for exporters: protobuf without compression, at most 4 MiB.
    pub fn router(&self) -> Router {
        Router::new().route("/v1/traces", post(export)).with_state(self.clone())
    }

    /// Returns the traces in a view, or only the trace with this id; `None` if there is no such trace.
    pub fn read(&self, view: &TraceView, id: Option<u128>) -> Option<v1::ReadTracesResponse> {
        let (now_ms, store) = (self.now_ms(), self.store());
        match id {
            Some(id) => view.read(&store, id, now_ms),
            None => Some(view.list(&store, now_ms)),
        }
    }

    /// Returns the number of traces, their size in bytes, and the number of spans for which there was no room.
    pub fn size(&self) -> (usize, usize, u64) {
        let store = self.store();
        (store.len(), store.bytes(), store.left_out())
    }

    /// Records the spans of a request, and returns the number of malformed spans.
    fn record(&self, request: ExportTraceServiceRequest) -> u64 {
        let (spans, malformed) = read_spans(request);
        self.store().record(spans, self.now_ms());
        malformed
    }

    fn store(&self) -> MutexGuard<'_, TraceStore> {
        self.0.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

async fn export(State(traces): State<Traces>, headers: HeaderMap, body: Body) -> Response {
    let is_protobuf = |value: &str| value.split(';').next().is_some_and(|kind| kind.trim() == PROTOBUF);
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if !kind.is_some_and(is_protobuf) || headers.contains_key(header::CONTENT_ENCODING) {
        let remedy = "export spans as http/protobuf, without compression\n";
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, remedy).into_response();
    }
    // Exporters retry after this status, with a pause.
    let Ok(_turn) = traces.0.turns.try_acquire() else {
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")]).into_response();
    };
    let Ok(body) = timeout(REQUEST_TIMEOUT, body::to_bytes(body, MAX_REQUEST)).await else {
        return StatusCode::REQUEST_TIMEOUT.into_response();
    };
    let Ok(body) = body else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "send at most 4 MiB of spans at once\n").into_response();
    };
    let Ok(request) = ExportTraceServiceRequest::decode(body) else {
        return (StatusCode::BAD_REQUEST, "this is no ExportTraceServiceRequest\n").into_response();
    };
    let malformed = traces.record(request);
    let partial_success = (malformed > 0).then(|| ExportTracePartialSuccess {
        rejected_spans: i64::try_from(malformed).unwrap_or(i64::MAX),
        error_message: "spans need ids of 16 and 8 bytes, and end no earlier than they begin".to_owned(),
    });
    let response = ExportTraceServiceResponse { partial_success };
    ([(header::CONTENT_TYPE, PROTOBUF)], response.encode_to_vec()).into_response()
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use fairmesh_otlp::v1::{ResourceSpans, ScopeSpans, Span};
    use tower::ServiceExt as _;

    use super::*;

    async fn post_to(traces: &Traces, kind: &str, body: Vec<u8>) -> (StatusCode, Vec<u8>) {
        let request = Request::post("/v1/traces").header(header::CONTENT_TYPE, kind);
        let response = traces.router().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
        let status = response.status();
        (status, body::to_bytes(response.into_body(), MAX_REQUEST).await.unwrap().to_vec())
    }

    fn export_of(spans: Vec<Span>) -> Vec<u8> {
        let scope_spans = vec![ScopeSpans { scope: None, spans }];
        ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { resource: None, scope_spans }] }
            .encode_to_vec()
    }

    #[tokio::test]
    async fn exported_spans_are_stored_and_malformed_ones_reported() {
        let traces = Traces::new(TraceLimits::CONTROL_PLANE);
        let span = Span { trace_id: vec![1; 16], span_id: vec![2; 8], ..Span::default() };
        let malformed = Span { trace_id: vec![1; 3], ..span.clone() };
        let (status, body) = post_to(&traces, PROTOBUF, export_of(vec![span, malformed])).await;
        let partial = ExportTraceServiceResponse::decode(&*body).unwrap().partial_success;
        assert_eq!((status, partial.map(|partial| partial.rejected_spans)), (StatusCode::OK, Some(1)));
        let id = u128::from_be_bytes([1; 16]);
        assert_eq!(traces.read(&TraceView::All, Some(id)).map(|read| read.spans.len()), Some(1));
        assert!(traces.read(&TraceView::All, Some(7)).is_none());
    }

    #[tokio::test]
    async fn trace_exports_of_wrong_type_or_size_are_refused() {
        let traces = Traces::new(TraceLimits::CONTROL_PLANE);
        let refused = |kind, body| {
            let traces = traces.clone();
            async move { post_to(&traces, kind, body).await.0 }
        };
        assert_eq!(refused("application/json", b"{}".to_vec()).await, StatusCode::UNSUPPORTED_MEDIA_TYPE);
        assert_eq!(refused(PROTOBUF, vec![0xff; 9]).await, StatusCode::BAD_REQUEST);
        assert_eq!(refused(PROTOBUF, vec![0; MAX_REQUEST + 1]).await, StatusCode::PAYLOAD_TOO_LARGE);
        let _turns = traces.0.turns.try_acquire_many(MAX_AT_ONCE as u32).unwrap();
        assert_eq!(refused(PROTOBUF, Vec::new()).await, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(traces.size().0, 0);
    }
}
