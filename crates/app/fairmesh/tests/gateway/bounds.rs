//! A tenant that reaches every limit must not affect the calls of another tenant.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use fairmesh_model::{Match, PathMatch, Pattern, Policy, Route};
use fairmesh_test_support::{eventually_async as until, skipped};
use fairmesh_wire::transport::Transport;
use http::{Request, StatusCode};
use rcgen::{CertificateParams, KeyPair, SanType};
use tokio::{task::JoinHandle, time::interval};

use crate::mesh::{Mesh, Options, VIRTUAL, serve_pod};

const GET: &str = "GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";
const CONNECTIONS: usize = 24;
const REQUESTS: usize = 8;
const LIMITS: &str = "--max-tenant-connections 24 --max-tenant-requests 8 --max-tenant-services 4";
/// Streams that the storm opens at once.
const STREAMS: usize = 100;
/// Route changes, at 100 per second.
const CHANGES: usize = 200;

/// Tenant blue has five further services. Its service `web` delays each request.
const RECORDS: &str = "\
{kind: Service, name: blue/s0}
---
{kind: Service, name: blue/s1}
---
{kind: Service, name: blue/s2}
---
{kind: Service, name: blue/s3}
---
{kind: Service, name: blue/s4}
---
kind: Policy
service: blue/web
routes: [{name: slow, fault: {delay: {share: 100%, time: 2s}}}]
";

/// Makes calls of the unaffected tenant in sequence.
pub(crate) struct Victim {
    stop: Arc<AtomicBool>,
    calls: JoinHandle<usize>,
}

impl Victim {
    pub(crate) fn start(mesh: &Arc<Mesh>, red: Transport) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let (mesh, stopped) = (Arc::clone(mesh), Arc::clone(&stop));
        let calls = tokio::spawn(async move {
            let mut calls = 0;
            while !stopped.load(Relaxed) {
                let answer = mesh.call(&red, VIRTUAL, GET).await;
                assert!(answer.contains("red/web for"), "after {calls} calls: {answer}");
                calls += 1;
            }
            calls
        });
        Self { stop, calls }
    }

    /// Stops the calls, asserts that none failed, and returns their number.
    pub(crate) async fn stop(self) -> usize {
        self.stop.store(true, Relaxed);
        self.calls.await.unwrap()
    }
}

/// Opens connections up to the limit, and checks that further ones are closed and counted.
async fn hold_connections(mesh: &Mesh, blue: &Transport) {
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS + 6 {
        held.push(mesh.open(blue, VIRTUAL).await.unwrap());
    }
    mesh.counts(false, "fairmesh_gateway_tenant_connections_refused_total{tenant=\"blue\"}", "6").await;
    drop(held);
    mesh.counts(false, "fairmesh_gateway_tenant_connections_open{tenant=\"blue\"}", "0").await;
}

/// Opens many streams on one connection, and checks that those beyond the limit get 429.
async fn storm(mesh: &Mesh, blue: &Transport) {
    let stream = mesh.open(blue, VIRTUAL).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    let driven = tokio::spawn(connection);
    let mut responses = Vec::new();
    for _ in 0..STREAMS {
        sender = sender.ready().await.unwrap();
        let request = Request::get("http://web/").body(()).unwrap();
        responses.push(sender.send_request(request, true).unwrap().0);
    }
    let mut refused = 0;
    for response in responses {
        let response = response.await.unwrap();
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            assert_eq!(response.headers()["x-fairmesh-fault"], "rate_limited");
            refused += 1;
        } else {
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "it has no endpoint");
        }
    }
    assert_eq!(refused, STREAMS - REQUESTS);
    let refused = refused.to_string();
    mesh.counts(false, "fairmesh_gateway_tenant_requests_refused_total{tenant=\"blue\"}", &refused).await;
    driven.abort();
}

/// Calls services beyond the limit, and checks that the fault names the option.
async fn call_many_services(mesh: &Mesh, blue: &Transport) {
    let mut answer = String::new();
    for number in 0..5 {
        let request = GET.replace("host: web", &format!("host: s{number}"));
        answer = mesh.call(blue, "10.96.9.9:80", &request).await;
    }
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("--max-tenant-services"), "{answer}");
}

