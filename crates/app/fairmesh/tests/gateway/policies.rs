//! The gateway applies service policies to callers behind nodes.

use fairmesh_model::{RecordKey, ServiceName};
use fairmesh_test_support::eventually_async as until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::mesh::{Mesh, VIRTUAL, serve_pod};

/// An upgraded connection counts as a request in flight until its end.
const IN_FLIGHT: &str = "fairmesh_gateway_tenant_requests_in_flight{tenant=\"red\"}";

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_serves_only_callers_that_policy_of_service_allows() {
    let Some(mesh) = Mesh::start(serve_pod().await).await else { return };
    let [client, web] = [mesh.identity("red", "red/client").await, mesh.identity("red", "red/web").await];
    until("red reaches its web", async || {
        mesh.call(&client, VIRTUAL, &get("/")).await.contains("red/web for")
    })
    .await;
    for (path, status) in [("/moved", "308"), ("/injected", "418")] {
        let answer = mesh.call(&client, VIRTUAL, &get(path)).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        let answer = mesh.call(&web, VIRTUAL, &get(path)).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "red/web is in no rule, {path}: {answer}");
    }
    // A fault names the service and the kind of failure, but no server address.
    let answer = mesh.call(&client, VIRTUAL, &get("/dropped")).await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("red/web: reset;"), "{answer}");
    assert!(!answer.contains("127.0.0.1"), "{answer}");
    let by_region =
        "fairmesh_gateway_responses_total{tenant=\"red\",service=\"red/web\",region=\"eu\",class=\"2xx\"} ";
    assert!(mesh.metric(by_region).await > 0, "responses are counted by tenant, service and region");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgraded_connection_ends_when_its_caller_is_no_longer_allowed() {
    let Some(mesh) = Mesh::start(serve_pod().await).await else { return };
    let client = mesh.identity("red", "red/client").await;
    until("red reaches its web", async || {
        mesh.call(&client, VIRTUAL, &get("/")).await.contains("red/web for")
    })
    .await;
    let mut stream = mesh.open(&client, VIRTUAL).await.unwrap();
    stream
        .write_all(b"GET /echo HTTP/1.1\r\nhost: web\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
        .await
        .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    mesh.counts(false, IN_FLIGHT, "1").await;
    // A changed rule that still allows the caller changes nothing.
    let policy = |from: &str| {
        format!(
            "{{kind: Policy, service: red/web, authorization: {{rules: [{{name: now, from: ['{from}']}}]}}}}"
        )
    };
    mesh.cli(&["apply", "-f", "-"], &policy("red/client")).await.ok();
    until("the new rule applies", async || {
        mesh.call(&client, VIRTUAL, &get("/").replace("GET", "PUT")).await.contains("red/web for")
    })
    .await;
    stream.write_all(b"tea").await.unwrap();
    let mut echoed = [0; 3];
    stream.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"tea");
    mesh.cli(&["apply", "-f", "-"], &policy("red/other")).await.ok();
    let ended = tokio::time::timeout(fairmesh_test_support::PATIENCE, stream.read(&mut echoed)).await;
    assert!(!matches!(ended.expect("it stays open"), Ok(1..)), "nothing was sent");
    mesh.counts(false, IN_FLIGHT, "0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_with_unreadable_policy_refuses_calls_of_its_service_only() {
    let Some(mut mesh) = Mesh::start(serve_pod().await).await else { return };
    let ruled = "{kind: Service, name: red/ruled}\n---\n\
        {kind: Policy, service: red/ruled, authorization: {rules: [{name: all, from: ['red/*']}]}}";
    mesh.cli(&["apply", "-f", "-"], ruled).await.ok();
    let [client, web] = [mesh.identity("red", "red/client").await, mesh.identity("red", "red/web").await];
    until("red reaches its web", async || mesh.reaches_web(&client).await).await;
    let service = |name: &str| ServiceName::new(name).unwrap();
    mesh.damage(&[RecordKey::Policy(service("red/web")), RecordKey::DefaultAuthorization]).await;

    let answer = async |mesh: &Mesh, host: &str, address: &str| {
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        mesh.call(&web, address, &request).await
    };
    // red/web is in no rule of its own policy, and the default of the mesh was to allow.
    let refused = answer(&mesh, "web", VIRTUAL).await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("red/web: unavailable"), "{refused}");
    let log = std::fs::read_to_string(mesh.path("gateway.log")).unwrap();
    for part in ["the policy cannot be read: all calls of its service are refused", "/t/red/policies/web"] {
        assert!(log.contains(part), "{log}");
    }
    let refused = answer(&mesh, "client", "10.96.0.9:80").await;
    assert!(refused.starts_with("HTTP/1.1 403 "), "an unreadable default allows nothing: {refused}");
    let allowed = answer(&mesh, "ruled", "10.96.0.9:80").await;
    assert!(allowed.contains("red/ruled: no_endpoints"), "a rule allows the call: {allowed}");
    mesh.counts(false, "fairmesh_gateway_tenant_services_unavailable{tenant=\"red\"}", "1").await;
    let why = mesh.cli(&["explain", "red/web", "--as", "red/web"], "").await.fails();
    assert!(why.contains("/g/authorization: the bytes are not"), "{why}");

    examine_unreadable(&mesh).await;
    let policy =
        "{kind: Policy, service: red/web, authorization: {rules: [{name: reads, from: [red/client]}]}}";
    let diff = mesh.cli(&["diff", "-f", "-"], policy).await.fails_with(3);
    assert!(diff.contains("/t/red/policies/web cannot be read"), "{diff}");
    let applied = mesh.cli(&["apply", "-f", "-"], policy).await;
    assert_eq!(applied.code, Some(0), "{applied:?}");
    for part in [
        "/t/red/policies/web cannot be read: the bytes are not",
        "the written record replaces it",
        "/g/authorization cannot be read: the bytes are not",
        "access to red/web widens: rule 'reads' allows red/client",
    ] {
        assert!(applied.err.contains(part), "{part}: {applied:?}");
    }
    until("the policy applies", async || mesh.reaches_web(&client).await).await;
    let refused = answer(&mesh, "web", VIRTUAL).await;
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    let applied = mesh.cli(&["apply", "-f", "-"], "{kind: Authorization, default: allow}").await;
    assert!(applied.code == Some(0) && applied.err.contains("access widens to all services"), "{applied:?}");
    let is_allowed = async || answer(&mesh, "client", "10.96.0.9:80").await.contains("no_endpoints");
    until("the default applies", is_allowed).await;
}

