//! Requests to servers that are not attached, such as servers on other machines. The proxy reads their responses.

use super::{
    Attached,
    local::{ABORTS, LocalServer, WITHOUT_LOG, call, proxy_counts},
};
use crate::harness::{World, beside_others, skipped, tool, until};

/// Responses that take the short cut, responses that take the normal path, and normal ones after short-cut ones.
pub(super) const MIXED: &str = "
for at in range(60):
    ask(b'plain-%d' % (at * 100), b'b' * at)
for at in range(20):
    for path in b'plain-7 split-9 plain-60000 plain-70000 load-3'.split():
        ask(path)
ask(b'slow-5')
ask(b'plain-1')
ask(b'fail')
ask(b'plain-2')
for path in (b'plain-3', b'slow-4', b'plain-5', b'plain-6'):
    send(path)
for path in (b'plain-3', b'slow-4', b'plain-5', b'plain-6'):
    check(path)
";

/// A caller that reads late and in pieces, and a caller that waits for events of its socket and stops after a short
/// read.
pub(super) const READERS: &str = "
import select, time
one = socket.create_connection(('127.96.0.1', 80), 20)
poll = select.epoll()
poll.register(one, select.EPOLLIN | select.EPOLLET)
for at in range(40):
    one.sendall(b'GET /plain-%d HTTP/1.1\\r\\nhost: raw.shop\\r\\n\\r\\n' % (at * 1500))
    if at % 4 == 0:
        time.sleep(0.02)
    text = b''
    while b'\\r\\n\\r\\n' not in text or len(text.partition(b'\\r\\n\\r\\n')[2]) < len(b'plain-%d:' % (at * 1500)) + at * 1500:
        if not poll.poll(5):
            print('no event after', len(text), 'bytes of', at)
            break
        piece = one.recv(5000)
        text += piece
        while len(piece) == 5000:
            try:
                piece = one.recv(5000, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            text += piece
";

async fn remote_responses(name: &str, options: &[&str]) -> Option<u64> {
    let attached = Attached::new(name).await?;
    let world = World::start("").await;
    let _server = LocalServer::start(&world, &attached, "4").await;
    let proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    attached.attach_with(options).await;

    assert_eq!(call(&attached, MIXED).await, "");
    proxy_counts(&proxy, 60 + 5 * 20 + 3 + 4, 1).await;
    let sent = attached.counter("sent-by-kernel").await;
    assert!(sent > 150, "{sent}");
    assert_eq!(attached.counter("answered-directly").await, 0);
    let short = attached.counter("short-cut").await;
    assert_eq!(call(&attached, READERS).await, "");
    assert_eq!(call(&attached, ABORTS).await, "", "each caller gets its own responses");
    let none_in_flight = async || attached.status().await["inFlight"] == 0;
    until("no request is in flight", none_in_flight).await;
    Some(short)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_responses_of_remote_servers_bypass_tcp_to_local_callers() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("caller and server are Python programs", "python3 is missing");
    }
    let Some(short) = remote_responses("short", &[]).await else { return };
    // Of 170 responses, those above 64 KB, in several parts or after pipelining do not take the short cut.
    assert!(short >= 100, "{short}");
    assert_eq!(remote_responses("long", &["--no-short-cut"]).await, Some(0));
}
