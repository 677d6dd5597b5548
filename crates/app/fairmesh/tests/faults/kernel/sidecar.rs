//! Requests that the sidecar sends to servers on this machine use the short cut on both sides.

use super::{
    Attached,
    local::{ABORTS, LocalServer, WITHOUT_LOG, call, proxy_counts},
    remote::{MIXED, READERS},
};
use crate::harness::{World, beside_others, skipped, tool, until};

/// Requests with bodies of many lengths, and responses that follow informational ones.
const BODIES: &str = "
def ask_early():
    send(b'early-5')
    while file.readline().split()[1] == b'103':
        while file.readline() != b'\\r\\n':
            pass
    length = 0
    while (line := file.readline()) != b'\\r\\n':
        if line.lower().startswith(b'content-length'):
            length = int(line.split()[1])
    if file.read(length) != b'early-5:xxxxx':
        print('another body')

for at in range(30):
    ask(b'plain-%d' % (at * 2000), b'b' * (at * at * 100))
    ask_early()
    ask(b'plain-1')
";

/// A part of a body that looks like a request, while the server has not read the head. Outside TCP, the part would
/// overtake the head.
const PARTS: &str = "
import time

def queued():
    total = 0
    for line in open('/proc/net/tcp').readlines()[1:]:
        words = line.split()
        if int(words[1].split(':')[1], 16) == PORT and words[3] == '01':
            total += int(words[4].split(':')[1], 16)
    return total

def is_queued(least, seconds):
    end = time.monotonic() + seconds
    while queued() < least:
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True

part = b'GET /plain-9 HTTP/1.1\\r\\nhost: raw.shop\\r\\n\\r\\n'
head = b'POST /plain-1 HTTP/1.1\\r\\nhost: raw.shop\\r\\ncontent-length: %d\\r\\n\\r\\nab' % (2 + len(part))

def was_held():
    ask(b'hold-1')
    connection.sendall(head)
    # The sidecar may take another connection than the one that the server does not read from.
    held = is_queued(len(head), 2)
    size = queued()
    connection.sendall(part)
    assert not held or is_queued(size + len(part), 20), 'it does not pass TCP'
    aside = socket.create_connection(('127.0.0.1', PORT))
    aside.sendall(b'GET /release HTTP/1.1\\r\\n\\r\\n')
    # A release that is processed later would release the next server that is held.
    assert aside.recv(1), 'the server does not respond'
    check(b'plain-1', b'ab' + part)
    return held

assert any(was_held() for _ in range(10)), 'the server has read every head'
ask(b'plain-2')
";

/// Pipelined requests: one is in the queue of moved data, the following ones are in the queue of TCP.
const PIPELINED: &str = "
for at in range(500):
    paths = [b'plain-%d' % (at + more) for more in range(3)]
    for path in paths:
        send(path)
    for path in paths:
        check(path)
";

/// A service whose requests all go through the sidecar, since the sidecar must send their deadline.
const POLICY: &str = "{kind: Policy, service: shop/raw, timeout: 20s}";

/// Runs all scripts. Returns the numbers of requests to the server, responses from the server, responses to the caller
/// and requests from the caller that took the short cut.
async fn by_the_sidecar(name: &str, options: &[&str]) -> Option<[u64; 4]> {
    let attached = Attached::new(name).await?;
    let world = World::start(POLICY).await;
    let mut server = LocalServer::start(&world, &attached, "4").await;
    attached.attach_with(&[&["--servers", &server.cgroup], options].concat()).await;
    let proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    until("connections go to the proxy", async || !attached.status().await["proxy"].is_null()).await;

    assert_eq!(call(&attached, MIXED).await, "");
    proxy_counts(&proxy, 60 + 5 * 20 + 3 + 4, 1).await;
    let counts = counted(&attached).await;
    let parts = PARTS.replace("PORT", &server.port.to_string());
    for script in [BODIES, &parts, PIPELINED, READERS, ABORTS] {
        assert_eq!(call(&attached, script).await, "", "each caller gets its own responses");
    }
    assert_eq!(attached.counter("sent-by-kernel").await, 0);
    call_the_next_process(&attached, &mut server).await;
    Some(counts)
}

async fn counted(attached: &Attached) -> [u64; 4] {
    let status = attached.status().await;
    ["short-cut-requests", "short-cut-responses", "short-cut", "short-cut-to-sidecar"]
        .map(|name| status["counters"][name].as_u64().unwrap())
}

async fn call_the_next_process(attached: &Attached, server: &mut LocalServer) {
    server.restart().await;
    until("the new process is called", async || {
        call(attached, "send(b'plain-1')\nprint(read_response()[0].decode())").await == "200\n"
    })
    .await;
    assert_eq!(call(attached, MIXED).await, "", "of the new process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sidecar_requests_to_local_servers_bypass_tcp() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("caller and server are Python programs", "python3 is missing");
    }
    let Some([requests, responses, to_caller, from_caller]) = by_the_sidecar("both", &[]).await else {
        return;
    };
    // None of 168 requests exceeds 64 KB. Responses above 64 KB, in several sends, or with status 500 use TCP.
    assert!(requests >= 150, "{requests}");
    assert!((100..=requests).contains(&responses), "{responses}");
    assert!(to_caller >= 100, "{to_caller}");
    // The first request of each connection uses TCP, and so does every request sent before the previous response.
    assert!(from_caller >= 100, "{from_caller}");
    assert_eq!(by_the_sidecar("neither", &["--no-short-cut"]).await, Some([0; 4]));
}
