//! Requests that the kernel leaves to the sidecar for any service, and what programs see of a redirected connection.

use fairmesh_model::Protocol;

use super::{
    Attached,
    local::{LocalServer, WITHOUT_LOG, call},
};
use crate::harness::{Spec, World, beside_others, skipped, tool, until};

/// Prints the peer addresses of two sockets; one is an IPv6 socket with an IPv4-mapped address, as in Java.
const PEERS: &str = "
mapped = socket.socket(socket.AF_INET6)
mapped.connect(('::ffff:127.96.0.1', 80))
print(connection.getpeername(), mapped.getpeername()[:2])
";

/// Requests to a server that closes each connection after a response without announcing it.
const CLOSED: &str = "
for at in range(60):
    ask(b'last-5')
    ask(b'plain-3')
";

/// Between these requests, the server closes the idle connection; a second connection that bypasses the proxy reports
/// this.
const IDLE: &str = "
import time
aside = socket.create_connection(('127.0.0.1', PORT))
aside_file = aside.makefile('rb')

def closed():
    aside.sendall(b'GET /closed HTTP/1.1\\r\\n\\r\\n')
    while (line := aside_file.readline()) != b'\\r\\n':
        if line.startswith(b'content-length'):
            length = int(line.split()[1])
    return int(aside_file.read(length))

for at in range(20):
    before = closed()
    ask(b'plain-3')
    ask(b'brief-5')
    end = time.monotonic() + 20
    while closed() == before:
        assert time.monotonic() < end, 'it keeps the connection'
        time.sleep(0.002)
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sidecar_sends_request_forms_that_kernel_does_not_support() {
    let _machine = beside_others().await;
    let Some(attached) = Attached::new("forms").await else { return };
    let world = World::start("").await;
    let _server = Spec::new("shop/hello", "hello-1", Protocol::Http1).here(&world).await;
    let _proxy = attached.proxy(&world).await;
    attached.attach().await;
    let url = "http://hello.shop/";
    until("the kernel sends plain requests", async || {
        let before = attached.counter("sent-by-kernel").await;
        attached.curl(&[url; 3]).await.ok();
        attached.counter("sent-by-kernel").await == before + 2
    })
    .await;

    // With prior knowledge of HTTP/2, curl 7.88 sends one request per connection.
    let forms: [(&[&str], usize); 4] = [
        (&["--head"], 3),
        (&["-H", "expect: 100-continue", "--data", "x"], 3),
        (&["-H", "transfer-encoding: chunked", "--data", "x"], 3),
        (&["--http2-prior-knowledge"], 1),
    ];
    for (form, number) in forms {
        let before = attached.counter("sent-by-kernel").await;
        let said = attached.curl(&[form, &vec![url; number]].concat()).await.ok();
        let good = said.matches("HTTP/1.1 200").count() + said.matches("HTTP/2 200").count();
        assert_eq!(good, number, "{form:?}: {said}");
        assert_eq!(attached.counter("sent-by-kernel").await, before, "{form:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_behind_kernel_sees_original_addresses_and_no_server_close() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("caller and server are Python programs", "python3 is missing");
    }
    let Some(attached) = Attached::new("closed").await else { return };
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, "4").await;
    let _proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    attached.attach_with(&["--servers", &server.cgroup]).await;

    let said = call(&attached, PEERS).await;
    assert_eq!(said, "('127.96.0.1', 80) ('::ffff:127.96.0.1', 80)\n");
    assert_eq!(call(&attached, CLOSED).await, "", "each request gets its response, on another connection");
    assert!(attached.counter("sent-by-kernel").await > 0);
    until("no request is in flight", async || attached.status().await["inFlight"] == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_replaces_idle_connections_closed_by_server() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("caller and server are Python programs", "python3 is missing");
    }
    let Some(attached) = Attached::new("idle").await else { return };
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, "4").await;
    let _proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    let script = IDLE.replace("PORT", &server.port.to_string());
    // Without an attached server, the proxy reads the responses; with one, the kernel moves them.
    for servers in [&[][..], &["--servers", &server.cgroup]] {
        attached.attach_with(servers).await;
        let before = attached.counter("sent-by-kernel").await;
        assert_eq!(call(&attached, &script).await, "", "each request gets its response");
        let sent = attached.counter("sent-by-kernel").await - before;
        assert!(sent >= 15, "{sent} of 40: the second of each two has a connection again");
        until("no request is in flight", async || attached.status().await["inFlight"] == 0).await;
    }
    assert!(attached.counter("answered-directly").await > 0);
}
