//! Tests that spans reach a collector with either protocol, and that an unavailable or slow collector does not block
//! the exporter.
#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{net::SocketAddr, time::Duration};

use axum::{Router, body::Bytes, http::HeaderMap, http::StatusCode, routing::post};
use fairmesh_otlp::{
    AttributeValue, Collector, Counts, Exporter, Span, SpanKind,
    v1::{
        self, ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
};
use prost::Message as _;
use tokio::{net::TcpListener, sync::mpsc, time::Instant};
use tokio_stream::wrappers::TcpListenerStream;

type Received = mpsc::UnboundedReceiver<ExportTraceServiceRequest>;

fn span(id: u64) -> Span {
    Span {
        trace: 7 << 64,
        id,
        parent: 0,
        state: "a=b".into(),
        name: "GET shop/cart".into(),
        kind: SpanKind::Server,
        start: 1,
        end: 2,
        attributes: vec![("server.address", "cart.shop".into()), ("server.port", 80.into())],
        error: Some("503".into()),
    }
}

async fn over_http(responses: Vec<StatusCode>) -> (SocketAddr, Received) {
    let (sender, received) = mpsc::unbounded_channel();
    let left = std::sync::Arc::new(std::sync::Mutex::new(responses));
    let take = move |headers: HeaderMap, body: Bytes| async move {
        assert_eq!(headers["content-type"], "application/x-protobuf");
        let status = left.lock().unwrap().pop().unwrap_or(StatusCode::OK);
        if status == StatusCode::OK {
            sender.send(ExportTraceServiceRequest::decode(body).unwrap()).unwrap();
        }
        (status, ExportTraceServiceResponse::default().encode_to_vec())
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/v1/traces", post(take))).await });
    (address, received)
}

struct OverGrpc(mpsc::UnboundedSender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for OverGrpc {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.0.send(request.into_inner()).unwrap();
        let partial =
            v1::ExportTracePartialSuccess { rejected_spans: 1, error_message: "one too many".into() };
        Ok(tonic::Response::new(ExportTraceServiceResponse { partial_success: Some(partial) }))
    }
}

fn exporter(to: &str) -> Exporter {
    Exporter::start(
        &to.parse::<Collector>().unwrap(),
        vec![("service.name".to_owned(), AttributeValue::from("test"))],
        None,
    )
}

async fn stop(exporter: &Exporter) -> Counts {
    exporter.stop(Instant::now() + Duration::from_secs(10)).await;
    exporter.counts()
}

#[tokio::test]
async fn spans_arrive_over_http_unchanged() {
    let (address, mut received) = over_http(vec![StatusCode::SERVICE_UNAVAILABLE]).await;
    let exporter = exporter(&format!("http://{address}"));
    exporter.export([span(1), span(2)]);
    // The exporter is stopped at once. The queue is still exported, although the first attempt is refused.
    assert_eq!(stop(&exporter).await, Counts { exported: 2, dropped: 0, refused: 0 });
    let batch = received.recv().await.unwrap().resource_spans.remove(0);
    assert_eq!(batch.resource.unwrap().attributes[0].key, "service.name");
    let spans = &batch.scope_spans[0].spans;
    assert_eq!(spans.len(), 2);
    assert_eq!(spans[0].trace_id, (7_u128 << 64).to_be_bytes());
    assert_eq!((&spans[0].span_id[..], spans[0].parent_span_id.len()), (&1_u64.to_be_bytes()[..], 0));
    assert_eq!((spans[0].kind(), &*spans[0].trace_state), (v1::span::SpanKind::Server, "a=b"));
    assert_eq!(spans[0].status.as_ref().unwrap().code(), v1::status::StatusCode::Error);
    assert_eq!((spans[0].start_time_unix_nano, spans[0].end_time_unix_nano), (1, 2));
    exporter.export([span(3)]);
    assert_eq!(exporter.counts().dropped, 1, "a stopped exporter drops spans");
}

#[tokio::test]
async fn spans_are_exported_over_grpc_and_rejected_spans_are_counted() {
    let (sender, mut received) = mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = TraceServiceServer::new(OverGrpc(sender));
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let exporter = exporter(&format!("grpc://{address}"));
    exporter.export([span(1), span(2), span(3)]);
    assert_eq!(stop(&exporter).await, Counts { exported: 2, dropped: 0, refused: 1 });
    assert_eq!(received.recv().await.unwrap().resource_spans[0].scope_spans[0].spans.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn unavailable_collector_drops_spans_but_does_not_block() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let exporter = exporter(&format!("http://{closed}"));
    exporter.export((1..=10_000).map(span));
    let dropped = exporter.counts().dropped;
    assert_eq!(dropped, 10_000 - 4_096, "the queue is bounded");
    let begun = Instant::now();
    exporter.stop(begun + Duration::from_secs(3)).await;
    assert!(begun.elapsed() <= Duration::from_secs(4), "the deadline ends it: {:?}", begun.elapsed());
}

#[tokio::test]
async fn permanent_span_export_failure_is_not_retried() {
    let (address, _received) = over_http(vec![StatusCode::BAD_REQUEST]).await;
    let exporter = exporter(&format!("http://{address}"));
    exporter.export([span(1)]);
    assert_eq!(stop(&exporter).await, Counts { exported: 0, dropped: 0, refused: 1 });
}
