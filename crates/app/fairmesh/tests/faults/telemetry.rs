//! Metrics, access log and spans by route and backend, and the formats of the metrics page.

mod call_metrics;

use std::{collections::BTreeMap, path::Path, process::Stdio};

use bytes::Bytes;
use fairmesh_model::Protocol;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use rustix::process::Signal;
use serde_json::Value;
use tokio::{io::AsyncWriteExt as _, process::Command};

use crate::{
    harness::{
        Process, Program, Proxy, Spec, World, beside_others, free_port, openmetrics::Samples, otlp, skipped,
        tool, until,
    },
    limits::Fleet,
};

/// Calls to one name: half go to the next version, a few of these to a backend without servers, and some are answered
/// by the proxy itself.
const ROUTES: &str = "
kind: Service
name: shop/lost
---
kind: Policy
service: shop/one
routes:
  - name: broken
    match: {headers: [{name: x-break, exact: abort}]}
    fault: {abort: {share: 100%, status: 503}}
  - name: slow
    match: {headers: [{name: x-break, exact: delay}]}
    fault: {delay: {share: 100%, time: 20ms}}
  - name: lost
    match: {headers: [{name: x-break, exact: lost}]}
    split: [{service: shop/lost, weight: 1}]
  - name: copied
    match: {headers: [{name: x-break, exact: copy}]}
    mirror: {service: shop/next, share: 100%}
  - name: limited
    match: {headers: [{name: x-break, exact: limit}]}
    limit: {calls: 1, per: 1h, burst: 1}
  - name: canary
    split: [{service: shop/one, weight: 50}, {service: shop/next, weight: 50}]
";

async fn call(to: &str, header: Option<&str>) -> Response<Bytes> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let mut request = Request::get(format!("http://{to}/items"));
    if let Some(value) = header {
        request = request.header("x-break", value);
    }
    let (head, body) = client.request(request.body(Empty::new()).unwrap()).await.unwrap().into_parts();
    Response::from_parts(head, body.collect().await.unwrap().to_bytes())
}

fn sum(samples: &Samples, name: &str, labels: &[(&str, &str)]) -> f64 {
    let has = |of: &[(String, String)], (label, value): &(&str, &str)| {
        of.iter().any(|(l, v)| l == label && v == value)
    };
    let name = format!("fairmesh_proxy_{name}");
    let found = samples.iter().filter(|((n, of), _)| *n == name && labels.iter().all(|label| has(of, label)));
    found.map(|(_, value)| value).sum()
}

/// Starts both versions and applies the routes.
async fn shop() -> (World, [crate::harness::Local; 2]) {
    let world = World::start("").await;
    let one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let next = Spec::new("shop/next", "next", Protocol::Http1).here(&world).await;
    world.apply(ROUTES).await.ok();
    (world, [one, next])
}

