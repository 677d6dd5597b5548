//! The same header limits apply to requests and responses, over HTTP/1.1 and HTTP/2.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use tokio::io::AsyncWriteExt as _;

use super::{Endpoint, OK};
use crate::harness::{
    Connection, Manner, Proxy, RawServer, World, beside_others,
    h2::{CONTINUATION, END_HEADERS, END_STREAM, HEADERS, frame},
    read_head, say,
};

/// Number of additional headers, length of each value, and whether the message is accepted.
const HEADERS_TRIED: [(usize, usize, bool); 4] =
    [(124, 1, true), (130, 1, false), (100, 600, true), (100, 700, false)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_header_limits_are_equal_in_each_http_version() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let mut one = Endpoint::start(&world, "shop/one", "one").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    for (count, length, is_taken) in HEADERS_TRIED {
        let value = "y".repeat(length);
        let expected = if is_taken { "200" } else { "431" };
        let head =
            format!("GET / HTTP/1.1\r\nhost: one.shop\r\n{}\r\n", format!("x: {value}\r\n").repeat(count));
        let mut program = say(&proxy.for_one, head).await;
        if is_taken {
            let (_, of) = one.request().await;
            one.responds(of, "200").await;
        }
        let answer = read_head(&mut program).await;
        assert!(answer.starts_with(&format!("http/1.1 {expected} ")), "{count} × {length}: {answer}");

        let mut connection = Connection::open(&proxy.for_one, Manner::Http2).await.unwrap();
        let mut request = Request::get("http://one.shop/").body(Full::<Bytes>::default()).unwrap();
        for _ in 0..count {
            request.headers_mut().append("x", value.parse().unwrap());
        }
        let calling = tokio::spawn(async move { connection.send(request).await.unwrap().unwrap().0 });
        if is_taken {
            let (_, of) = one.request().await;
            one.responds(of, "200").await;
        }
        let answer = calling.await.unwrap();
        assert_eq!(answer.status().as_str(), expected, "{count} × {length} over HTTP/2");
    }
}

/// Header block in as many HEADERS and CONTINUATION frames as needed.
fn headers(stream: u32, fields: &[u8]) -> Vec<u8> {
    let pieces: Vec<&[u8]> = fields.chunks(16_000).collect();
    let of = |(n, piece): (usize, &&[u8])| {
        let (kind, flags) = if n == 0 { (HEADERS, END_STREAM) } else { (CONTINUATION, 0) };
        frame(kind, if n + 1 == pieces.len() { flags | END_HEADERS } else { flags }, stream, piece)
    };
    pieces.iter().enumerate().flat_map(of).collect()
}

/// HTTP/2 field `x` with `length` times `y`, as a literal.
fn field(length: usize) -> Vec<u8> {
    // An integer with a 7-bit prefix (RFC 7541, 5.1).
    let size = match length.checked_sub(127) {
        None => vec![length as u8],
        Some(rest) => vec![127, (rest % 128) as u8 | 128, (rest / 128) as u8],
    };
    [&[0x00, 1, b'x'][..], &size, &vec![b'y'; length]].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_header_limits_are_equal_in_each_http_version() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = RawServer::start(&world, "shop/one", "one").await;
    let mut two = Endpoint::start(&world, "shop/two", "two").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    for (count, length, is_taken) in HEADERS_TRIED {
        let expected = if is_taken { StatusCode::OK } else { StatusCode::BAD_GATEWAY };
        let post = |host| format!("POST / HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n");
        let mut program = say(&proxy.by_host, post("one.shop")).await;
        let mut served = one.accept().await;
        read_head(&mut served).await;
        let fields = format!("x: {}\r\n", "y".repeat(length)).repeat(count);
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n{fields}\r\n");
        served.write_all(response.as_bytes()).await.unwrap();
        let answer = read_head(&mut program).await;
        assert!(
            answer.starts_with(&format!("http/1.1 {} ", expected.as_str())),
            "{count} × {length}: {answer}"
        );

        let mut program = say(&proxy.by_host, post("two.shop")).await;
        let (_, of) = two.request().await;
        two.send(&headers(of, &[OK, &field(length).repeat(count)].concat())).await;
        let answer = read_head(&mut program).await;
        assert!(
            answer.starts_with(&format!("http/1.1 {} ", expected.as_str())),
            "{count} × {length}: {answer}"
        );
    }
}