/// Encodes DER as PEM (RFC 7468).
fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line) + "\n");
    format!("-----BEGIN {label}-----\n{}-----END {label}-----\n", lines.collect::<String>())
}

/// Checks with curl that a tenant's certificate from an authority outside the mesh is not used.
async fn show_invalid_certificate(mesh: &Mesh) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI("spiffe://prod/blue/web".try_into().unwrap())];
    let (certificate, private) = (mesh.path("invalid.pem"), mesh.path("invalid.key"));
    std::fs::write(&certificate, pem("CERTIFICATE", params.self_signed(&key).unwrap().der())).unwrap();
    std::fs::write(&private, pem("PRIVATE KEY", key.serialized_der())).unwrap();
    let before = mesh.metric("fairmesh_gateway_peers_refused_total ").await;
    for _ in 0..5 {
        let url = format!("https://{}/", mesh.gateway);
        let mut curl = Command::new("curl");
        curl.args(["-sk", "--max-time", "5", &url, "--cert"]).arg(&certificate).arg("--key").arg(&private);
        match tokio::task::spawn_blocking(move || curl.output()).await.unwrap() {
            Ok(output) => assert!(!output.status.success(), "{output:?}"),
            Err(error) => return skipped("curl cannot be run", error),
        }
    }
    until("it is refused", async || mesh.metric("fairmesh_gateway_peers_refused_total ").await >= before + 5)
        .await;
}

/// Policy of the tenant's service, with an expensive expression and a route named after `number`.
fn policy(number: usize) -> Policy {
    let costly = PathMatch::Regex(Pattern::new("/(x?){200}x{200}").unwrap());
    let costly = Route {
        matches: Match { path: Some(costly), ..Match::default() },
        ..Route::new("costly".parse().unwrap())
    };
    Policy {
        routes: vec![costly, Route::new(format!("change-{number}").parse().unwrap())],
        ..Policy::default()
    }
}

