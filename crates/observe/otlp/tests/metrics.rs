//! Tests that metrics reach a collector with either protocol under OpenTelemetry's names, and that an unavailable
//! collector costs nothing but values.
#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Router, body::Bytes, http::StatusCode, routing::post};
use fairmesh_otlp::{
    MetricsConfig, MetricsCounts, MetricsExporter,
    metrics::v1::{
        ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse, Metric,
        metric::Data,
        metrics_service_server::{MetricsService, MetricsServiceServer},
        number_data_point::Value,
    },
    v1::any_value,
};
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{
    self as prometheus, BucketSpan, Counter, Exemplar, Gauge, Histogram, LabelPair, MetricFamily, MetricType,
};
use prost::Message as _;
use tokio::{net::TcpListener, sync::mpsc, time::Instant};
use tokio_stream::wrappers::TcpListenerStream;

type Received = mpsc::UnboundedReceiver<ExportMetricsServiceRequest>;

fn pair(name: &str, value: &str) -> LabelPair {
    LabelPair { name: name.into(), value: value.into() }
}

fn family(name: &str, kind: MetricType, metric: prometheus::Metric) -> MetricFamily {
    let unit = if name.ends_with("_seconds") { "seconds" } else { "" };
    MetricFamily {
        name: name.into(),
        help: "Help".into(),
        r#type: kind.into(),
        metric: vec![metric],
        unit: unit.into(),
    }
}

/// Returns a counter, a gauge, and call durations with an exemplar.
fn families() -> Vec<MetricFamily> {
    let counter = Some(Counter { value: 7.0, ..Counter::default() });
    let gauge = Some(Gauge { value: 0.5 });
    let trace = "000000000000000000000000000000ab";
    let exemplar = Exemplar {
        label: vec![pair("trace_id", trace), pair("span_id", "00000000000000cd")],
        value: 1.05,
        timestamp: Some(prost_types::Timestamp { seconds: 1, nanos: 5 }),
    };
    let calls = Histogram {
        sample_count: 6,
        sample_sum: 8.05,
        schema: 3,
        positive_span: vec![BucketSpan { offset: 0, length: 2 }, BucketSpan { offset: 6, length: 1 }],
        positive_delta: vec![3, -2, 1],
        exemplars: vec![exemplar],
        ..Histogram::default()
    };
    let labels = vec![pair("fairmesh_caller", "shop/web"), pair("http_response_status_code", "200")];
    let calls = prometheus::Metric { label: labels, histogram: Some(calls), ..Default::default() };
    vec![
        family(
            "fairmesh_agent_deltas_total",
            MetricType::Counter,
            prometheus::Metric { counter, ..Default::default() },
        ),
        family(
            "fairmesh_agent_data_age_seconds",
            MetricType::Gauge,
            prometheus::Metric { gauge, ..Default::default() },
        ),
        family("http_client_request_duration_seconds", MetricType::Histogram, calls),
    ]
}

fn start(to: &str, interval: Duration) -> MetricsExporter {
    let config = MetricsConfig {
        to: to.parse().unwrap(),
        interval,
        timeout: Duration::from_secs(10),
        resource: vec![("service.name".to_owned(), "test".into())],
    };
    MetricsExporter::start(config, families)
}

async fn stop(exporter: &MetricsExporter) -> MetricsCounts {
    exporter.stop(Instant::now() + Duration::from_secs(20)).await;
    exporter.counts()
}

/// Starts a collector that responds with `statuses`, and with success afterwards.
async fn over_http(statuses: Vec<StatusCode>) -> (SocketAddr, Received) {
    let (sender, received) = mpsc::unbounded_channel();
    let left = Arc::new(Mutex::new(statuses));
    let take = move |body: Bytes| async move {
        let status = left.lock().unwrap().pop().unwrap_or(StatusCode::OK);
        if status == StatusCode::OK {
            sender.send(ExportMetricsServiceRequest::decode(body).unwrap()).unwrap();
        }
        (status, ExportMetricsServiceResponse::default().encode_to_vec())
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/v1/metrics", post(take))).await });
    (address, received)
}

struct OverGrpc(mpsc::UnboundedSender<ExportMetricsServiceRequest>);

#[tonic::async_trait]
impl MetricsService for OverGrpc {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        self.0.send(request.into_inner()).unwrap();
        let partial =
            ExportMetricsPartialSuccess { rejected_data_points: 2, error_message: "two too many".into() };
        Ok(tonic::Response::new(ExportMetricsServiceResponse { partial_success: Some(partial) }))
    }
}

fn metrics(mut request: ExportMetricsServiceRequest) -> Vec<Metric> {
    let mut resource = request.resource_metrics.remove(0);
    assert_eq!(resource.resource.unwrap().attributes[0].key, "service.name");
    resource.scope_metrics.remove(0).metrics
}

