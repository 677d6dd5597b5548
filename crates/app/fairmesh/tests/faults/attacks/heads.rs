//! HTTP/1.1 headers that are too large, too slow or ambiguous.

use std::time::Duration;

use fairmesh_model::Protocol;
use tokio::io::AsyncWriteExt as _;

use super::others_are_served;
use crate::harness::{Proxy, Spec, World, beside_others, read_to_end, say};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_and_slow_request_heads_are_refused() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let proxy = Proxy::start(&world).await;
    let many = "x: y\r\n".repeat(200);
    let long = format!("x: {}\r\n", "y".repeat(100_000));
    for bomb in [many, long] {
        let asked = format!("GET / HTTP/1.1\r\nhost: one.shop\r\n{bomb}\r\n");
        let (mut program, asked) = (say(&proxy.for_one, "").await, asked.into_bytes());
        // The proxy may close the connection before everything is sent.
        let _ = program.write_all(&asked).await;
        let answer = read_to_end(&mut program).await;
        assert!(answer.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&answer));
    }
    // An occasional byte does not keep a connection open.
    let mut program = say(&proxy.for_one, "GET / HTTP/1.1\r\nhost: one.shop\r\n").await;
    let dribbling = async {
        while program.write_all(b"x: y\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), dribbling).await.expect("it is still listened to");
    proxy.reaches("connections_failed_total", 1.0).await;
    others_are_served(&proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_with_ambiguous_body_framing_are_refused() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let proxy = Proxy::start(&world).await;
    let head = "POST / HTTP/1.1\r\nhost: one.shop\r\n";
    for ambiguous in [
        "content-length: 3\r\ncontent-length: 4\r\n\r\nabc",
        "content-length: 3, 4\r\n\r\nabc",
        "content-length: +3\r\n\r\nabc",
        "content-length: 0x3\r\n\r\nabc",
        "content-length: 99999999999999999999\r\n\r\nabc",
        "transfer-encoding: gzip\r\n\r\nabc",
        "transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        "content-length : 3\r\n\r\nabc",
        "x: folded\r\n content-length: 3\r\n\r\nabc",
        "x: a\rb: c\r\n\r\n",
        "x: a\0b\r\n\r\n",
        "x y: z\r\n\r\n",
        ": z\r\n\r\n",
    ] {
        let mut program = say(&proxy.for_one, format!("{head}{ambiguous}")).await;
        let answer = read_to_end(&mut program).await;
        let answer = String::from_utf8_lossy(&answer);
        // RFC 9112, section 6.1 asks for 501 if the transfer coding is not understood.
        let coded = ambiguous.starts_with("transfer-encoding: ") && answer.starts_with("HTTP/1.1 501 ");
        assert!(coded || answer.starts_with("HTTP/1.1 400 "), "{ambiguous:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{ambiguous:?}: {answer}");
    }
    let version = "POST / HTTP/1.0\r\nhost: one.shop\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    let answer = read_to_end(&mut say(&proxy.for_one, version).await).await;
    assert!(answer.starts_with(b"HTTP/1.1 400 ") || answer.starts_with(b"HTTP/1.0 400 "));
    // A chunk without a valid end leaves the request incomplete.
    for chunks in [
        "3\nabc\r\n0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nabc",
        "-1\r\nabc",
        " 3\r\nabc",
    ] {
        let asked = format!("{head}transfer-encoding: chunked\r\n\r\n{chunks}");
        let answer = read_to_end(&mut say(&proxy.for_one, asked).await).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.starts_with("HTTP/1.1 2"), "{chunks:?}: {answer}");
    }
    others_are_served(&proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_length_with_chunked_encoding_smuggles_no_request() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let proxy = Proxy::start(&world).await;
    let [length, chunked] = ["content-length: 4\r\n", "transfer-encoding: chunked\r\n"];
    // RFC 9112, section 6.3 allows a server to refuse both fields, or to use the chunks alone and then close the
    // connection.
    for fields in [[length, chunked], [chunked, length]] {
        let asked = format!(
            "POST / HTTP/1.1\r\nhost: one.shop\r\n{}\r\n0\r\n\r\nGET /second HTTP/1.1\r\nhost: one.shop\r\n\r\n",
            fields.concat()
        );
        let answer = read_to_end(&mut say(&proxy.for_one, asked).await).await;
        let answer = String::from_utf8_lossy(&answer);
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    }
    assert!(!proxy.process.log().contains("/second"));
}
