//! Observability of a proxy: counters, spans, admin pages and access logs.

use std::time::Duration;

use bytes::Bytes;
use fairmesh_model::Protocol;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt as _;

use crate::harness::{
    Echo, Proxy, RawServer, STATUS, Spec, World, beside_others, free_port, openmetrics,
    otlp::{TraceCollector, attributes, hex},
    read_head, until,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

async fn call(http2: bool, to: &str, headers: &[(&str, &str)]) -> Response<Bytes> {
    let client = Client::builder(TokioExecutor::new()).http2_only(http2).build_http::<Empty<Bytes>>();
    let mut request = Request::get(format!("http://{to}/items?secret=1"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (head, body) = client.request(request.body(Empty::new()).unwrap()).await.unwrap().into_parts();
    Response::from_parts(head, body.collect().await.unwrap().to_bytes())
}

/// Sum of the series of a metric that have these labels.
fn sum(samples: &openmetrics::Samples, name: &str, labels: &[(&str, &str)]) -> f64 {
    let has = |of: &[(String, String)], (label, value): &(&str, &str)| {
        of.iter().any(|(l, v)| l == label && v == value)
    };
    let found = samples.iter().filter(|((n, of), _)| n == name && labels.iter().all(|label| has(of, label)));
    found.map(|(_, value)| value).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_counters_are_labelled_by_service_class_and_regions() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let _two = Spec::new("shop/two", "two", Protocol::Grpc).here(&world).await;
    let proxy = Proxy::with(&world, "--metrics-per-endpoint").await;
    for _ in 0..3 {
        assert_eq!(call(false, &proxy.for_one, &[]).await.status(), StatusCode::OK);
    }
    let grpc = [("host", "two.shop"), ("content-type", "application/grpc")];
    assert_eq!(call(true, &proxy.by_host, &grpc).await.headers()["grpc-status"], "0");
    let refused = call(false, &proxy.for_one, &[("x-fairmesh-key", "no number")]).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);

    let samples = proxy.samples().await;
    let answers = "fairmesh_proxy_responses_total";
    let here = [("service", "shop/one"), ("class", "2xx"), ("from_region", "eu"), ("to_region", "eu")];
    assert_eq!(sum(&samples, answers, &here), 3.0, "{samples:#?}");
    let nobody = [("service", "shop/one"), ("class", "4xx"), ("to_region", "(none)")];
    assert_eq!(sum(&samples, answers, &nobody), 1.0, "no server answered that");
    assert_eq!(
        sum(&samples, "fairmesh_proxy_response_headers_duration_seconds_count", &[("to_region", "eu")]),
        4.0
    );
    let code = [("service", "shop/two"), ("code", "OK")];
    assert_eq!(sum(&samples, "fairmesh_proxy_grpc_responses_total", &code), 1.0);
    let tries = [("endpoint", "one"), ("region", "eu"), ("outcome", "2xx")];
    assert_eq!(sum(&samples, "fairmesh_proxy_endpoint_attempts_total", &tries), 3.0);
    assert!(
        sum(&samples, "fairmesh_proxy_endpoint_attempt_duration_seconds_total", &[("endpoint", "one")]) > 0.0
    );

    let plain = Proxy::start(&world).await;
    call(false, &plain.for_one, &[]).await;
    let samples = plain.samples().await;
    assert_eq!(sum(&samples, answers, &here[..1]), 1.0);
    assert!(
        !samples.keys().any(|(name, _)| name.contains("endpoint_attempts")),
        "only where it was asked for"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_failures_are_counted_by_route_and_backend() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _two = Echo::start(&world, "shop/two", "two", Protocol::Grpc).await;
    // gRPC statuses are read both with and without an access log.
    for arguments in ["--access-log off", "--access-log text"] {
        let proxy = Proxy::with(&world, arguments).await;
        // OK, NOT_FOUND, UNAVAILABLE.
        for status in ["0", "5", "14", "0"] {
            let headers = [("host", "two.shop"), ("content-type", "application/grpc"), (STATUS, status)];
            assert_eq!(call(true, &proxy.by_host, &headers).await.status(), StatusCode::OK);
        }
        let page: serde_json::Value =
            serde_json::from_str(&proxy.page("/services/shop/two/routes").await).unwrap();
        let counts = &page["counts"][0];
        assert_eq!(counts["responses"], serde_json::json!([0, 4, 0, 0, 0]), "{page:#}");
        assert_eq!(counts["grpcFailures"], 1, "{page:#}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_spans_of_request_and_attempts_join_callers_trace() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let collector = TraceCollector::start().await;
    let mut proxy = Proxy::with(&world, &format!("--trace-to {} --trace-one-in 0", collector.address)).await;
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let answer = call(false, &proxy.for_one, &[("traceparent", &parent), ("tracestate", "vendor=1")]).await;
    let seen_by_server = answer.headers()["x-traceparent"].to_str().unwrap().to_owned();

    // Spans are exported at shutdown at the latest, within its deadline.
    let unrecorded = parent.replace("-01", "-00");
    let passed_on = call(false, &proxy.for_one, &[("traceparent", &unrecorded)]).await;
    assert_eq!(passed_on.headers()["x-traceparent"], *unrecorded, "it goes on untouched");
    proxy.process.signal(Signal::TERM);
    let spans = collector.trace(TRACE, 2).await;
    assert!(proxy.process.end().await.success());
    assert_eq!(collector.count(), 2, "nothing is told of what is not recorded");

    let [request, tried] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(
        (hex(&request.parent_span_id), &*request.trace_state),
        ("00f067aa0ba902b7".into(), "vendor=1")
    );
    assert_eq!(tried.parent_span_id, request.span_id);
    assert_eq!(seen_by_server, format!("00-{TRACE}-{}-01", hex(&tried.span_id)), "the try is the parent");
    assert!(request.start_time_unix_nano <= tried.start_time_unix_nano);
    assert!(tried.end_time_unix_nano <= request.end_time_unix_nano, "{spans:?}");
    let [request, tried] = [request, tried].map(attributes);
    for (of, name, value) in [
        (&request, "http.request.method", "GET"),
        (&request, "url.path", "/items"),
        (&request, "server.address", "127.0.0.1"),
        (&request, "http.response.status_code", "200"),
        (&request, "fairmesh.service", "shop/one"),
        (&request, "network.protocol.version", "1.1"),
        (&tried, "fairmesh.instance", "one"),
        (&tried, "fairmesh.region", "eu"),
        (&tried, "http.response.status_code", "200"),
    ] {
        assert_eq!(of.get(name).map(String::as_str), Some(value), "{name} of {of:?}");
    }
    assert!(tried["fairmesh.revision"].parse::<u64>().unwrap() > 0);
    assert!(![request, tried].iter().flatten().any(|(_, value)| value.contains("secret")), "no query");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trace_starts_without_valid_parent_and_shows_failed_attempts() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let collector = TraceCollector::start().await;
    let proxy = Proxy::with(&world, &format!("--trace-to {} --trace-one-in 1", collector.address)).await;
    let ours =
        |answer: &Response<Bytes>| answer.headers()["x-traceparent"].to_str().unwrap()[3..35].to_owned();

    let malformed = call(false, &proxy.for_one, &[("traceparent", "00-nonsense-01")]).await;
    let spans = collector.trace(&ours(&malformed), 2).await;
    assert!(spans[0].parent_span_id.is_empty(), "a trace of its own");

    let b3 =
        call(false, &proxy.for_one, &[("b3", "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1")]).await;
    assert!(b3.headers().get("x-traceparent").is_none(), "a trace of another kind is left alone");

    // No server listens at this endpoint, so the call is retried at the other one.
    let lease = Duration::from_secs(60);
    let mut gone = Spec { lease, ..Spec::new("shop/both", "gone", Protocol::Http1) }.apart(&world).await;
    gone.kill().await;
    world.apply("{kind: Policy, service: shop/both, balancing: {policy: roundRobin}}").await.ok();
    let _other = Spec::new("shop/both", "other", Protocol::Http1).here(&world).await;
    let retried = async || {
        let answer = call(false, &proxy.by_host, &[("host", "both.shop")]).await;
        assert_eq!(answer.headers()["x-instance"], "other");
        // All spans of a request are exported together.
        let spans = collector.trace(&ours(&answer), 2).await;
        let [_, failed, answered] = &spans[..] else { return false };
        let failed = (attributes(failed), failed.status.clone().unwrap());
        assert_eq!((&*failed.0["fairmesh.instance"], &*failed.0["error.type"]), ("gone", "unreachable"));
        assert!(failed.1.message.contains("cannot be reached"), "{failed:?}");
        assert_eq!(attributes(answered)["http.request.resend_count"], "1");
        true
    };
    until("a call is tried twice", retried).await;
    let ejected = async || {
        call(false, &proxy.by_host, &[("host", "both.shop")]).await;
        let page = proxy.page("/metrics").await;
        let shown = Proxy::endpoints(&proxy.admin, "shop/both").await.json();
        let gone = shown.as_array().unwrap().iter().find(|one| one["instance"] == "gone").unwrap();
        gone["state"] == "ejected"
            && gone["returnsInSeconds"].as_f64().unwrap() > 0.0
            && gone["reason"].as_str().unwrap().starts_with("this proxy, after ")
            && page.contains(r#"fairmesh_proxy_ejected_endpoints{service="shop/both"} 1"#)
    };
    until("the proxy shows what it ejected", ejected).await;
    until("they are counted", async || proxy.metric("spans_exported_total").await >= 5.0).await;
    assert_eq!(proxy.metric("spans_dropped_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_pages_show_processes_and_last_decision() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let proxy = Proxy::start(&world).await;
    assert_eq!(call(false, &proxy.for_one, &[]).await.status(), StatusCode::OK);

    assert!(proxy.page("/").await.contains("/services/TENANT/NAME/last"));
    let config: serde_json::Value = serde_json::from_str(&proxy.page("/config?json").await).unwrap();
    assert_eq!((&config["ready"], &config["routing"]["connected"]), (&true.into(), &true.into()), "{config}");
    assert_eq!(config["routing"]["region"], "eu");
    assert!(config["routing"]["revision"].as_u64().unwrap() > 0);
    assert_eq!(config["options"]["client-id"], "proxy");
    assert!(config["listen"].as_array().unwrap().contains(&format!("{}=shop/one", proxy.for_one).into()));
    assert_eq!(
        (&config["services"][0]["state"], &config["services"][0]["endpoints"]),
        (&"ready".into(), &1.into())
    );
    let text = proxy.page("/config").await;
    assert!(text.contains("drain-deadline         25s") && text.contains("shop/one ready"), "{text}");

    let last: serde_json::Value =
        serde_json::from_str(&proxy.page("/services/shop/one/last?json").await).unwrap();
    let record = &last[0];
    assert_eq!((&record["path"], &record["status"]), (&"/items".into(), &200.into()), "{last}");
    let reasons = record["reasons"].as_array().unwrap();
    let says = |step: &str, words: &str| {
        reasons.iter().any(|r| r["step"] == step && r["detail"].as_str().unwrap().contains(words))
    };
    assert!(says("route", "has no routes") && says("region", "eu is here"), "{reasons:#?}");
    assert!(says("pick", &format!("one at {}", one.address)), "{reasons:#?}");
    assert_eq!(
        (&record["attempts"][0]["instance"], &record["attempts"][0]["outcome"]),
        (&"one".into(), &"200".into())
    );
    assert!(record["attempts"][0]["revision"].as_u64().unwrap() > 0);
    let text = proxy.page("/last").await;
    assert!(text.contains("GET \"/items\"") && text.contains("by revision"), "{text}");

    // For an undeclared name, the proxy keeps only this entry.
    assert_eq!(call(false, &proxy.by_host, &[("host", "none.shop")]).await.status(), StatusCode::NOT_FOUND);
    let text = proxy.page("/services/shop/none/last").await;
    assert!(text.contains("404") && text.contains("is not declared"), "{text}");

    let shown = Proxy::status(&proxy.admin, &[]).await.ok();
    for words in ["connected", "shop/one", "1 (1 near)", "eu 1", "one in eu (200)", "drain-deadline"] {
        assert!(shown.contains(words), "no {words} in\n{shown}");
    }
    let shown = Proxy::status(&proxy.admin, &["--json"]).await.json();
    let last = shown["last"].as_array().unwrap().iter().map(|record| record["service"].as_str().unwrap());
    assert_eq!(last.collect::<Vec<_>>(), ["shop/none", "shop/one"], "newest first");
    let nobody = format!("127.0.0.1:{}", free_port());
    let fails = Proxy::status(&nobody, &[]).await.fails();
    assert!(fails.contains("nothing accepts connections there") && fails.contains("--admin"), "{fails}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_log_line_names_server_size_and_outcome() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let proxy = Proxy::start(&world).await;
    call(false, &proxy.for_one, &[("traceparent", &format!("00-{TRACE}-00f067aa0ba902b7-00"))]).await;
    let line = async |of: &str| {
        until("it is logged", async || proxy.process.log().lines().any(|line| line.contains(of))).await;
        let log = proxy.process.log();
        let line = log.lines().find(|line| line.contains(of)).unwrap();
        serde_json::from_str::<serde_json::Value>(line).unwrap()
    };
    let whole = line("\"status\":200").await;
    for (name, value) in [("instance", "one"), ("region", "eu"), ("trace_id", TRACE), ("path", "/items")] {
        assert_eq!(whole[name], value, "{whole}");
    }
    assert_eq!(
        (&whole["attempts"], &whole["bytes_in"], &whole["bytes_out"]),
        (&1.into(), &0.into(), &0.into())
    );
    assert!(whole["total_ms"].as_f64() >= whole["ms"].as_f64(), "{whole}");

    // A server that announces a longer body than it sends.
    let raw = RawServer::start(&world, "shop/raw", "raw").await;
    let breaks_off = async {
        let mut connection = raw.accept().await;
        read_head(&mut connection).await;
        connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\ntea").await.unwrap();
    };
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let request = Request::get(format!("http://{}/", proxy.by_host)).header("host", "raw.shop");
    let (answer, ()) = tokio::join!(client.request(request.body(Empty::new()).unwrap()), breaks_off);
    assert!(answer.unwrap().into_body().collect().await.is_err(), "it broke off");
    let broken = line("\"ended\":\"broken\"").await;
    assert_eq!((&broken["service"], &broken["bytes_out"]), (&"shop/raw".into(), &3.into()), "{broken}");

    // A client that does not wait for the response.
    let slow = Spec { work: Duration::from_secs(60), ..Spec::new("shop/slow", "slow", Protocol::Http1) };
    let _slow = slow.here(&world).await;
    let tries = proxy.metric("attempts_total").await;
    let to = proxy.by_host.clone();
    let waiting = tokio::spawn(async move { call(false, &to, &[("host", "slow.shop")]).await });
    until("it is tried", async || proxy.metric("attempts_total").await > tries).await;
    waiting.abort();
    let given_up = line("\"fault\":\"given_up\"").await;
    assert_eq!((&given_up["service"], &given_up["status"]), (&"shop/slow".into(), &499.into()), "{given_up}");
    let last = proxy.page("/services/shop/slow/last").await;
    assert!(last.contains("slow of shop/slow") && last.contains("cancelled before the response"), "{last}");
}
