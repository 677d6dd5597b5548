//! Programs that send a request before they have read the previous response.

use std::{env, time::Duration};

use super::{
    Attached,
    local::{LocalServer, WITHOUT_LOG},
};
use crate::harness::{World, beside_others, skipped, tool, until};

/// Sends pairs of requests on new connections from three processes; the argument is the number of pairs. The second
/// request follows the first within 200 µs. Prints responses that are out of order.
const PAIRS: &str = r#"
import os, random, socket, sys, time

def request(size):
    return b"GET /plain-%d HTTP/1.1\r\nhost: raw.shop\r\n\r\n" % size

def read(one, *sizes):
    text, bodies = b"", [b"plain-%d:%s" % (size, b"x" * size) for size in sizes]
    while text.count(b"HTTP/1.1 ") < len(bodies) or not text.endswith((bodies[0], bodies[-1])):
        piece = one.recv(65536)
        assert piece, text
        text += piece
    parts = text.split(b"HTTP/1.1 200 ")[1:]
    if len(parts) != len(bodies) or any(not part.endswith(body) for part, body in zip(parts, bodies)):
        print("not", sizes, "but", text, flush=True)

def call(seed, count):
    dice = random.Random(seed)
    for _ in range(count):
        one = socket.create_connection(("127.96.0.1", 80), 20)
        for _ in range(3):
            one.sendall(request(1))
            read(one, 1)
        first, second = dice.sample(range(1, 60), 2)
        one.sendall(request(first))
        sent = time.perf_counter() + dice.random() * 200e-6
        while time.perf_counter() < sent:
            pass
        one.sendall(request(second))
        read(one, first, second)
        one.close()

callers = []
for seed in range(3):
    callers.append(os.fork())
    if not callers[-1]:
        call(seed, int(sys.argv[1]) // 3)
        os._exit(0)
assert not any([os.waitpid(caller, 0)[1] for caller in callers])
"#;

/// Waits for edge-triggered events and stops after a short read, as runtimes do. Sends a request while the previous
/// response is unread, as often as the argument says; prints how often the second response was missing.
const SHORT_READS: &str = r#"
import select, socket, sys, time

def request(one, size):
    one.sendall(b"GET /plain-%d HTTP/1.1\r\nhost: raw.shop\r\n\r\n" % size)

def read(one, edges, text):
    while text.count(b"HTTP/1.1 ") < 2 and edges.poll(3):
        while True:
            try:
                piece = one.recv(65536)
            except BlockingIOError:
                break
            text += piece
            if len(piece) < 65536:
                break
    return text

missed = 0
for _ in range(int(sys.argv[1])):
    one = socket.create_connection(("127.96.0.1", 80), 20)
    for _ in range(4):
        request(one, 3)
        one.recv(65536)
    request(one, 5)
    # Read once it is all there, and left there.
    while not one.recv(65536, socket.MSG_PEEK).endswith(b"plain-5:xxxxx"):
        time.sleep(0.001)
    request(one, 7)
    time.sleep(0.03)
    edges = select.epoll()
    edges.register(one, select.EPOLLIN | select.EPOLLET)
    text = read(one, edges, b"")
    missed += text.count(b"HTTP/1.1 200 ") < 2 or text.find(b"plain-5:xxxxxHTTP") < 0
    one.close()
print("missed", missed)
"#;

/// Number of pairs: 100,000 per minute of `SOAK_MINUTES`, so ten million in 100 minutes.
fn pairs() -> u64 {
    const A_MINUTE: u64 = 100_000;
    let minutes = env::var("SOAK_MINUTES").ok().and_then(|minutes| minutes.parse::<u64>().ok());
    minutes.map_or(3_000, |minutes| minutes * A_MINUTE)
}

/// A mesh with a local server, attached with or without the server's cgroup, once the kernel sends requests.
async fn place(
    name: &str,
    has_servers: bool,
) -> Option<(Attached, World, LocalServer, crate::harness::Proxy)> {
    let attached = Attached::new(name).await?;
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, "4").await;
    let proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    let servers = ["--servers", &server.cgroup];
    attached.attach_with(if has_servers { &servers } else { &[] }).await;
    until("connections go to the proxy", async || !attached.status().await["proxy"].is_null()).await;
    Some((attached, world, server, proxy))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_kernel_requests_get_responses_in_order() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("caller and server are Python programs", "python3 is missing");
    }
    let Some((attached, _world, _server, _proxy)) = place("pairs", true).await else { return };
    let number = pairs();
    let at_most = Duration::from_secs(60 + number / 200);
    let said = attached.run_for(&["python3", "-c", PAIRS, &number.to_string()], at_most).await.ok();
    assert_eq!(said, "", "of {number} pairs");
    assert!(attached.counter("answered-directly").await > number, "the requests before the pairs");
    until("no request is in flight", async || attached.status().await["inFlight"] == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caller_with_short_reads_gets_responses_to_pipelined_requests() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("caller and server are Python programs", "python3 is missing");
    }
    for (name, has_servers) in [("short-reads", false), ("short-direct", true)] {
        let Some((attached, _world, _server, _proxy)) = place(name, has_servers).await else { return };
        let said = attached.run(&["python3", "-c", SHORT_READS, "5"]).await.ok();
        assert_eq!(said, "missed 0\n", "with servers: {has_servers}");
        let moved = attached.counter("short-cut").await + attached.counter("answered-directly").await;
        assert!(moved >= 5 * 3, "{moved} responses passed TCP by");
    }
}
