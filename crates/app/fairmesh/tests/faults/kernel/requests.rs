//! Requests of one connection, some sent by the kernel, to a server inside the test.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fairmesh_server::MeshServer;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
    time::sleep,
};

use super::Attached;
use crate::harness::{RawServer, World, beside_others, read_head, skipped, tool, until};

/// Longer than the time after which the caller's connection applies timeouts to a request.
const SLOW: Duration = Duration::from_millis(400);

/// Shared part of the callers: requests on one connection, each sent in one piece.
pub(super) const CALLER: &str = r#"
import socket, sys
connection = socket.create_connection(("127.96.0.1", 80), 20)
connection.settimeout(20)
file = connection.makefile("rb")

def send(path, body=b""):
    method = b"POST" if body else b"GET"
    head = b"%s /%s HTTP/1.1\r\nhost: raw.shop\r\n" % (method, path)
    if body:
        head += b"content-length: %d\r\n" % len(body)
    connection.sendall(head + b"\r\n" + body)

def read_response():
    status, headers = file.readline().split()[1], {}
    while True:
        name, _, value = file.readline().partition(b":")
        if not value:
            break
        headers[name.lower()] = value.strip()
    body = b""
    if headers.get(b"transfer-encoding") == b"chunked":
        while True:
            size = int(file.readline(), 16)
            body += file.read(size)
            file.readline()
            if not size:
                break
    else:
        body = file.read(int(headers[b"content-length"]))
    return status, body

def receive():
    status, body = read_response()
    print(status.decode(), body.decode(), flush=True)

def call(path, body=b""):
    send(path, body)
    receive()
"#;

/// Requests that a server received.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    pub(super) fn count(&self, text: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|one| one.contains(text)).count()
    }

    /// Serves a service until the task is aborted.
    pub(super) async fn serve_all(&self, world: &World) -> (JoinHandle<()>, MeshServer) {
        let (listener, registered) = RawServer::start(world, "shop/raw", "raw-1").await.into_parts();
        let log = self.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(log.clone().serve(stream));
            }
        });
        (serving, registered)
    }

    /// Responds to each request of a connection with its path.
    async fn serve(self, mut stream: TcpStream) {
        loop {
            let mut first = [0];
            if !matches!(stream.peek(&mut first).await, Ok(1..)) {
                return;
            }
            let head = read_head(&mut stream).await;
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            stream.read_exact(&mut body).await.unwrap();
            let path = head.split(' ').nth(1).unwrap()[1..].to_owned();
            self.add(head);
            match path.as_str() {
                "slow" => sleep(SLOW).await,
                // Closes the first time only; the second attempt gets a response.
                "reset" if self.count("/reset ") == 1 => return,
                "never" => {
                    let _ = stream.read(&mut first).await;
                    return self.add("the caller is gone".to_owned());
                }
                _ => {}
            }
            let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{path}", path.len());
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_requests_are_ordered_retried_and_cancelled_as_by_sidecar() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("the caller is a Python program", "python3 is missing");
    }
    let Some(attached) = Attached::new("requests").await else { return };
    let world = World::start("").await;
    let log = Log::default();
    let (serving, _registered) = log.serve_all(&world).await;
    let _proxy = attached.proxy(&world).await;
    attached.attach().await;
    let call = async |script: &str| attached.run(&["python3", "-c", &format!("{CALLER}{script}")]).await.ok();

    let said = call(
        "call(b'first'); send(b'slow'); send(b'second'); receive(); receive(); call(b'third', b'x' * 900)\n\
         call(b'large', b'x' * 3000); call(b'fourth'); call(b'reset')",
    )
    .await;
    assert_eq!(said.replace("200 ", ""), "first\nslow\nsecond\nthird\nlarge\nfourth\nreset\n");
    for (counter, expected) in
        [("service-unknown", 1), ("in-flight", 1), ("too-large", 1), ("sent-by-kernel", 4)]
    {
        assert_eq!(attached.counter(counter).await, expected, "{counter}: {:?}", log.0.lock().unwrap());
    }
    // The kernel sends the caller's bytes unchanged, without the loop header.
    assert_eq!(log.count("x-fairmesh-loop"), 4, "first, second, large, and the second attempt of reset");

    call("call(b'first'); send(b'never')").await;
    until("the request of a caller that is gone is cancelled", async || log.count("the caller is gone") == 1)
        .await;
    assert_eq!(call("call(b'first'); call(b'last')").await, "200 first\n200 last\n");
    serving.abort();
}