/// Commands print what can be read, and name the two records that cannot.
async fn examine_unreadable(mesh: &Mesh) {
    let unreadable = ["/t/red/policies/web cannot be read: ", "/g/authorization cannot be read: "];
    let commands: [(&[&str], &str); 4] = [
        (&["get", "policies"], "red/ruled"),
        (&["get", "services"], "red/web"),
        (&["describe", "red/web"], "red/web"),
        (&["delete", "service", "red/client", "--dry-run"], "would be deleted"),
    ];
    for (command, shown) in commands {
        let run = mesh.cli(command, "").await;
        assert!(run.code == Some(0) && run.out.contains(shown), "{command:?}: {run:?}");
        assert!(run.err.contains(unreadable[1]), "{command:?}: {run:?}");
    }
    let listed = mesh.cli(&["get", "policies"], "").await;
    assert!(listed.err.contains(unreadable[0]), "{listed:?}");
    let history = mesh.cli(&["history", "policy", "red/web"], "").await.ok();
    assert!(history.contains("cannot be read: "), "{history}");
    let checked = mesh.cli(&["check"], "").await;
    for record in unreadable {
        assert!(checked.out.contains(record), "{checked:?}");
    }
    let found: Vec<_> = checked.out.lines().filter(|line| line.contains("record.unreadable")).collect();
    assert_eq!(found.len(), unreadable.len(), "{checked:?}");
}
