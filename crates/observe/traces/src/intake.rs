//! Receives spans that processes export with OTLP/HTTP.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::{self, Body},
    extract::{Request, State},
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

use crate::{SpanSender, TraceLimits, TraceLink, TraceStore, TraceView, read_spans, sender::BusySenders};

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
    link: Option<TraceLink>,
    began: Instant,
    turns: Semaphore,
    busy: BusySenders,
}

impl Traces {
    /// Creates an empty store of traces. `link` leads to the same traces in another tracing system.
    pub fn new(limits: TraceLimits, link: Option<TraceLink>) -> Self {
        let (store, turns) = (Mutex::new(TraceStore::new(limits)), Semaphore::new(MAX_AT_ONCE));
        let (began, busy) = (Instant::now(), BusySenders::default());
        Self(Arc::new(Shared { store, link, began, turns, busy }))
    }

    /// Returns the route `/v1/traces` for exporters: protobuf without compression, at most 4 MiB. A request without a
    /// [`SpanSender`] in its extensions is refused.
    pub fn router(&self) -> Router {
        Router::new().route("/v1/traces", post(export)).with_state(self.clone())
    }

    /// Lists the traces in a view.
    pub fn list(&self, view: &TraceView, only_failed: bool) -> v1::ReadTracesResponse {
        view.list(&self.store(), only_failed, self.now_ms())
    }

    /// Returns the trace with this id; `None` if there is no such trace.
    pub fn read(&self, view: &TraceView, id: u128) -> Option<v1::ReadTracesResponse> {
        let mut response = view.read(&self.store(), id, self.now_ms())?;
        response.link = self.0.link.as_ref().map(|link| link.of(id)).unwrap_or_default();
        Some(response)
    }

    /// Returns the number of traces, their size in bytes, and the number of spans for which there was no room.
    pub fn size(&self) -> (usize, usize, u64) {
        let store = self.store();
        (store.len(), store.bytes(), store.left_out())
    }

    /// Records the spans of a request, and returns the number of malformed spans, and of those that the sender may not
    /// state.
    fn record(&self, request: ExportTraceServiceRequest, sender: &SpanSender) -> (u64, u64) {
        let (spans, malformed) = read_spans(request);
        // Judged before the store is locked.
        let (spans, others) = sender.permitted(spans);
        self.store().record(&sender.name(), spans, self.now_ms());
        (malformed, others)
    }

    fn store(&self) -> MutexGuard<'_, TraceStore> {
        self.0.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

async fn export(State(traces): State<Traces>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let Some(sender) = head.extensions.get::<SpanSender>() else {
        return StatusCode::FORBIDDEN.into_response();
    };
    if !is_plain_protobuf(&head.headers) {
        let remedy = "export spans as http/protobuf, without compression\n";
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, remedy).into_response();
    }
    // Exporters retry after this status, with a pause.
    let turns = (traces.0.busy.begin(sender), traces.0.turns.try_acquire());
    let (Some(_own), Ok(_turn)) = turns else {
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")]).into_response();
    };
    match read_request(body).await {
        Ok(request) => respond(traces.record(request, sender)),
        Err(refusal) => refusal,
    }
}

fn is_plain_protobuf(headers: &HeaderMap) -> bool {
    let is_protobuf = |value: &str| value.split(';').next().is_some_and(|kind| kind.trim() == PROTOBUF);
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(is_protobuf) && !headers.contains_key(header::CONTENT_ENCODING)
}

/// Reads the request, or returns the response that refuses it.
async fn read_request(body: Body) -> Result<ExportTraceServiceRequest, Response> {
    let body = timeout(REQUEST_TIMEOUT, body::to_bytes(body, MAX_REQUEST)).await;
    let body = body.map_err(|_| StatusCode::REQUEST_TIMEOUT.into_response())?.map_err(|_| {
        (StatusCode::PAYLOAD_TOO_LARGE, "send at most 4 MiB of spans at once\n").into_response()
    })?;
    ExportTraceServiceRequest::decode(body)
        .map_err(|_| (StatusCode::BAD_REQUEST, "this is no ExportTraceServiceRequest\n").into_response())
}

