//! A proxy is replaced while the kernel sends requests for it.

use fairmesh_kernel::KernelSender;
use fairmesh_model::Protocol;
use tokio::io::AsyncReadExt as _;

use super::Attached;
use crate::{
    harness::{RawServer, Spec, World, beside_others, free_port, say, skipped, tool, until},
    upgrade::Place,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_sends_requests_of_new_proxy_while_old_proxy_drains() {
    let _machine = beside_others().await;
    let Some(attached) = Attached::new("upgrade").await else { return };
    let world = World::start("").await;
    let _hello = Spec::new("shop/hello", "hello-1", Protocol::Http1).here(&world).await;
    let slow = RawServer::start(&world, "shop/slow", "slow-1").await;
    let place = Place::new(&world);
    let more = format!(
        " --drain-deadline 60s --listen kernel:127.0.0.1:{}+bpffs={}",
        free_port(),
        attached.pins().display()
    );
    let mut first = place.proxy("first", &more);
    place.ready().await;
    attached.attach().await;
    let sends = async || {
        let before = attached.counter("sent-by-kernel").await;
        let said = attached.curl(&["http://hello.shop/"; 4]).await.ok();
        assert_eq!(said.matches("HTTP/1.1 200").count(), 4, "{said}");
        attached.counter("sent-by-kernel").await > before
    };
    until("the kernel sends for the first proxy", sends).await;

    // An unanswered request keeps the first proxy running.
    let mut waiting = say(&place.by_host, "GET / HTTP/1.1\r\nhost: slow.shop\r\n\r\n").await;
    let (listener, _registered) = slow.into_parts();
    let (_connection, _) = listener.accept().await.unwrap();
    let mut second = place.proxy("second", &more);
    until("the kernel sends for the second proxy", async || {
        let status = attached.kernel(&["status"]).await.ok();
        status.contains(&format!("process {}", second.pid().as_raw_nonzero())) && sends().await
    })
    .await;
    assert!(first.has_ended().is_none() && second.has_ended().is_none());
    let mut byte = [0];
    tokio::select! {
        read = waiting.read(&mut byte) => panic!("{read:?}"),
        () = std::future::ready(()) => {}
    }
}

/// Calls on one connection until a file exists.
const CALLER: &str = r#"
import os, socket, sys
connection = socket.create_connection(("127.96.0.1", 80), 20)
connection.settimeout(20)
while not os.path.exists(sys.argv[1]):
    connection.sendall(b"GET / HTTP/1.1\r\nhost: hello.shop\r\n\r\n")
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += connection.recv(65536)
    if not head.startswith(b"HTTP/1.1 200 "):
        print(head.decode())
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_to_new_proxy_before_handover_is_later_served_by_kernel() {
    let _machine = beside_others().await;
    if tool("python3").is_none() {
        return skipped("the caller is a Python program", "python3 is missing");
    }
    let Some(attached) = Attached::new("at-once").await else { return };
    let world = World::start("").await;
    let _hello = Spec::new("shop/hello", "hello-1", Protocol::Http1).here(&world).await;
    attached.attach().await;
    // Stands for a predecessor, which owns the maps for sending requests until its last request has its response.
    let predecessor = KernelSender::open(&attached.pins()).unwrap().unwrap();
    let proxy = attached.proxy(&world).await;
    until("connections go to the proxy", async || !attached.status().await["proxy"].is_null()).await;
    let end = world.path("end");
    let calls = async {
        let path = end.display().to_string();
        attached.run(&["python3", "-c", CALLER, &path]).await.ok()
    };
    let kernel_sends = async {
        until("the successor serves the connection", async || {
            attached.counter("service-unknown").await + attached.counter("not-registered").await > 10
        })
        .await;
        drop(predecessor);
        until("the kernel sends requests of the connection", async || {
            attached.counter("sent-by-kernel").await > 10
        })
        .await;
        std::fs::write(&end, "").unwrap();
    };
    let (said, ()) = tokio::join!(calls, kernel_sends);
    assert_eq!(said, "");
    assert_eq!(attached.counter("redirected").await, 1);
    drop(proxy);
}
