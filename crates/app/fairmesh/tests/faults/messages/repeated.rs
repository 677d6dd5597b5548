//! An unprocessed request is retried, whether its body arrived with its headers or after them.

use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use super::{Endpoint, OK, fields};
use crate::harness::{
    Proxy, RawServer, World, beside_others,
    h2::{self, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, frame},
    read_head, say,
};

const BODY: &[u8] = b"a body of a request";

/// How an endpoint signals that it did not process a request.
enum Refusal {
    Reset,
    GoAway,
}

impl Refusal {
    async fn send(&self, endpoint: &mut Endpoint, stream: u32) {
        match self {
            Self::Reset => endpoint.send(&frame(RST_STREAM, 0, stream, &[0, 0, 0, 7])).await,
            Self::GoAway => {
                endpoint.send(&frame(GOAWAY, 0, 0, &[0; 8])).await;
                endpoint.open = None;
            }
        }
    }
}

/// The three segments of a request.
fn segments(over_http2: bool) -> [Vec<u8>; 3] {
    let (first, second) = BODY.split_at(6);
    if over_http2 {
        let headers = frame(HEADERS, END_HEADERS, 1, &fields("POST", None));
        return [headers, frame(DATA, 0, 1, first), frame(DATA, END_STREAM, 1, second)];
    }
    let head = format!("POST / HTTP/1.1\r\nhost: one.shop\r\ncontent-length: {}\r\n\r\n", BODY.len());
    [head.into(), first.into(), second.into()]
}

/// Reads DATA up to the end of a request; returns the body.
async fn body(endpoint: &mut Endpoint) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let came = h2::read_message(endpoint.connection().await).await;
        if came.kind == DATA {
            bytes.extend(came.payload);
            if came.flags & END_STREAM != 0 {
                return bytes;
            }
        }
    }
}

/// Sends a request in segments. The endpoint refuses it after the second segment, then serves the retry.
async fn is_sent_again(proxy: &Proxy, endpoint: &mut Endpoint, over_http2: bool, refusal: &Refusal) {
    let mut client = match over_http2 {
        true => h2::connect(&proxy.for_one, &[]).await,
        false => say(&proxy.for_one, "").await,
    };
    let [head, first, second] = segments(over_http2);
    client.write_all(&head).await.unwrap();
    let (part, stream) = endpoint.part().await;
    assert_eq!((part.0, part.1), (HEADERS, false));
    client.write_all(&first).await.unwrap();
    assert_eq!(endpoint.part().await.0, (DATA, false, 6));
    refusal.send(endpoint, stream).await;
    let ((kind, ends, _), stream) = endpoint.part().await;
    assert_eq!((kind, ends), (HEADERS, false), "the request comes again");
    client.write_all(&second).await.unwrap();
    assert_eq!(body(endpoint).await, BODY);
    let response = frame(HEADERS, END_HEADERS | END_STREAM, stream, OK);
    endpoint.send(&response).await;
    assert!(is_served(&mut client, over_http2).await);
}

/// Whether a client receives status 200.
async fn is_served(client: &mut TcpStream, over_http2: bool) -> bool {
    match over_http2 {
        true => h2::read_message(client).await.payload[0] == 0x88,
        false => read_head(client).await.starts_with("http/1.1 200 "),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_body_in_pieces_is_retried_if_server_did_not_process_it() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let mut endpoint = Endpoint::start(&world, "shop/one", "one").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    for over_http2 in [false, true] {
        for refusal in [Refusal::Reset, Refusal::GoAway] {
            is_sent_again(&proxy, &mut endpoint, over_http2, &refusal).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn put_and_delete_in_pieces_are_retried_after_503_and_close() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = RawServer::start(&world, "shop/one", "one").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    let unavailable = "HTTP/1.1 503 Busy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    for (method, refusal) in [("PUT", unavailable), ("DELETE", unavailable), ("PUT", ""), ("DELETE", "")] {
        let head = format!("{method} / HTTP/1.1\r\nhost: one.shop\r\ncontent-length: 5\r\n\r\n");
        let mut client = say(&proxy.for_one, head).await;
        let mut served = one.accept().await;
        read_head(&mut served).await;
        served.write_all(refusal.as_bytes()).await.unwrap();
        drop(served);
        let mut served = one.accept().await;
        read_head(&mut served).await;
        client.write_all(b"bytes").await.unwrap();
        let mut received = [0; 5];
        tokio::io::AsyncReadExt::read_exact(&mut served, &mut received).await.unwrap();
        assert_eq!(&received, b"bytes", "{method}");
        served.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        let answer = read_head(&mut client).await;
        assert!(answer.starts_with("http/1.1 200 "), "{method} {refusal:?}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_client_request_ejects_no_endpoint() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let mut endpoint = Endpoint::start(&world, "shop/one", "one").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    // The endpoint still answers other requests.
    let mut client = say(&proxy.for_one, "GET /tea HTTP/1.1\r\nhost: one.shop\r\n\r\n").await;
    let (_, stream) = endpoint.part().await;
    endpoint.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &[0x88])).await;
    assert!(read_head(&mut client).await.starts_with("http/1.1 200 "));
    for _ in 0..20 {
        let mut client = say(&proxy.for_one, "GET /?q={\"a\":1} HTTP/1.1\r\nhost: one.shop\r\n\r\n").await;
        let (_, stream) = endpoint.part().await;
        endpoint.send(&frame(RST_STREAM, 0, stream, &[0, 0, 0, 1])).await;
        let answer = read_head(&mut client).await;
        assert!(answer.starts_with("http/1.1 400 "), "{answer}");
        assert!(answer.contains("\r\nx-fairmesh-fault: invalid\r\n"), "{answer}");
    }
    let status = Proxy::endpoints(&proxy.admin, "shop/one").await.ok();
    for expected in ["\"consecutiveFailures\": 0", "\"ejectedSeconds\": null"] {
        assert!(status.contains(expected), "{status}");
    }
}
