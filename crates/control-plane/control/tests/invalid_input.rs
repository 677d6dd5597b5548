//! Tests that invalid and excessive input from some programs does not harm others.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fairmesh_model::{Probe, Protocol};
use fairmesh_wire::{handshake::Connection, v1};
use support::{BOUND, TestControl, config, named, policy_key, put, read_all, service, service_key};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, timeout},
};
use tonic::Code;

fn location() -> Option<v1::Location> {
    Some(v1::Location { region: "eu".into(), ..v1::Location::default() })
}

async fn register(connection: &Connection, service: &str, instance: &str) {
    let endpoint = v1::Endpoint {
        instance: instance.into(),
        address: "127.0.0.1:8000".into(),
        location: location(),
        weight: 1000,
        ..v1::Endpoint::default()
    };
    let one = v1::Registration { service: service.into(), endpoint: Some(endpoint), declaration: None };
    let request = v1::RegisterRequest { registrations: vec![one] };
    connection.registry().register(request).await.unwrap();
}

/// Usage of one core for a whole minute, which servers had the time to report.
fn usage(service: String, instance: &str) -> v1::InstanceUsage {
    #[allow(clippy::disallowed_methods, reason = "the control plane goes by the wall clock")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 60;
    let minute = v1::MinuteUsage {
        minute: u32::try_from(now - 2).unwrap(),
        cpu_us: 60_000_000,
        covered_ms: 60_000,
        ..v1::MinuteUsage::default()
    };
    v1::InstanceUsage { service, instance: instance.into(), location: location(), minutes: vec![minute] }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cpu_usage_of_unknown_services_and_instances_is_dropped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    register(&connection, "shop/cart", "a").await;
    let invented = (0..5_000).map(|i| usage(format!("shop/invented-{i}"), "a"));
    let instances = (0..1_000).map(|i| usage("shop/cart".into(), &format!("b{i}")));
    let mut usages: Vec<_> = invented.chain(instances).collect();
    usages.push(usage("shop/cart".into(), "a"));
    let report = |usages| v1::ReportSignalsRequest { usages, ..Default::default() };
    let mut signals = connection.signals();
    let taken = signals.report(report(usages)).await.unwrap().into_inner();
    assert_eq!(taken.dropped_minutes, 6_000);
    let request = v1::ReadImbalanceRequest { by: "service".into(), ..v1::ReadImbalanceRequest::default() };
    let waste = connection.imbalance().read(request).await.unwrap().into_inner();
    let names: Vec<_> = waste.lines.iter().map(|line| line.name.as_str()).collect();
    assert_eq!((names, waste.total.unwrap().container_minutes), (vec!["shop/cart"], 1));
    let (_, metrics) = control.http("GET", "/metrics", "").await;
    for (outcome, count) in [("undeclared", 5_000), ("unregistered", 1_000), ("counted", 1)] {
        let line = format!("fairmesh_imbalance_usage_reports_total{{outcome=\"{outcome}\"}} {count}");
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }
    let many = (0..10_001).map(|_| usage("shop/cart".into(), "a")).collect();
    let refused = signals.report(report(many)).await.unwrap_err();
    assert!(
        refused.code() == Code::InvalidArgument && refused.message().contains("at most 10000"),
        "{refused}"
    );
    control.stop().await;
}

#[tokio::test]
async fn applied_service_declaration_replaces_one_made_by_registration() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let connection = control.connect().await;
    register(&connection, "shop/cart", "a").await;
    let history = async || {
        let request =
            v1::GetHistoryRequest { kind: "services".into(), service: named("shop/cart").to_string() };
        connection.admin().get_history(request).await.unwrap().into_inner().changes
    };
    assert!(history().await.iter().any(|change| change.replaced_by == "its first registration"));
    let ops = vec![put(service_key("shop/cart"), service(Protocol::Http1))];
    let outcomes = connection
        .admin()
        .apply(v1::ApplyRequest { ops, dry_run: false, ..Default::default() })
        .await
        .unwrap();
    assert_eq!(outcomes.into_inner().outcomes[0].kind(), v1::outcome::Kind::Unchanged);
    assert_eq!(history().await.len(), 1, "the history no longer names a registration");
    control.stop().await;
}

#[tokio::test]
async fn control_plane_pages_refuse_user_agent_of_health_checks() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    for path in ["/readyz", "/metrics", "/nowhere"] {
        let mut stream = TcpStream::connect(control.http).await.unwrap();
        let agent = Probe::USER_AGENT;
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: a\r\nuser-agent: {agent}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        timeout(BOUND, stream.read_to_string(&mut response)).await.unwrap().unwrap();
        assert!(response.starts_with("HTTP/1.1 403 "), "{path}: {response}");
    }
    assert_eq!(control.http("GET", "/readyz", "").await.0, "HTTP/1.1 200 OK", "other clients are served");
    control.stop().await;
}

/// A policy in which each route has a different costly expression.
fn costly(routes: usize) -> Vec<u8> {
    let route = |i: usize| v1::Route {
        name: format!("r{i}"),
        r#match: Some(v1::Match {
            path: Some(v1::r#match::Path::PathRegex(format!("/{i}/([a-z]{{1,200}}-){{1,9}}x"))),
            ..v1::Match::default()
        }),
        ..v1::Route::default()
    };
    let policy = v1::Policy {
        timeout_us: 1_000_000,
        attempts: 1,
        subset: 20,
        routes: (0..routes).map(route).collect(),
        ..v1::Policy::default()
    };
    prost::Message::encode_to_vec(&policy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_with_costly_expressions_is_refused_without_delaying_readers() {
    let folder = tempfile::tempdir().unwrap();
    let control = TestControl::start(config(folder.path().into())).await;
    let (operator, reader) = (control.connect().await, control.connect().await);
    let applying = tokio::spawn(async move {
        let ops = vec![put(policy_key("shop/cart"), costly(2_000))];
        operator.admin().apply(v1::ApplyRequest { ops, dry_run: false, ..Default::default() }).await
    });
    let (began, mut slowest) = (Instant::now(), Duration::ZERO);
    while !applying.is_finished() {
        let began = Instant::now();
        timeout(BOUND, read_all(&reader)).await.unwrap();
        slowest = slowest.max(began.elapsed());
    }
    let took = began.elapsed();
    let refused = applying.await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let text = refused.message();
    assert!(text.contains("routes[") && text.contains("path.regex") && text.contains("KiB"), "{text}");
    // Relative to the request's own duration: both take longer on a busy machine.
    assert!(
        slowest < (took / 2).max(Duration::from_secs(1)),
        "a read took {slowest:?} of the {took:?} of the refusal"
    );
    assert!(read_all(&reader).await.entries.is_empty());
    control.stop().await;
}
