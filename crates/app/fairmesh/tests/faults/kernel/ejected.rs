//! Endpoints that fail while the kernel sends requests to them.

use fairmesh_model::Protocol;
use tokio::{io::AsyncWriteExt as _, net::TcpListener};

use super::Attached;
use crate::harness::{RawServer, Spec, World, beside_others, read_head, until};

/// Number of requests per command.
const REQUESTS: usize = 60;

/// Responds to every request with an error status.
async fn fail(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut byte = [0];
            while matches!(stream.peek(&mut byte).await, Ok(1..)) {
                read_head(&mut stream).await;
                let response = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(response).await.unwrap();
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernel_sends_nothing_to_ejected_endpoint() {
    let _machine = beside_others().await;
    let Some(attached) = Attached::new("ejected").await else { return };
    let world = World::start("").await;
    world
        .apply("{kind: Policy, service: shop/hello, balancing: {outliers: {first: 1h, longest: 1h}}}")
        .await
        .ok();
    let _good = Spec::new("shop/hello", "hello-1", Protocol::Http1).here(&world).await;
    let _other = Spec::new("shop/hello", "hello-2", Protocol::Http1).here(&world).await;
    let (listener, _registered) = RawServer::start(&world, "shop/hello", "hello-3").await.into_parts();
    let failing = tokio::spawn(fail(listener));
    let _proxy = attached.proxy(&world).await;
    attached.attach().await;

    let urls = ["http://hello.shop/"; REQUESTS];
    let failures = async || attached.curl(&urls).await.ok().matches("HTTP/1.1 500").count();
    let mut all = 0;
    until("the endpoint is ejected", async || {
        let failed = failures().await;
        all += failed;
        failed == 0 && all > 0
    })
    .await;
    assert!((3..10).contains(&all), "{all} failures: a third of {REQUESTS} without an ejection");
    until("the kernel sends to the others, and leaves picks of the ejected one to the sidecar", async || {
        let before = attached.counter("sent-by-kernel").await;
        assert_eq!(failures().await, 0);
        let sent = attached.counter("sent-by-kernel").await - before;
        // Each pick compares two of three endpoints.
        sent >= REQUESTS as u64 / 8 && attached.counter("endpoint-ejected").await > 0
    })
    .await;
    failing.abort();
}
