//! Messages are converted to the protocol over which they are forwarded.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::Command,
};

use fairmesh_test_support::skipped;

use super::fields;
use crate::harness::{
    Proxy, RawServer, World, beside_others,
    h2::{self, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, frame},
    read_head, say,
};

/// Response of a server, whether the request is HEAD, and the status and body that the client gets.
const RESPONSES: [(&str, bool, &str); 7] = [
    ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\ntea", false, "200 tea"),
    ("HTTP/1.1 200 OK\r\ncontent-length: 3, 3\r\n\r\ntea", false, "200 tea"),
    ("HTTP/1.1 200 OK\r\nX-Spaced : yes\r\ncontent-length: 3\r\n\r\ntea", false, "200 tea"),
    ("HTTP/1.1 200 OK\r\nte: gzip\r\ncontent-length: 3\r\n\r\ntea", false, "200 tea"),
    ("HTTP/1.1 204 No Content\r\ncontent-length: 3\r\n\r\n", false, "204 "),
    ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\n", true, "200 "),
    ("HTTP/1.1 200 OK\r\ncontent-length: 7, 7\r\n\r\n", true, "200 "),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http1_responses_of_servers_are_valid_over_http1_and_http2() {
    if Command::new("curl").arg("--version").output().await.is_err() {
        return skipped("responses cannot be judged by curl", "it is not installed");
    }
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = RawServer::start(&world, "shop/one", "one").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    for protocol in ["--http1.1", "--http2-prior-knowledge"] {
        for (response, is_head, expected) in RESPONSES {
            let mut curl = Command::new("curl");
            curl.args([protocol, "--silent", "--show-error", "--max-time", "10"]);
            curl.args(["--write-out", "\n%{http_code}", &format!("http://{}/", proxy.for_one)]);
            if is_head {
                curl.arg("--head");
            }
            let served = async {
                let mut served = one.accept().await;
                read_head(&mut served).await;
                served.write_all(response.as_bytes()).await.unwrap();
                served
            };
            let (output, _served) = tokio::join!(curl.output(), served);
            let output = output.unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            let problem = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{protocol} {response:?}: {problem}");
            let (body, status) = printed.rsplit_once('\n').unwrap();
            let body = if is_head { "" } else { body };
            assert_eq!(format!("{status} {body}"), expected, "{protocol} {response:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_request_with_two_hosts_is_refused() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = RawServer::start(&world, "shop/one", "one").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    let host = |host: &str| [&[0x00, 4][..], b"host", &[host.len() as u8], host.as_bytes()].concat();
    let fields = [&[0x82, 0x86, 0x84][..], &host("one.shop"), &host("two.shop")].concat();
    let mut client = h2::connect(&proxy.for_one, &[]).await;
    client.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields)).await.unwrap();
    let came = h2::read_message(&mut client).await;
    assert_eq!((came.kind, &came.payload[..]), (RST_STREAM, &[0, 0, 0, 1][..]), "PROTOCOL_ERROR");
    let _client = say(&proxy.for_one, "GET /next HTTP/1.1\r\nhost: one.shop\r\n\r\n").await;
    let request = read_head(&mut one.accept().await).await;
    assert!(request.starts_with("get /next "), "{request}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_trailers_with_content_length_reach_http1_in_chunks() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let one = RawServer::start(&world, "shop/one", "one").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    let literal = |name: &str, value: &str| {
        let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
        [vec![0x00], text(name), text(value)].concat()
    };
    for announced in [false, true] {
        let announcement = if announced { literal("trailer", "x-sum") } else { Vec::new() };
        let head = [fields("POST", None), literal("content-length", "3"), announcement].concat();
        let request = [
            frame(HEADERS, END_HEADERS, 1, &head),
            frame(DATA, 0, 1, b"tea"),
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &literal("x-sum", "1")),
        ];
        let mut client = h2::connect(&proxy.for_one, &[]).await;
        client.write_all(&request.concat()).await.unwrap();
        let mut served = one.accept().await;
        let head = read_head(&mut served).await;
        assert!(head.contains("\r\ntransfer-encoding: chunked\r\n"), "{head}");
        assert!(head.contains("\r\ntrailer: x-sum\r\n") && !head.contains("content-length"), "{head}");
        let mut body = Vec::new();
        while !body.ends_with(b"\r\n\r\n") {
            served.read_buf(&mut body).await.unwrap();
        }
        assert_eq!(body, b"3\r\ntea\r\n0\r\nx-sum: 1\r\n\r\n");
    }
}
