//! Programs that close their sending side or do not read received data.

use std::fs;

use super::{
    Attached,
    local::{CALLS, LocalServer, WITHOUT_LOG, call},
    requests::{CALLER, Log},
};
use crate::harness::{World, beside_others, skipped, tool, until};

/// Callers that do not read their responses, while another caller reads. Prints the number of requests that the server
/// received meanwhile.
const UNREADING: &str = r#"
import time
request = b"GET /plain-60000 HTTP/1.1\r\nhost: raw.shop\r\n\r\n"
patient = [socket.create_connection(("127.96.0.1", 80), 20) for _ in range(20)]
stuck = socket.create_connection(("127.96.0.1", 80), 20)
for one in patient + [stuck]:
    one.settimeout(20)
for one in patient:
    one.sendall(request * 2)
    one.sendall(request)
stuck.sendall(request * 3000)

last, same = 0, 0
while same < 5:
    send(b"count-0")
    count = int(read_response()[1])
    # All but this caller's own.
    same, last = (same + 1 if count == last + 1 else 0), count
    ask(b"plain-%d" % (count % 100))
    last += 1
    time.sleep(0.05)
print(count)

for one in patient:
    connection, file = one, one.makefile("rb")
    for _ in range(3):
        check(b"plain-60000")
"#;

/// Accepts connections and reads nothing.
const DEAF: &str = r#"
import socket, sys
listener, kept = socket.create_server(("", int(sys.argv[1]))), []
while True:
    kept.append(listener.accept())
"#;

/// Requests to a server that does not read them, alternating with requests to another server that responds. Runs as
/// long as a file exists.
const UNHEARD: &str = r#"
import os, time
request = b"POST /x HTTP/1.1\r\nhost: deaf.shop\r\ncontent-length: 1900\r\n\r\n" + b"b" * 1900
callers = []
while os.path.exists(sys.argv[1]):
    connection = socket.create_connection(("127.96.0.1", 80), 20)
    connection.settimeout(20)
    file = connection.makefile("rb")
    for at in range(20):
        ask(b"plain-%d" % at, b"b" * at)
    if len(callers) < 80:
        connection.sendall(request)
        callers.append(connection)
    time.sleep(0.01)
"#;

async fn none_in_flight(attached: &Attached) {
    until("no request is in flight", async || attached.status().await["inFlight"] == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_close_by_kernel_caller_cancels_its_request() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("the caller is a Python program", "python3 is missing");
    }
    let Some(attached) = Attached::new("half").await else { return };
    let world = World::start("").await;
    let log = Log::default();
    let (serving, _registered) = log.serve_all(&world).await;
    let _proxy = attached.proxy(&world).await;
    attached.attach().await;

    let script = "call(b'first'); call(b'second'); send(b'never'); connection.shutdown(socket.SHUT_WR); print(connection.recv(9))";
    let mut cancelled = 0;
    until("the kernel sends the request that is cancelled", async || {
        let before = attached.counter("sent-by-kernel").await;
        assert_eq!(call(&attached, script).await, "200 first\n200 second\nb''\n");
        cancelled += 1;
        until("the server's connection is closed", async || log.count("the caller is gone") == cancelled)
            .await;
        // The first request arrives before the proxy has set up the connection.
        attached.counter("sent-by-kernel").await >= before + 2
    })
    .await;
    none_in_flight(&attached).await;
    assert_eq!(call(&attached, "call(b'first'); call(b'last')").await, "200 first\n200 last\n");
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_caller_blocks_no_other_caller() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("callers and server are Python programs", "python3 is missing");
    }
    let Some(attached) = Attached::new("unread").await else { return };
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, "4").await;
    // Longer than the time in which the callers do not read.
    let _proxy = attached.proxy_with(&world, &format!("{WITHOUT_LOG} --idle-timeout 60s")).await;
    attached.attach_with(&["--servers", &server.cgroup]).await;
    assert_eq!(call(&attached, "for at in range(9):\n    ask(b'plain-1')").await, "");

    let said = call(&attached, UNREADING).await;
    let asked: usize = said.trim().parse().unwrap();
    // TCP windows are some megabytes at most on each side of the proxy.
    assert!(asked < 1000, "{asked} responses of 60 KB were made, of 3,000 that nobody read");
    assert!(attached.counter("answered-directly").await > 9);
    none_in_flight(&attached).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_server_blocks_only_its_own_requests() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("callers and servers are Python programs", "python3 is missing");
    }
    let Some(attached) = Attached::new("deaf").await else { return };
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, "4").await;
    let deaf = |port: u16| ["python3", "-c", DEAF, &port.to_string()].map(str::to_owned).to_vec();
    let _deaf = LocalServer::running(&world, &attached, "shop/deaf", deaf).await;
    let _proxy = attached.proxy_with(&world, &format!("{WITHOUT_LOG} --idle-timeout 60s")).await;
    attached.attach_with(&["--servers", &server.cgroup]).await;

    let file = tempfile::NamedTempFile::new().unwrap();
    let script = format!("{CALLER}{CALLS}{UNHEARD}");
    let path = file.path().display().to_string();
    let calling = ["python3", "-c", &script, &path];
    let held = async {
        until("the kernel has sent requests that are not read, and others", async || {
            let status = attached.status().await;
            let held = status["inFlight"].as_u64().unwrap();
            assert!(held <= 65, "{held} of one endpoint, and one of the other");
            held >= 2 && status["counters"]["answered-directly"].as_u64() > Some(200)
        })
        .await;
        fs::remove_file(file.path()).unwrap();
    };
    let (said, ()) = tokio::join!(attached.run(&calling), held);
    assert_eq!(said.ok(), "");
    none_in_flight(&attached).await;
}
