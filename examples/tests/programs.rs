//! Every example, run as the README says, against a control plane and an agent of its own.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod programs {
    pub(crate) mod machine;
    pub(crate) mod process;
}

use std::{path::Path, process::Stdio};

use fairmesh_test_support::{free_port, skipped, tool};
use programs::{machine::Machine, process::fairmesh};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Command,
};

const HELLO_SERVER: &str = env!("CARGO_BIN_EXE_hello_server");
const HELLO_CLIENT: &str = env!("CARGO_BIN_EXE_hello_client");
const HYPER_FORWARD: &str = env!("CARGO_BIN_EXE_hyper_forward");
const METRICS_SERVER: &str = env!("CARGO_BIN_EXE_metrics_server");
const GRPC_SERVER: &str = env!("CARGO_BIN_EXE_grpc_server");
const GRPC_CLIENT: &str = env!("CARGO_BIN_EXE_grpc_client");
const SHARDED_SERVER: &str = env!("CARGO_BIN_EXE_sharded_server");
const SHARDED_CLIENT: &str = env!("CARGO_BIN_EXE_sharded_client");

const ANY_PORT: &str = "127.0.0.1:0";

#[tokio::test(flavor = "multi_thread")]
async fn hello_example_is_called_by_name_and_deregisters_when_it_stops() {
    let machine = Machine::start().await;
    let mut server = machine.spawn(HELLO_SERVER, &[ANY_PORT]);
    let address = server.line_after("serving on ").await;

    let called = machine.run(HELLO_CLIENT, &["3"]).await;
    assert_eq!(called.unwrap(), format!("200 OK: hello from {address}\n").repeat(3));

    assert!(server.terminate().await.success());
    let refused = machine.run(HELLO_CLIENT, &[]).await.unwrap_err();
    assert!(refused.contains("examples/hello: "), "who calls a service that left is told so: {refused}");
    assert!(refused.contains("endpoint") && !refused.contains("Fault"), "in words for people: {refused}");
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hyper_example_forwards_requests_and_faults() {
    let machine = Machine::start().await;
    let mut server = machine.spawn(HELLO_SERVER, &[ANY_PORT]);
    let address = server.line_after("serving on ").await;
    let mut forward = machine.spawn(HYPER_FORWARD, &[ANY_PORT]);
    let front = forward.line_after("serving on ").await;

    let answer = get(&front, "/").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with(&format!("\r\n\r\nhello from {address}\n")), "{answer}");

    assert!(server.terminate().await.success());
    let answer = get(&front, "/").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    forward.terminate().await;
    machine.stop().await;
}

/// The response to one request, as it comes.
async fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: front\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn axum_example_exports_metrics_of_its_calls() {
    let machine = Machine::start().await;
    let mut server = machine.spawn(HELLO_SERVER, &[ANY_PORT]);
    server.line_after("serving on ").await;
    let mut front = machine.spawn(METRICS_SERVER, &[ANY_PORT]);
    let address = front.line_after("serving on ").await;

    for _ in 0..3 {
        let answer = get(&address, "/").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
    let answer = get(&address, "/metrics").await;
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    for line in [
        "# TYPE fairmesh_client_calls_total counter",
        "fairmesh_client_calls_total 3",
        "# TYPE fairmesh_client_data_age_seconds gauge",
        "fairmesh_client_service_attempts_total{service=\"examples/hello\"} 3",
    ] {
        assert!(page.lines().any(|one| one == line), "no {line} in {page}");
    }
    if let Some(promtool) = tool("promtool") {
        promtool_accepts(&promtool, page).await;
    } else {
        skipped("metrics cannot be judged by promtool", "`scripts/setup.sh prometheus` fetches it");
    }

    assert!(front.terminate().await.success());
    assert!(server.terminate().await.success());
    machine.stop().await;
}

async fn promtool_accepts(promtool: &Path, page: &str) {
    let mut check = Command::new(promtool);
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = check.spawn().unwrap();
    check.stdin.take().unwrap().write_all(page.as_bytes()).await.unwrap();
    let judged = check.wait_with_output().await.unwrap();
    let complaints = String::from_utf8_lossy(&judged.stderr);
    assert!(judged.status.success() && complaints.is_empty(), "{complaints}");
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_example_calls_mesh_with_unchanged_generated_code() {
    let machine = Machine::start().await;
    let mut server = machine.spawn(GRPC_SERVER, &[ANY_PORT]);
    server.line_after("serving on ").await;

    assert_eq!(machine.run(GRPC_CLIENT, &["Ada"]).await.unwrap(), "good day, Ada\n");

    assert!(server.terminate().await.success());
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn key_and_role_choose_server_of_example() {
    let machine = Machine::start().await;
    let map = concat!(env!("CARGO_MANIFEST_DIR"), "/sharded.yaml");
    machine.run(fairmesh(), &["apply", "-f", map]).await.unwrap();
    let mut servers = ["cart-a", "cart-b"].map(|name| machine.spawn(SHARDED_SERVER, &[name, ANY_PORT]));
    for server in &mut servers {
        server.line_after("loaded shard ").await;
        server.line_after("loaded shard ").await;
    }

    let asked = [
        ("10", "primary", "cart-a"),
        ("618", "primary", "cart-b"),
        ("618", "secondary", "cart-a"),
        ("0x3e7", "primary", "cart-b"),
    ];
    for (key, role, holder) in asked {
        // A server that has loaded its shards is about to be called serving.
        let answer = machine.until_it_works(SHARDED_CLIENT, &[key, role]).await;
        assert!(answer.starts_with(&format!("200 OK: {holder} as {role} for key ")), "{answer}");
    }
    let refused = machine.run(SHARDED_CLIENT, &["1000"]).await.unwrap_err();
    assert!(refused.contains("1000"), "{refused}");

    let [mut first, mut second] = servers;
    assert!(first.terminate().await.success());
    // Shorter than the time that a lost connection is given to come back: neither callers nor the server have one.
    let drain = ["drain", "examples/cart", "cart-b", "--deadline", "3s"];
    machine.run(fairmesh(), &drain).await.unwrap();
    assert!(second.terminate().await.success());
    machine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn registered_python_server_without_library_is_called_by_name() {
    let machine = Machine::start().await;
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/outside.py");
    let arguments = ["register", "examples/hello", "--address", &address, "--interval", "100ms"];
    let mut server =
        machine.spawn(fairmesh(), &[&arguments[..], &["--", "python3", program, &port.to_string()]].concat());

    assert_eq!(machine.until_it_works(HELLO_CLIENT, &[]).await, "200 OK: hello from Python\n");

    server.terminate().await;
    machine.stop().await;
}