/// Changes routes 100 times per second while long paths are matched with an expensive expression.
async fn change_routes(mesh: &Mesh, blue: &Transport) {
    let control = mesh.control_connection().await;
    let long = GET.replace("GET /", &format!("GET /{}", "x".repeat(4000)));
    let mut ticks = interval(Duration::from_millis(10));
    for number in 0..CHANGES {
        ticks.tick().await;
        mesh.set_policies(&control, &[("blue/web", policy(number))]).await;
        if number % 20 == 0 {
            let answer = mesh.call(blue, VIRTUAL, &long).await;
            assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_at_every_gateway_limit_fails_no_call_of_other_tenant() {
    let options = Options { gateway: LIMITS, ..Options::default() };
    let Some(mesh) = Mesh::start_with(serve_pod().await, options).await else { return };
    let mesh = Arc::new(mesh);
    mesh.cli(&["apply", "-f", "-"], RECORDS).await.ok();
    let [red, blue] = [mesh.identity("red", "red/client").await, mesh.identity("blue", "blue/client").await];
    until("red reaches its web", async || mesh.call(&red, VIRTUAL, GET).await.contains("red/web for")).await;
    until("blue is known", async || mesh.call(&blue, VIRTUAL, GET).await.contains("no_endpoints")).await;
    let victim = Victim::start(&mesh, red);
    hold_connections(&mesh, &blue).await;
    storm(&mesh, &blue).await;
    call_many_services(&mesh, &blue).await;
    show_invalid_certificate(&mesh).await;
    change_routes(&mesh, &blue).await;
    let calls = victim.stop().await;
    assert!(calls > 20, "{calls}");
    assert_eq!(mesh.metric("fairmesh_gateway_tenant_requests_refused_total{tenant=\"red\"} ").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_deleted_during_calls_fails_no_call_of_other_tenant() {
    let Some(mesh) = Mesh::start(serve_pod().await).await else { return };
    let mesh = Arc::new(mesh);
    mesh.cli(&["apply", "-f", "-"], RECORDS).await.ok();
    let [red, blue] = [mesh.identity("red", "red/client").await, mesh.identity("blue", "blue/client").await];
    until("red reaches its web", async || mesh.reaches_web(&red).await).await;
    until("blue is known", async || mesh.call(&blue, VIRTUAL, GET).await.contains("no_endpoints")).await;
    let victim = Victim::start(&mesh, red);
    // The policy delays each of these calls.
    let mut calls = Vec::new();
    for _ in 0..REQUESTS {
        let (mesh, blue) = (Arc::clone(&mesh), blue.clone());
        calls.push(tokio::spawn(async move { mesh.call(&blue, VIRTUAL, GET).await }));
    }
    mesh.counts(false, "fairmesh_gateway_tenant_requests_in_flight{tenant=\"blue\"}", "8").await;
    for name in ["web", "vault", "s0", "s1", "s2", "s3", "s4"] {
        mesh.cli(&["delete", "service", &format!("blue/{name}"), "--force"], "").await.ok();
    }
    for call in calls {
        let answer = call.await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 404 ") || answer.starts_with("HTTP/1.1 503 "), "{answer}");
    }
    until("blue has no service", async || mesh.call(&blue, VIRTUAL, GET).await.starts_with("HTTP/1.1 404 "))
        .await;
    assert!(victim.stop().await > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_quota_overrides_gateway_options() {
    let Some(mesh) = Mesh::start(serve_pod().await).await else { return };
    mesh.cli(&["apply", "-f", "-"], RECORDS).await.ok();
    let [red, blue] = [mesh.identity("red", "red/client").await, mesh.identity("blue", "blue/client").await];
    until("red reaches its web", async || mesh.reaches_web(&red).await).await;
    let quota = "{kind: GatewayQuota, tenant: blue, connections: 4, services: 2, routes: 3}\n";
    mesh.cli(&["apply", "-f", "-"], quota).await.ok();
    let refused = "fairmesh_gateway_tenant_connections_refused_total{tenant=\"blue\"} ";
    let mut held = Vec::new();
    until("connections beyond the quota are refused", async || {
        held.push(mesh.open(&blue, VIRTUAL).await);
        mesh.metric(refused).await > 0
    })
    .await;
    drop(held);
    mesh.counts(false, "fairmesh_gateway_tenant_connections_open{tenant=\"blue\"}", "0").await;
    call_many_services(&mesh, &blue).await;
    // Route limits are checked at the write. Another tenant's routes are not affected.
    let routes = |service: &str| {
        let routes: Vec<String> = (0..4).map(|number| format!("{{name: r{number}}}")).collect();
        format!("{{kind: Policy, service: {service}, routes: [{}]}}\n", routes.join(", "))
    };
    let run = mesh.cli(&["apply", "-f", "-"], &routes("blue/vault")).await;
    assert!(run.code != Some(0) && run.err.contains("GatewayQuota blue"), "{run:?}");
    mesh.cli(&["apply", "-f", "-"], &routes("red/client")).await.ok();
    let listed = mesh.cli(&["get", "gateway-quotas", "--json"], "").await.json();
    assert!(listed[0]["tenant"] == "blue" && listed[0]["routes"] == 3, "{listed}");
    // Without the quota record, the options apply again.
    mesh.cli(&["delete", "gateway-quota", "blue"], "").await.ok();
    let before = mesh.metric(refused).await;
    until("the options apply", async || {
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(mesh.open(&blue, VIRTUAL).await.unwrap());
        }
        let open = mesh.metric("fairmesh_gateway_tenant_connections_open{tenant=\"blue\"} ").await;
        open == 8
    })
    .await;
    assert!(mesh.metric(refused).await >= before);
    assert!(mesh.reaches_web(&red).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_without_connections_is_removed_and_served_again() {
    let options = Options { gateway: "--service-idle-timeout 1s", ..Options::default() };
    let Some(mesh) = Mesh::start_with(serve_pod().await, options).await else { return };
    let red = mesh.identity("red", "red/client").await;
    // Only the virtual address names the service; the host does not.
    let request = GET.replace("host: web", "host: other");
    until("red reaches its web", async || mesh.call(&red, VIRTUAL, &request).await.contains("red/web for"))
        .await;
    let connections = "fairmesh_gateway_tenant_connections_total{tenant=\"red\"} ";
    until("red is forgotten", async || mesh.metric(connections).await == 0).await;
    let answer = mesh.call(&red, VIRTUAL, &request).await;
    assert!(answer.contains("red/web for"), "{answer}");
    assert_eq!(mesh.metric(connections).await, 1);
}
