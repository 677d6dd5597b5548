//! Programs with blocking sockets, and programs that query the number of readable bytes. Their data uses only TCP.

use std::{fs, os::unix::fs::symlink, path::Path};

use tempfile::TempDir;

use super::{
    Attached,
    local::{LocalServer, WITHOUT_LOG, call, called_until_published},
};
use crate::harness::{World, beside_others, skipped, tool, until};

/// Blocks in `recv` while a timer signal arrives, after which the system restarts the call. In the last request,
/// another thread sends the rest of the body meanwhile.
const INTERRUPTED: &str = r#"
import signal, socket, threading, time
signals = []
signal.signal(signal.SIGALRM, lambda *_: signals.append(1))
signal.siginterrupt(signal.SIGALRM, False)
one = socket.create_connection(("127.96.0.1", 80))

def respond_to(*parts):
    one.sendall(parts[0])
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    rest = threading.Timer(0.1, lambda: [one.sendall(part) for part in parts[1:]])
    rest.start()
    text = b""
    while not text.endswith(b"slow-1:" + b"b" * 5 * (len(parts) - 1) + b"x"):
        text += one.recv(65536)
    rest.join()

for _ in range(5):
    respond_to(b"GET /slow-1 HTTP/1.1\r\nhost: raw.shop\r\n\r\n")
respond_to(b"POST /slow-1 HTTP/1.1\r\nhost: raw.shop\r\ncontent-length: 10\r\n\r\n", b"bbbbb", b"bbbbb")
print(len(signals), "signals")
"#;

/// Queries the number of readable bytes as nginx does (`FIONREAD`), and waits for an event if it is 0.
const BY_LENGTH: &str = r#"
import array, fcntl, select, socket, termios
one = socket.create_connection(("127.96.0.1", 80), 20)
edges = select.epoll()
edges.register(one, select.EPOLLIN | select.EPOLLET)
for at in range(12):
    one.sendall(b"GET /plain-70000 HTTP/1.1\r\nhost: raw.shop\r\n\r\n")
    text, body = b"", b"plain-70000:" + b"x" * 70000
    while not text.endswith(body):
        assert edges.poll(5), "no event after %d bytes of %d" % (len(text), at)
        while True:
            try:
                text += one.recv(4096)
            except BlockingIOError:
                break
            left = array.array("i", [0])
            fcntl.ioctl(one, termios.FIONREAD, left)
            if not left[0]:
                break
print("right")
"#;

/// A link to the Python interpreter with this name.
fn python_called(name: &str, folder: &Path) -> String {
    let own =
        std::process::Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let own = String::from_utf8(own.unwrap().stdout).unwrap();
    let to = folder.join(name);
    symlink(fs::canonicalize(own.trim()).unwrap(), &to).unwrap();
    to.display().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_recv_survives_signals_and_sends_of_other_threads() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("caller and server are Python programs", "python3 is missing");
    }
    let Some(attached) = Attached::new("signals").await else { return };
    let world = World::start("").await;
    let server = LocalServer::start(&world, &attached, "4").await;
    let _proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    attached.attach_with(&["--servers", &server.cgroup]).await;
    called_until_published(&attached).await;
    let sent = attached.counter("sent-by-kernel").await;
    assert_eq!(attached.run(&["python3", "-c", INTERRUPTED]).await.ok(), "6 signals\n");
    assert_eq!(attached.counter("blocking").await, 1);
    assert_eq!(attached.counter("sent-by-kernel").await, sent);

    let later = "connection.setblocking(True)\nask(b'plain-1')";
    assert_eq!(call(&attached, later).await, "");
    assert_eq!(attached.counter("blocks-later").await, 1);
    let status = attached.kernel(&["status"]).await.ok();
    assert!(status.contains("connections by TCP alone: the socket blocks"), "{status}");
    let connections = async || attached.status().await["attachments"][0]["connections"].as_u64().unwrap();
    let folder = TempDir::new().unwrap();
    let seen = folder.path().join("seen");
    let open = format!(
        "import os, time\nask(b'plain-1')\nwhile not os.path.exists('{}'):\n    time.sleep(0.01)",
        seen.display()
    );
    let counted = async {
        until("a connection counts", async || connections().await == 1).await;
        fs::write(&seen, "").unwrap();
    };
    assert_eq!(tokio::join!(call(&attached, &open), counted).0, "");
    until("no connection counts that has ended", async || connections().await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_that_queries_readable_length_uses_tcp_and_is_reported() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("caller and servers are Python programs", "python3 is missing");
    }
    let Some(attached) = Attached::new("lengths").await else { return };
    let (world, folder) = (World::start("").await, TempDir::new().unwrap());
    let nginx = python_called("nginx", folder.path());
    // One server listens before the cgroup is attached, one afterwards.
    let mut server = LocalServer::called(&world, &attached, &nginx).await;
    let _proxy = attached.proxy_with(&world, WITHOUT_LOG).await;
    let attach =
        ["attach", "--cgroup", &attached.cgroup, "--to", "127.96.0.0/16", "--servers", &server.cgroup];
    let said = attached.kernel(&attach).await.ok();
    assert!(said.contains(&format!("nginx runs in {}: its data passes TCP", server.cgroup)), "{said}");
    for _ in 0..2 {
        until("the kernel sends requests, and leaves responses", async || {
            let before = attached.counter("sent-by-kernel").await;
            assert_eq!(call(&attached, "for at in range(9):\n    ask(b'plain-7', b'b' * at)").await, "");
            attached.counter("sent-by-kernel").await >= before + 7
        })
        .await;
        assert_eq!(attached.counter("answered-directly").await, 0);
        server.restart().await;
    }

    let sent = attached.counter("sent-by-kernel").await;
    assert_eq!(attached.run(&[&nginx, "-c", BY_LENGTH]).await.ok(), "right\n");
    assert_eq!(attached.counter("asks-for-length").await, 1);
    assert_eq!(attached.counter("sent-by-kernel").await, sent);
}