#[tokio::test]
async fn metrics_arrive_over_http_with_opentelemetry_names() {
    let (address, mut received) = over_http(vec![StatusCode::SERVICE_UNAVAILABLE]).await;
    let exporter = start(&format!("http://{address}/v1/metrics"), Duration::from_hours(1));
    // The exporter is stopped at once. The last values are still exported, although the first attempt is refused.
    assert_eq!(stop(&exporter).await, MetricsCounts { succeeded: 1, ..MetricsCounts::default() });
    let metrics = metrics(received.recv().await.unwrap());
    let names: Vec<_> = metrics.iter().map(|metric| (&*metric.name, &*metric.unit)).collect();
    assert_eq!(
        names,
        [
            ("fairmesh_agent_deltas", ""),
            ("fairmesh_agent_data_age_seconds", "s"),
            ("http.client.request.duration", "s")
        ]
    );
    let Some(Data::Sum(sum)) = &metrics[0].data else { panic!("{:?}", metrics[0]) };
    assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
    assert_eq!(sum.data_points[0].value, Some(Value::AsDouble(7.0)));
    assert!(sum.data_points[0].start_time_unix_nano <= sum.data_points[0].time_unix_nano);
    let Some(Data::Gauge(gauge)) = &metrics[1].data else { panic!("{:?}", metrics[1]) };
    assert_eq!(gauge.data_points[0].value, Some(Value::AsDouble(0.5)));
    let Some(Data::ExponentialHistogram(calls)) = &metrics[2].data else { panic!("{:?}", metrics[2]) };
    let point = &calls.data_points[0];
    assert_eq!((point.count, point.sum, point.scale), (6, Some(8.05), 3));
    // Prometheus's bucket 0 ends at 1 s, as does OpenTelemetry's bucket -1.
    let buckets = point.positive.as_ref().unwrap();
    assert_eq!((buckets.offset, &buckets.bucket_counts[..]), (-1, &[3, 1, 0, 0, 0, 0, 0, 0, 2][..]));
    assert_eq!(point.exemplars[0].trace_id, 0xab_u128.to_be_bytes());
    assert_eq!(
        (&point.exemplars[0].span_id[..], point.exemplars[0].time_unix_nano),
        (&0xcd_u64.to_be_bytes()[..], 1_000_000_005)
    );
    let attributes: Vec<_> = point.attributes.iter().map(|pair| &*pair.key).collect();
    assert_eq!(attributes, ["fairmesh.caller", "http.response.status_code"]);
    let status = point.attributes[1].value.as_ref().unwrap().value.as_ref().unwrap();
    assert_eq!(*status, any_value::Value::IntValue(200));
}

#[tokio::test]
async fn metrics_are_exported_over_grpc_and_rejected_points_are_counted() {
    let (sender, mut received) = mpsc::unbounded_channel();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = MetricsServiceServer::new(OverGrpc(sender));
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let exporter = start(&format!("grpc://{address}"), Duration::from_millis(20));
    // The exporter is not stopped, so it exports at its interval.
    for _ in 0..2 {
        assert_eq!(metrics(received.recv().await.unwrap()).len(), 3);
    }
    let counts = stop(&exporter).await;
    assert!(counts.succeeded >= 2 && counts.rejected_points == 2 * counts.succeeded, "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn unavailable_collector_queues_no_metrics() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gathered = Arc::<AtomicU64>::default();
    let counting = Arc::clone(&gathered);
    let config = MetricsConfig {
        to: format!("http://{closed}/v1/metrics").parse().unwrap(),
        interval: Duration::from_secs(60),
        timeout: Duration::from_secs(30),
        resource: Vec::new(),
    };
    let exporter = MetricsExporter::start(config, move || {
        counting.fetch_add(1, Relaxed);
        families()
    });
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert_eq!(
        (gathered.load(Relaxed), exporter.counts().failed),
        (3, 3),
        "an export each minute, and no queue"
    );
    let begun = Instant::now();
    exporter.stop(begun + Duration::from_secs(1)).await;
    assert!(begun.elapsed() <= Duration::from_secs(2), "the deadline ends it: {:?}", begun.elapsed());
}

#[tokio::test]
async fn refused_metrics_are_not_retried() {
    let (address, _received) = over_http(vec![StatusCode::BAD_REQUEST]).await;
    let exporter = start(&format!("http://{address}/v1/metrics"), Duration::from_hours(1));
    assert_eq!(stop(&exporter).await, MetricsCounts { failed: 1, ..MetricsCounts::default() });
}

#[tokio::test]
async fn large_metric_family_is_split_and_refused_part_does_not_stop_rest() {
    // The collector refuses the first request.
    let (address, mut received) = over_http(vec![StatusCode::BAD_REQUEST]).await;
    let config = MetricsConfig {
        to: format!("http://{address}/v1/metrics").parse().unwrap(),
        interval: Duration::from_hours(1),
        timeout: Duration::from_secs(10),
        resource: vec![("service.name".to_owned(), "test".into())],
    };
    let long = "x".repeat(900);
    let series = move |n: usize| prometheus::Metric {
        label: vec![pair("service", &format!("{n}-{long}"))],
        gauge: Some(Gauge { value: 1.0 }),
        ..prometheus::Metric::default()
    };
    let gather = move || {
        let metric = (0..8_192).map(&series).collect();
        vec![MetricFamily { metric, ..family("calls", MetricType::Gauge, prometheus::Metric::default()) }]
    };
    let exporter = MetricsExporter::start(config, gather);
    assert_eq!(stop(&exporter).await, MetricsCounts { failed: 1, ..MetricsCounts::default() });
    let mut points = 0;
    while let Ok(request) = received.try_recv() {
        assert!(request.encoded_len() < 4 << 20);
        points += metrics(request).iter().map(gauge_points).sum::<usize>();
    }
    assert_eq!(points, 8_192 - 2_048);
}

fn gauge_points(metric: &Metric) -> usize {
    match metric.data.as_ref().unwrap() {
        Data::Gauge(gauge) => gauge.data_points.len(),
        data => panic!("{data:?}"),
    }
}
