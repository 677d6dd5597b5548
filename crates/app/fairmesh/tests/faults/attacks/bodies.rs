//! Truncated bodies, and servers that respond at the wrong time or never.

use fairmesh_model::Protocol;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use crate::harness::{Echo, PATIENCE, Proxy, RawServer, World, beside_others, read_head, read_to_end, say};

const IMPATIENT: &str = "kind: Policy\nservice: shop/one\ntimeout: 1s\n";
const UPLOAD: &str = "POST / HTTP/1.1\r\nhost: one.shop\r\ncontent-length: 10\r\n\r\nabc";
const GET: &str = "GET / HTTP/1.1\r\nhost: one.shop\r\n\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncated_body_is_never_delivered_as_complete() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let proxy = Proxy::start(&world).await;
    let program = say(&proxy.for_one, UPLOAD).await;
    let mut served = server.accept().await;
    read_head(&mut served).await;
    drop(program);
    assert_eq!(read_to_end(&mut served).await, b"abc", "the server sees that it ended too early");

    for (answer, whole) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", &b"abc"[..]),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", b"0\r\n\r\n"),
    ] {
        let mut program = say(&proxy.for_one, GET).await;
        let mut served = server.accept().await;
        read_head(&mut served).await;
        served.write_all(answer.as_bytes()).await.unwrap();
        read_head(&mut program).await;
        drop(served);
        let came = read_to_end(&mut program).await;
        match answer.contains("chunked") {
            true => assert!(!came.ends_with(whole), "{came:?} looks whole"),
            false => assert_eq!(came, whole, "fewer bytes than were said"),
        }
    }
    proxy.reaches("connections_failed_total", 2.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_with_silent_server_or_client_time_out() {
    let _machine = beside_others().await;
    let world = World::start(IMPATIENT).await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let proxy = Proxy::start(&world).await;
    // The program sends only part of its body, and the server waits for the rest until it times out.
    for asked in [GET, UPLOAD] {
        let mut program = say(&proxy.for_one, asked).await;
        let mut served = server.accept().await;
        read_head(&mut served).await;
        let answer = read_head(&mut program).await;
        assert!(
            answer.starts_with("http/1.1 504 ") && answer.contains("x-fairmesh-fault: deadline"),
            "{answer}"
        );
        read_to_end(&mut served).await;
    }
    let services = proxy.page("/services").await;
    assert!(services.contains("\"faults\":2") && services.contains("\"inFlight\":0"), "{services}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_during_upload_and_idle_server_close_are_accepted() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let proxy = Proxy::start(&world).await;
    let mut program = say(&proxy.for_one, UPLOAD).await;
    let mut served = server.accept().await;
    read_head(&mut served).await;
    served
        .write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    assert!(read_head(&mut program).await.starts_with("http/1.1 413 "));
    drop((served, program));

    let mut program = say(&proxy.for_one, "").await;
    for _ in 0..3 {
        program.write_all(GET.as_bytes()).await.unwrap();
        let mut served = server.accept().await;
        read_head(&mut served).await;
        served.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        assert!(
            read_head(&mut program).await.starts_with("http/1.1 200 "),
            "a connection that was idle is no fault"
        );
        let mut body = [0; 2];
        timeout(PATIENCE, program.read_exact(&mut body)).await.unwrap().unwrap();
        // The server's connection is idle when it is closed here.
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_request_body_is_refused_in_every_framing() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Echo::start(&world, "shop/one", "one", Protocol::Http1).await;
    let proxy = Proxy::with(&world, "--cores 1 --max-body 10").await;
    let head = "POST / HTTP/1.1\r\nhost: one.shop\r\n";
    for whole in [
        "content-length: 10\r\n\r\n0123456789",
        "transfer-encoding: chunked\r\n\r\n5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n",
    ] {
        let mut program = say(&proxy.for_one, format!("{head}{whole}")).await;
        assert!(read_head(&mut program).await.starts_with("http/1.1 200 "), "{whole}");
        let mut body = [0; 10];
        timeout(PATIENCE, program.read_exact(&mut body)).await.unwrap().unwrap();
        assert_eq!(&body, b"0123456789");
    }
    for long in [
        // Refused before `100 Continue`.
        "content-length: 11\r\nexpect: 100-continue\r\n\r\n",
        "content-length: 11\r\n\r\n0123456789a",
        "transfer-encoding: chunked\r\n\r\nb\r\n0123456789a\r\n0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n5\r\n01234\r\n5\r\n56789\r\n1\r\na\r\n0\r\n\r\n",
    ] {
        let mut program = say(&proxy.for_one, format!("{head}{long}")).await;
        let answer = String::from_utf8(read_to_end(&mut program).await).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 413 ") && answer.contains("x-fairmesh-fault: too_large"),
            "{answer}"
        );
    }
    proxy.counts("requests_too_large_total", 4.0).await;
}