/// Waits until the proxy applies the routes.
async fn has_routes(proxy: &Proxy) {
    until("the routes have arrived", async || {
        call(&proxy.for_one, Some("abort")).await.headers().contains_key("x-fairmesh-fault")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canary_service_has_its_own_metric_series() {
    let _machine = beside_others().await;
    let (world, _servers) = shop().await;
    // Without an access log, so that the fast path is used too.
    let proxy = Proxy::with(&world, "--access-log off").await;
    has_routes(&proxy).await;
    let mut by = BTreeMap::<String, f64>::new();
    for _ in 0..60 {
        let answer = call(&proxy.for_one, None).await;
        *by.entry(answer.headers()["x-instance"].to_str().unwrap().to_owned()).or_default() += 1.0;
    }
    assert!(by["one"] > 5.0 && by["next"] > 5.0, "{by:?}");
    for header in ["lost", "copy", "limit", "limit", "delay"] {
        call(&proxy.for_one, Some(header)).await;
    }
    proxy.reaches("mirrored_calls_total", 1.0).await;

    let samples = proxy.samples().await;
    let responses = |route, backend, class| {
        let labels = [("service", "shop/one"), ("route", route), ("backend", backend), ("class", class)];
        sum(&samples, "responses_total", &labels)
    };
    assert_eq!(responses("canary", "shop/one", "2xx"), by["one"], "{samples:#?}");
    assert_eq!(responses("canary", "shop/next", "2xx"), by["next"]);
    assert_eq!(responses("lost", "shop/lost", "5xx"), 1.0, "a fault is one of the backend that it was for");
    assert_eq!(responses("limited", "shop/one", "4xx"), 1.0);
    assert!(responses("broken", "shop/one", "5xx") >= 1.0);
    let durations = [("route", "canary"), ("backend", "shop/next")];
    assert_eq!(sum(&samples, "response_headers_duration_seconds_count", &durations), by["next"]);
    for (name, least) in [
        ("rate_limited_calls_total", 1.0),
        ("injected_aborts_total", 1.0),
        ("injected_delays_total", 1.0),
        ("mirrored_calls_total", 1.0),
        ("attempts_without_endpoint_total", 1.0),
        ("attempts_total", 60.0),
    ] {
        assert!(sum(&samples, name, &[("service", "shop/one")]) >= least, "{name}: {samples:#?}");
    }
    assert!(
        samples.keys().any(|(name, labels)| name.ends_with("_retries_total") && labels[0].0 == "service")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_log_and_spans_show_injected_faults_routes_and_backends() {
    let _machine = beside_others().await;
    let (world, _servers) = shop().await;
    let collector = otlp::TraceCollector::start().await;
    let arguments = format!("--trace-to {} --trace-one-in 1", collector.address);
    let mut proxy = Proxy::with(&world, &arguments).await;
    has_routes(&proxy).await;
    for header in [Some("delay"), Some("lost"), Some("limit"), Some("limit"), None] {
        call(&proxy.for_one, header).await;
    }
    proxy.process.signal(Signal::TERM);
    assert!(proxy.process.end().await.success());

    let log = std::fs::read_to_string(world.path("proxy.log")).unwrap();
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let line = |route: &str| {
        lines.iter().rfind(|line| line["route"] == route).unwrap_or_else(|| panic!("no {route} in {log}"))
    };
    let broken = line("broken");
    assert_eq!((&broken["injected"], &broken["status"]), (&"abort".into(), &503.into()), "{broken}");
    assert_eq!(line("slow")["injected"], "delay");
    assert_eq!(
        (&line("lost")["backend"], &line("lost")["fault"]),
        (&"shop/lost".into(), &"no_endpoints".into())
    );
    let canary = line("canary");
    let backend = if canary["instance"] == "next" { "shop/next" } else { "shop/one" };
    assert_eq!((&canary["backend"], &canary["injected"]), (&backend.into(), &Value::Null), "{canary}");

    let spans = collector.all();
    let span = |route: &str| {
        let of = |span: &&fairmesh_otlp::v1::Span| {
            otlp::attributes(span).get("fairmesh.route").is_some_and(|name| name == route)
        };
        spans.iter().rfind(of).unwrap_or_else(|| panic!("no span of {route} in {spans:#?}"))
    };
    let attributes = |route| otlp::attributes(span(route));
    assert_eq!(attributes("broken")["fairmesh.injected_fault"], "abort");
    assert_eq!(attributes("lost")["fairmesh.backend"], "shop/lost");
    let is_error = |route| span(route).status.as_ref().is_some_and(|status| status.code == 2);
    assert!(is_error("broken") && is_error("lost") && !is_error("slow"), "{spans:#?}");
    // Semantic conventions for HTTP: the server span of a refused request is no server error.
    let limited = attributes("limited");
    assert_eq!(
        (&*limited["http.response.status_code"], &*limited["fairmesh.fault"]),
        ("429", "rate_limited")
    );
    assert!(!is_error("limited") && !limited.contains_key("error.type"), "{limited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opentelemetry_variables_configure_traces() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let collector = otlp::TraceCollector::start().await;
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.address),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20YTpi"),
        ("OTEL_SERVICE_NAME", "edge"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=other"),
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "1.0"),
    ];
    let with = |more: Option<(&'static str, &str)>| {
        let env = variables.iter().copied().chain(more);
        let env: Vec<_> = env.map(|(name, value)| (name, value.to_owned())).collect();
        |log: std::path::PathBuf, args: &str| Program { env, ..Program::fairmesh(log, args) }
    };
    let mut proxy = Proxy::run(&world, "", with(None)).await;
    call(&proxy.for_one, None).await;
    proxy.process.signal(Signal::TERM);
    assert!(proxy.process.end().await.success());
    assert_eq!(collector.count(), 2, "a request and its attempt");
    let (authorization, resource) = collector.last();
    assert_eq!(authorization, "Basic YTpi");
    assert_eq!((&*resource["service.name"], &*resource["deployment.environment.name"]), ("edge", "test"));
    assert_eq!(resource["service.instance.id"], "proxy");

    let mut silent = Proxy::run(&world, "", with(Some(("OTEL_SDK_DISABLED", "true")))).await;
    call(&silent.for_one, None).await;
    silent.process.signal(Signal::TERM);
    assert!(silent.process.end().await.success());
    assert_eq!(collector.count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promtool_accepts_metrics_of_every_process() {
    let Some(promtool) = tool("promtool") else {
        return skipped("metrics cannot be judged by promtool", "`scripts/setup.sh prometheus` fetches it");
    };
    let _machine = beside_others().await;
    let fleet = Fleet::start(None).await;
    let [traffic, own, admin] = [(); 3].map(|()| format!("127.0.0.1:{}", free_port()));
    let arguments = format!(
        "proxy --agent unix:{} --listen {traffic} --inbound shop/one@{own}=127.0.0.1:9 --admin {admin} \
         --metrics-per-endpoint --trace-to http://127.0.0.1:9 --client-id proxy",
        fleet.agent_socket().display()
    );
    let _proxy = Process::start(Program::fairmesh(fleet.path("proxy.log"), &arguments));
    until("the proxy has pages", async || page(&admin).await.is_some()).await;
    until("it serves", async || call_is_answered(&traffic).await).await;
    let (_key_server, keys_http) = fleet.start_key_server().await;
    let (_register, register_http) = start_register(&fleet).await;
    let (_dev, [dev_control, dev_agent, dev_proxy]) = start_dev(&fleet).await;
    for (process, address) in [
        ("control", &fleet.control_http),
        ("replica", &fleet.replica_http),
        ("agent", &fleet.agent_http),
        ("lookaside", &fleet.lookaside_http),
        ("keyserver", &keys_http),
        ("proxy", &admin),
        ("control", &dev_control),
        ("agent", &dev_agent),
        ("proxy", &dev_proxy),
        ("register", &register_http),
    ] {
        let page = page(address).await.unwrap();
        let text = String::from_utf8_lossy(&page);
        for name in [
            format!("fairmesh_build_info{{process=\"{process}\",version="),
            "process_resident_memory_bytes ".to_owned(),
            "process_cpu_seconds_total ".to_owned(),
            "process_open_fds ".to_owned(),
        ] {
            assert!(text.lines().any(|line| line.starts_with(&name)), "no {name} of the {process}: {text}");
        }
        let complaints = complaints(&promtool, &page).await;
        assert!(complaints.is_empty(), "{process}: {complaints}");
    }
}

/// Metrics page at an address; `None` while there is none.
pub(crate) async fn page(address: &str) -> Option<Bytes> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let answer = client.get(format!("http://{address}/metrics").parse().unwrap()).await.ok()?;
    Some(answer.into_body().collect().await.ok()?.to_bytes())
}

/// `register` in front of a program that does not listen, so that its requests fail and are counted; with the address
/// of its pages.
pub(crate) async fn start_register(fleet: &Fleet) -> (Process, String) {
    let [admin, front, program] = [(); 3].map(|()| format!("127.0.0.1:{}", free_port()));
    let arguments = format!(
        "register shop/registered --agent unix:{} --address {front} --program {program} --admin {admin} \
         --trace-to http://127.0.0.1:9",
        fleet.agent_socket().display()
    );
    let register = Process::start(Program::fairmesh(fleet.path("register.log"), &arguments));
    until("register has pages", async || page(&admin).await.is_some()).await;
    until("it serves", async || call_is_answered(&front).await).await;
    (register, admin)
}

/// A mesh in one process, with the addresses of the pages of its control plane, agent and proxy.
async fn start_dev(fleet: &Fleet) -> (Process, [String; 3]) {
    let pages @ [http, metrics, admin] = &[(); 3].map(|()| format!("127.0.0.1:{}", free_port()));
    let socket = |name: &str| format!("unix:{}", fleet.path(name).display());
    let arguments = format!(
        "dev --control {} --agent {} --proxy 127.0.0.1:{} --control-admin {http} --agent-admin {metrics} --admin {admin}",
        socket("dev-control.sock"),
        socket("dev-agent.sock"),
        free_port()
    );
    let dev = Process::start(Program::fairmesh(fleet.path("dev.log"), &arguments));
    for address in pages {
        until("the mesh in one process has pages", async || page(address).await.is_some()).await;
    }
    (dev, pages.clone())
}

/// Problems that promtool finds in a metrics page.
async fn complaints(promtool: &Path, page: &[u8]) -> String {
    let mut check = Command::new(promtool);
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = check.spawn().unwrap();
    check.stdin.take().unwrap().write_all(page).await.unwrap();
    let judged = check.wait_with_output().await.unwrap();
    let complaints = String::from_utf8_lossy(&judged.stderr).into_owned();
    assert_eq!(judged.status.success(), complaints.is_empty(), "{complaints}");
    complaints
}

/// Whether the proxy responds, so that its page has series of a service.
async fn call_is_answered(proxy: &str) -> bool {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let request = Request::get(format!("http://{proxy}/")).header("host", "one.shop").body(Empty::new());
    client.request(request.unwrap()).await.is_ok_and(|answer| answer.status() != 404)
}