/// Reports the numbers of spans that were not recorded.
fn respond((malformed, others): (u64, u64)) -> Response {
    let message = match others {
        0 => "spans need ids of 16 and 8 bytes, and end no earlier than they begin",
        _ => "service.name and fairmesh.service must name services that the sender is, and may call",
    };
    let rejected = malformed + others;
    let partial_success = (rejected > 0).then(|| ExportTracePartialSuccess {
        rejected_spans: i64::try_from(rejected).unwrap_or(i64::MAX),
        error_message: message.to_owned(),
    });
    let response = ExportTraceServiceResponse { partial_success };
    ([(header::CONTENT_TYPE, PROTOBUF)], response.encode_to_vec()).into_response()
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use fairmesh_otlp::v1::{
        AnyValue, KeyValue, Resource, ResourceSpans, ScopeSpans, Span, any_value::Value,
    };
    use tower::ServiceExt as _;

    use super::*;
    use crate::SpanRights;

    async fn post_to(traces: &Traces, kind: &str, body: Vec<u8>) -> (StatusCode, Vec<u8>) {
        post_from(Some(SpanSender::anyone()), traces, kind, body).await
    }

    async fn post_from(
        sender: Option<SpanSender>,
        traces: &Traces,
        kind: &str,
        body: Vec<u8>,
    ) -> (StatusCode, Vec<u8>) {
        let mut request = Request::post("/v1/traces").header(header::CONTENT_TYPE, kind);
        if let Some(sender) = sender {
            request = request.extension(sender);
        }
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
        let traces = Traces::new(TraceLimits::CONTROL_PLANE, None);
        let span = Span { trace_id: vec![1; 16], span_id: vec![2; 8], ..Span::default() };
        let malformed = Span { trace_id: vec![1; 3], ..span.clone() };
        let (status, body) = post_to(&traces, PROTOBUF, export_of(vec![span, malformed])).await;
        let partial = ExportTraceServiceResponse::decode(&*body).unwrap().partial_success;
        assert_eq!((status, partial.map(|partial| partial.rejected_spans)), (StatusCode::OK, Some(1)));
        let id = u128::from_be_bytes([1; 16]);
        assert_eq!(traces.read(&TraceView::All, id).map(|read| read.spans.len()), Some(1));
        assert!(traces.read(&TraceView::All, 7).is_none());
    }

    /// Rights of shop/web, which may call shop/cart.
    struct OfWeb;

    impl SpanRights for OfWeb {
        fn may_be(&self, process: &str) -> bool {
            process == "shop/web"
        }

        fn may_know(&self, service: &str) -> bool {
            service == "shop/cart"
        }
    }

    #[tokio::test]
    async fn sender_states_spans_only_of_its_service_and_of_calls_it_may_make() {
        let traces = Traces::new(TraceLimits::CONTROL_PLANE, None);
        let web = SpanSender::new("web", Arc::new(OfWeb));
        let text = |key: &str, text: &str| KeyValue {
            key: key.into(),
            value: Some(AnyValue { value: Some(Value::StringValue(text.into())) }),
        };
        let stated =
            [("shop/web", "shop/cart"), ("shop/web", "bank/vault"), ("shop/cart", "shop/cart"), ("", "")];
        let resource_spans = stated.iter().zip(1..).map(|((process, service), id)| {
            let attributes = vec![text("fairmesh.service", service)];
            let span = Span { trace_id: vec![id; 16], span_id: vec![1; 8], attributes, ..Span::default() };
            let resource = Some(Resource { attributes: vec![text("service.name", process)] });
            ResourceSpans { resource, scope_spans: vec![ScopeSpans { scope: None, spans: vec![span] }] }
        });
        let body = ExportTraceServiceRequest { resource_spans: resource_spans.collect() }.encode_to_vec();
        let (status, _) = post_from(None, &traces, PROTOBUF, body.clone()).await;
        assert_eq!((status, traces.size().0), (StatusCode::FORBIDDEN, 0), "the sender is not known");
        let busy = traces.0.busy.begin(&web).unwrap();
        let (status, _) = post_from(Some(web.clone()), &traces, PROTOBUF, body.clone()).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "a sender has one request at a time");
        drop(busy);
        let (_, response) = post_from(Some(web), &traces, PROTOBUF, body).await;
        let partial = ExportTraceServiceResponse::decode(&*response).unwrap().partial_success.unwrap();
        assert_eq!((partial.rejected_spans, traces.size().0), (3, 1), "{}", partial.error_message);
        let kept = u128::from_be_bytes([1; 16]);
        assert!(traces.read(&TraceView::All, kept).is_some());
    }

    #[tokio::test]
    async fn trace_exports_of_wrong_type_or_size_are_refused() {
        let traces = Traces::new(TraceLimits::CONTROL_PLANE, None);
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
