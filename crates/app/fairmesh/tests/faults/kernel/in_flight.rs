//! The limit on requests in flight that the kernel sends for the programs of a cgroup.

use super::{Attached, requests::Log};
use crate::harness::{World, beside_others, skipped, tool, until};

/// The limit.
const MOST: u64 = 2;

/// Six connections with one concurrent request each, whose responses come late or never.
const CALLERS: &str = r#"
import socket, sys

def ask(one, path):
    one.sendall(b"GET /%s HTTP/1.1\r\nhost: raw.shop\r\n\r\n" % path)

def read(one, path):
    response = b""
    while not response.endswith(b"\r\n\r\n" + path):
        try:
            part = one.recv(1000)
        except ConnectionError:
            part = b""
        if not part:
            return print("ended")
        response += part
    if not response.startswith(b"HTTP/1.1 200 "):
        print(response)

callers = [socket.create_connection(("127.96.0.1", 80), 20) for _ in range(6)]
for one in callers:
    one.settimeout(20)
    ask(one, b"first")
    read(one, b"first")
for one in callers:
    ask(one, sys.argv[1].encode())
for one in callers:
    read(one, sys.argv[1].encode())
"#;

/// Requests in flight that the kernel sent for the only cgroup.
async fn in_flight(attached: &Attached) -> u64 {
    attached.status().await["attachments"][0]["inFlight"].as_u64().unwrap()
}

/// Whether the kernel sent exactly [`MOST`] of six requests. Panics if any is still counted as in flight afterwards.
async fn is_limited(attached: &Attached) -> bool {
    let before = attached.counter("too-many-in-flight").await;
    assert_eq!(attached.run(&["python3", "-c", CALLERS, "slow"]).await.ok(), "", "all get their responses");
    assert_eq!(in_flight(attached).await, 0);
    let beyond = attached.counter("too-many-in-flight").await - before;
    assert!(beyond <= 6 - MOST);
    beyond == 6 - MOST
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_requests_beyond_in_flight_limit_of_cgroup_use_sidecar() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("the callers are a Python program", "python3 is missing");
    }
    let Some(attached) = Attached::new("most").await else { return };
    let world = World::start("").await;
    let log = Log::default();
    let (serving, _registered) = log.serve_all(&world).await;
    let proxy = attached.proxy(&world).await;
    attached.attach_with(&["--max-in-flight", &MOST.to_string()]).await;
    until("two of six requests are the kernel's", async || is_limited(&attached).await).await;
    let status = attached.kernel(&["status"]).await.ok();
    assert!(status.contains(", 0 of 2 requests in flight"), "{status}");

    let waiting = attached.run(&["python3", "-c", CALLERS, "never"]);
    let killed = async {
        let is_full = async || in_flight(&attached).await == MOST && log.count("/never ") == 6;
        until("two of six requests are in flight by the kernel", is_full).await;
        drop(proxy);
    };
    let (said, ()) = tokio::join!(waiting, killed);
    assert_eq!(said.ok(), "ended\n".repeat(6));

    let _proxy = attached.proxy(&world).await;
    until("the kernel sends for the next proxy", async || {
        attached.curl(&["http://raw.shop/first", "--resolve", "raw.shop:80:127.96.0.1"]).await;
        in_flight(&attached).await == 0
    })
    .await;
    until("two of six requests are the kernel's again", async || is_limited(&attached).await).await;
    serving.abort();
}
