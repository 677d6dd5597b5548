//! Requests to local servers with bodies too large for the kernel to keep a copy.

use super::{
    Attached,
    local::{LocalServer, WITHOUT_LOG, call, called_until_published, directly, proxy_counts},
    requests::{CALLER, Log},
};
use crate::harness::{World, beside_others, skipped, tool, until};

/// Every kind of response that the proxy must read, and a body that is too large for the kernel.
const MIXED: &str = "
for path in b'plain-7 split-9 chunked-5 plain-60000 plain-70000 load-3 slow-5 fail'.split():
    ask(path, b'c' * 50000)
ask(b'plain-1', b'd' * 70000)
";

/// Sends a request with a body of `size` bytes, for which the server closes the connection without a response. Returns
/// the status that the caller gets, how often the server received the request, and the number of kernel-sent requests
/// of the connection, which is five.
async fn lost(attached: &Attached, size: usize) -> (String, u64, u64) {
    let count = "send(b'count-0')\nprint(int(read_response()[1]))\n";
    let script = format!(
        "for _ in range(3):\n    ask(b'plain-1')\n{count}send(b'die-1', b'b' * {size})\nprint(read_response()[0].decode())"
    );
    let sent = attached.counter("sent-by-kernel").await;
    let said = call(attached, &script).await;
    let sent = attached.counter("sent-by-kernel").await - sent;
    let (before, status) = said.trim().split_once('\n').unwrap();
    let after: u64 = call(attached, count).await.trim().parse().unwrap();
    (status.to_owned(), after - before.parse::<u64>().unwrap() - 1, sent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_reach_local_server_exactly_once() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("caller and server are Python programs", "python3 is missing");
    }
    let Some(attached) = Attached::new("large").await else { return };
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, "4").await;
    let proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    attached.attach_with(&["--servers", &server.cgroup]).await;

    let published_after = called_until_published(&attached).await;
    let direct =
        directly(&attached, "for at in range(30):\n    ask(b'plain-7', b'b' * (2000 * (at + 1)))").await;
    assert!(direct >= 25, "{direct} of 30, without those before the proxy served the connection");
    let before = attached.counter("sent-by-kernel").await;
    directly(&attached, MIXED).await;
    let sent = attached.counter("sent-by-kernel").await - before;
    assert!(sent >= 6, "{sent} of 8");
    proxy_counts(&proxy, published_after + 30 + 7 + 1, 1).await;

    for size in [100, 50_000] {
        until("the kernel sends all but the first, and the lost one too", async || {
            let (status, received, sent) = lost(&attached, size).await;
            assert_eq!((status.as_str(), received), ("502", 1), "the server may have acted upon it");
            sent == 4
        })
        .await;
    }

    let route = "{name: all, match: {path: {prefix: /}}, idempotent: true}";
    world.apply(&format!("{{kind: Policy, service: shop/raw, routes: [{route}]}}")).await.ok();
    until("a large request that may be sent twice is the sidecar's, which keeps it", async || {
        let (_, received, sent) = lost(&attached, 50_000).await;
        received > 1 && sent == 3
    })
    .await;
    let before = attached.counter("too-large").await;
    directly(&attached, "for at in range(5):\n    ask(b'plain-7', b'b' * 5000)").await;
    // The first request may arrive before the proxy has set up the connection.
    assert!(attached.counter("too-large").await - before >= 4);
}

/// Two connections through the proxy. On the first, a request occupies the only pooled connection during the whole
/// script; on the second, a large request follows.
const BESIDE_ONE_IN_FLIGHT: &str = "
call(b'first'); call(b'second')
waiting = connection
connection = socket.create_connection(('127.96.0.1', 80), 20)
connection.settimeout(20)
file = connection.makefile('rb')
call(b'third'); call(b'fourth')
waiting.sendall(b'GET /never HTTP/1.1\\r\\nhost: raw.shop\\r\\n\\r\\n')
call(b'large', b'x' * 3000)
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_to_remote_servers_use_no_kernel_connection() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("the caller is a Python program", "python3 is missing");
    }
    let Some(attached) = Attached::new("elsewhere").await else { return };
    let world = World::start("").await;
    // The server is on this machine, but not in a cgroup of servers.
    let (serving, _registered) = Log::default().serve_all(&world).await;
    let _proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    attached.attach_with(&["--servers", &format!("{}-servers", attached.cgroup)]).await;

    let counters = async || {
        let counters = attached.status().await["counters"].clone();
        ["sent-by-kernel", "too-large", "no-idle-connection"].map(|name| counters[name].as_u64().unwrap())
    };
    until("the kernel sends what is in flight", async || {
        let before = counters().await;
        let script = format!("{CALLER}{BESIDE_ONE_IN_FLIGHT}");
        let said = attached.run(&["python3", "-c", &script]).await.ok();
        assert_eq!(said.replace("200 ", ""), "first\nsecond\nthird\nfourth\nlarge\n");
        let after = counters().await;
        let [sent, too_large, not_idle] = [0, 1, 2].map(|at| after[at] - before[at]);
        // The first request of each connection may arrive before the proxy has set up the connection.
        let is_in_flight = sent >= 3;
        assert!(!is_in_flight || too_large == 1, "it looked for an idle one: {not_idle}");
        is_in_flight
    })
    .await;
    serving.abort();
}
