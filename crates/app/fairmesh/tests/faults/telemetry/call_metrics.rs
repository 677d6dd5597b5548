//! Latency histograms of calls by caller and callee: on the metrics page, in Prometheus, and pushed to a collector.

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf};

use bytes::Bytes;
use fairmesh_model::Protocol;
use fairmesh_otlp::metrics::v1::{ExponentialHistogramDataPoint, metric::Data};
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{Histogram, MetricFamily};
use prost::Message as _;
use serde_json::Value;

use super::call;
use crate::harness::{
    Process, Program, Proxy, Spec, World, beside_others, free_port, otlp, skipped, tool, until,
};

const DURATIONS: &str = "http_client_request_duration_seconds";
const PROTOBUF: &str =
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";

async fn get(url: &str, accept: &str) -> Option<Bytes> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let request = Request::get(url).header("accept", accept).body(Empty::new()).unwrap();
    let answer = client.request(request).await.ok()?;
    Some(answer.into_body().collect().await.ok()?.to_bytes())
}

/// Histogram of the successful calls of `shop/one`, selected by its labels.
async fn histogram(admin: &str) -> Option<Histogram> {
    let page = get(&format!("http://{admin}/metrics"), PROTOBUF).await?;
    let (mut rest, mut families) = (&page[..], Vec::new());
    while !rest.is_empty() {
        families.push(MetricFamily::decode_length_delimited(&mut rest).unwrap());
    }
    let family = families.into_iter().find(|family| family.name == DURATIONS)?;
    let has = |labels: &BTreeMap<&str, &str>, name, value| labels.get(name) == Some(&value);
    let metric = family.metric.iter().find(|metric| {
        let labels = metric.label.iter().map(|label| (&*label.name, &*label.value)).collect();
        has(&labels, "fairmesh_callee", "shop/one")
            // Without a trust domain, callers have no identity.
            && has(&labels, "fairmesh_caller", "(unknown)")
            && has(&labels, "http_request_method", "GET")
            && has(&labels, "http_response_status_code", "200")
    });
    metric?.histogram.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_have_native_histograms_with_trace_exemplars() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let collector = otlp::TraceCollector::start().await;
    let arguments = format!("--access-log off --trace-to {} --trace-one-in 1", collector.address);
    let proxy = Proxy::with(&world, &arguments).await;
    until("it serves", async || call(&proxy.for_one, None).await.status() == 200).await;
    let before = histogram(&proxy.admin).await.unwrap().sample_count;
    for _ in 0..5 {
        assert_eq!(call(&proxy.for_one, None).await.status(), 200);
    }
    let calls = histogram(&proxy.admin).await.unwrap();
    assert_eq!(calls.sample_count, before + 5);
    assert_eq!(calls.bucket.last().map(|bucket| bucket.cumulative_count), Some(calls.sample_count));
    let trace = &calls.exemplars[0].label[0];
    assert_eq!(trace.name, "trace_id");
    assert!(!collector.trace(&trace.value, 2).await.is_empty(), "the exemplar leads to a trace");
    let samples = proxy.samples().await;
    assert!(samples.keys().any(|(name, _)| name == &format!("{DURATIONS}_bucket")), "{samples:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_pushed_to_collector_named_in_environment() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let collector = otlp::MetricCollector::start().await;
    let env = [
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", format!("{}/v1/metrics", collector.address)),
        ("OTEL_METRIC_EXPORT_INTERVAL", "200".to_owned()),
    ];
    let env: Vec<_> = env.into_iter().collect();
    let program = |log: PathBuf, args: &str| Program { env, ..Program::fairmesh(log, args) };
    let proxy = Proxy::run(&world, "", program).await;
    until("it serves", async || call(&proxy.for_one, None).await.status() == 200).await;
    let found = async || pushed(&collector).is_some();
    until("the calls are pushed", found).await;
    let (resource, point) = pushed(&collector).unwrap();
    assert_eq!(resource["service.name"], "fairmesh-proxy");
    let attributes = otlp::texts(&point.attributes);
    assert_eq!(attributes["http.response.status_code"], "200", "{attributes:?}");
    assert_eq!((attributes["http.request.method"].as_str(), point.scale), ("GET", 3));
    assert!(point.count >= 1 && point.positive.is_some(), "{point:?}");
    until("pushes are counted", async || proxy.metric("metrics_exports_total").await >= 2.0).await;
}

/// Resource attributes, and the histogram of successful calls of `shop/one`.
fn pushed(
    collector: &otlp::MetricCollector,
) -> Option<(BTreeMap<String, String>, ExponentialHistogramDataPoint)> {
    let (resource, metrics) = collector.last()?;
    let calls = metrics.into_iter().find(|metric| metric.name == "http.client.request.duration")?;
    let Some(Data::ExponentialHistogram(calls)) = calls.data else { panic!("{calls:?}") };
    let point = calls.data_points.into_iter().find(|point| {
        let attributes = otlp::texts(&point.attributes);
        attributes["fairmesh.callee"] == "shop/one" && attributes["http.response.status_code"] == "200"
    });
    Some((resource, point?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_scrapes_native_histograms_of_calls() {
    let Some(binary) = tool("prometheus") else {
        return skipped("no Prometheus scrapes a proxy", "`scripts/setup.sh prometheus` fetches it");
    };
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let proxy = Proxy::with(&world, "").await;
    until("it serves", async || call(&proxy.for_one, None).await.status() == 200).await;
    let config = world.path("prometheus.yaml");
    let jobs = format!(
        "global: {{scrape_interval: 500ms}}\nscrape_configs:\n- job_name: proxy\n  static_configs: [{{targets: ['{}']}}]\n",
        proxy.admin
    );
    std::fs::write(&config, jobs).unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let args = [
        format!("--config.file={}", config.display()),
        format!("--storage.tsdb.path={}", world.path("tsdb").display()),
        format!("--web.listen-address={address}"),
        "--enable-feature=native-histograms".to_owned(),
    ];
    let args = args.into_iter().map(OsString::from).collect();
    let log = world.path("prometheus.log");
    let _prometheus = Process::start(Program { binary, args, env: Vec::new(), log });
    let query = async |expression: &str| {
        let body = get(&format!("http://{address}/api/v1/query?query={expression}"), "*/*").await?;
        let answer: Value = serde_json::from_slice(&body).ok()?;
        answer["data"]["result"][0]["value"][1].as_str()?.parse::<f64>().ok()
    };
    let count = format!(
        "histogram_count({DURATIONS}%7Bfairmesh_callee=%22shop/one%22,http_response_status_code=%22200%22%7D)"
    );
    until("the native histogram is scraped", async || query(&count).await.is_some_and(|count| count >= 1.0))
        .await;
    assert_eq!(query("up").await, Some(1.0));
}
