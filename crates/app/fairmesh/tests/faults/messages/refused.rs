//! Which HTTP messages are accepted and which are refused, and the form of the refusal.

use tokio::io::AsyncWriteExt as _;

use super::{Endpoint, fields};
use crate::harness::{
    Proxy, RawServer, World, beside_others,
    h2::{self, END_HEADERS, HEADERS, RST_STREAM, frame},
    read_head, say,
};

/// 2^63, one more than the largest length.
const TOO_LONG: &str = "9223372036854775808";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_later_http1_versions_are_read_as_1_1() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = RawServer::start(&world, "shop/one", "one").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    let mut served = None;
    for version in ["1.1", "1.2", "1.9"] {
        let mut program =
            say(&proxy.for_one, format!("GET / HTTP/{version}\r\nhost: one.shop\r\n\r\n")).await;
        let served = match &mut served {
            Some(served) => served,
            none => none.insert(one.accept().await),
        };
        let request = read_head(served).await;
        assert!(request.starts_with("get / http/1.1\r\n"), "{request}");
        let response = format!("HTTP/{version} 200 OK\r\ncontent-length: 3\r\n\r\n");
        served.write_all(format!("{response}tea").as_bytes()).await.unwrap();
        let answer = read_head(&mut program).await;
        assert!(answer.starts_with("http/1.1 200 ") && !answer.contains("connection: close"), "{answer}");
    }
    for version in ["2.0", "0.9", "1.10", "1.x"] {
        let program = format!("GET / HTTP/{version}\r\nhost: one.shop\r\n\r\n");
        let answer = read_head(&mut say(&proxy.for_one, program).await).await;
        assert!(answer.starts_with("http/1.1 400 "), "{version}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_content_lengths_and_chunks_get_error_status() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = RawServer::start(&world, "shop/one", "one").await;
    let mut two = Endpoint::start(&world, "shop/two", "two").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    let long = format!("POST / HTTP/1.1\r\nhost: one.shop\r\ncontent-length: {TOO_LONG}\r\n\r\n");
    let answer = read_head(&mut say(&proxy.for_one, long).await).await;
    assert!(answer.starts_with("http/1.1 400 "), "{answer}");
    let length = [&[0x0f, 0x0d, TOO_LONG.len() as u8][..], TOO_LONG.as_bytes()].concat();
    let mut program = h2::connect(&proxy.for_one, &[]).await;
    let long = [fields("POST", None), length.clone()].concat();
    program.write_all(&frame(HEADERS, END_HEADERS, 1, &long)).await.unwrap();
    let came = h2::read_message(&mut program).await;
    assert_eq!((came.kind, &came.payload[..]), (RST_STREAM, &[0, 0, 0, 1][..]), "PROTOCOL_ERROR");

    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    for response in [
        format!("HTTP/1.1 200 OK\r\ncontent-length: {TOO_LONG}\r\n\r\ntea"),
        format!("{chunked}zz\r\n"),
        format!("{chunked}3\r\nteaX\r\n"),
        format!("{chunked}3\r\ntea\r\n3\r\ntea\r\n\r\n"),
    ] {
        let post = "POST / HTTP/1.1\r\nhost: one.shop\r\ncontent-length: 0\r\n\r\n";
        let mut program = say(&proxy.for_one, post).await;
        let mut served = one.accept().await;
        read_head(&mut served).await;
        served.write_all(response.as_bytes()).await.unwrap();
        let answer = read_head(&mut program).await;
        assert!(answer.starts_with("http/1.1 502 "), "{response:?}: {answer}");
        assert!(answer.contains("x-fairmesh-fault: protocol"), "{answer}");
    }
    let mut program =
        say(&proxy.by_host, "POST / HTTP/1.1\r\nhost: two.shop\r\ncontent-length: 0\r\n\r\n").await;
    let (_, of) = two.request().await;
    two.send(&frame(HEADERS, END_HEADERS, of, &[super::OK, &length].concat())).await;
    let answer = read_head(&mut program).await;
    assert!(answer.starts_with("http/1.1 502 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_faults_have_content_type_of_request() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    for kind in
        ["application/grpc", "application/grpc+proto", "application/grpc+json", "application/grpc-web-text+x"]
    {
        let request = format!(
            "POST /a.B/C HTTP/1.1\r\nhost: none.shop\r\ncontent-type: {kind}\r\ncontent-length: 0\r\n\r\n"
        );
        let answer = read_head(&mut say(&proxy.by_host, request).await).await;
        assert!(answer.starts_with("http/1.1 200 ") && answer.contains("\r\ngrpc-status: 5\r\n"), "{answer}");
        assert!(answer.contains(&format!("\r\ncontent-type: {kind}\r\n")), "{kind}: {answer}");
    }
}
