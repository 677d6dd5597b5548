//! Request targets and hosts: routes match and servers see the same target, or the request is refused.

mod connect;

use std::{future::Ready, future::ready};

use bytes::{Bytes, BytesMut};
use fairmesh_http::{
    h2::{PREFACE, RequestBody, ServerConnection},
    hpack::{Decoder, Field},
    path::RawPath,
};
use fairmesh_model::Protocol;
use fairmesh_server::MeshServer;
use http::{Request, Response, header};
use http_body_util::Full;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    process::Command,
    task::JoinHandle,
    time::timeout,
};

use crate::harness::{
    PATIENCE, Proxy, World, beside_others,
    h2::{self, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, frame},
    read_head, say,
};

/// A service whose rules refuse requests by host, path and query.
const POLICY: &str = r#"
kind: Service
name: shop/one
---
kind: Policy
service: shop/one
routes:
  - name: admin
    match: {hosts: [admin.example]}
    fault: {abort: {share: 100%, status: 403}}
  - name: host
    match: {headers: [{name: host, exact: header.example}]}
    fault: {abort: {share: 100%, status: 403}}
  - name: path
    match: {path: {exact: '/<forbidden>'}}
    fault: {abort: {share: 100%, status: 403}}
  - name: query
    match: {query: [{name: q, exact: '{"a":2}'}]}
    fault: {abort: {share: 100%, status: 403}}
"#;

/// A server that responds with the target and host it received.
struct Told {
    _server: MeshServer,
    serving: JoinHandle<()>,
}

impl Told {
    async fn start(world: &World, service: &str, protocol: Protocol) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let builder = MeshServer::builder(service).instance("told").address(listener.local_addr().unwrap());
        let _server = builder.protocol(protocol).agent(world.agent_address()).start().await.unwrap();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                match protocol {
                    Protocol::Http1 => drop(tokio::spawn(serve_http1(stream))),
                    _ => drop(tokio::spawn(serve_http2(stream))),
                }
            }
        });
        world.serves(service, "told").await;
        Self { _server, serving }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Reads raw request headers, without a library's normalization.
async fn serve_http1(mut stream: TcpStream) {
    let mut head = Vec::new();
    while let Ok(byte) = stream.read_u8().await {
        head.push(byte);
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8(std::mem::take(&mut head)).unwrap();
        let target = text.split(' ').nth(1).unwrap_or_default();
        let hosts = text.lines().filter_map(|line| line.strip_prefix("host: "));
        let told = format!("{target} {}", hosts.collect::<Vec<_>>().join("+"));
        let length = told.len();
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{told}");
        if stream.write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn serve_http2(mut stream: TcpStream) {
    let mut preface = BytesMut::zeroed(PREFACE.len());
    if stream.read_exact(&mut preface).await.is_ok() {
        // The proxy reports how the connection ended.
        let _ = ServerConnection::new(stream, preface, tell).await;
    }
}

fn tell(request: Request<RequestBody>) -> Ready<Response<Full<Bytes>>> {
    let uri = request.uri().path_and_query().map_or("", |path| path.as_str());
    let target = request.extensions().get().map_or(uri, RawPath::as_str);
    let authority = request.uri().authority().map_or("", |authority| authority.as_str());
    let host = request.headers().get(header::HOST).map_or("", |host| host.to_str().unwrap());
    let host = if host.is_empty() { authority.to_owned() } else { format!("{authority}+{host}") };
    ready(Response::new(Full::from(format!("{target} {host}"))))
}

/// curl's response for this target through a proxy: status, and the target and host that the server received.
async fn curl(to: &str, target: &str, arguments: &[&str]) -> String {
    let curl = Command::new("curl")
        .args(["-sS", "--max-time", "20", "--globoff", "--path-as-is", "-w", " %{http_code}"])
        .args(arguments)
        .arg(format!("http://{to}{target}"))
        .kill_on_drop(true)
        .output();
    let output = curl.await.expect("this test needs curl");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Status and body of the HTTP/1.1 response in lower case.
async fn asked(to: &str, request: &[u8]) -> String {
    let mut program = say(to, request).await;
    let head = read_head(&mut program).await;
    let length = head.split("content-length: ").nth(1).map_or(0, |rest| {
        let digits = rest.split("\r\n").next().unwrap_or_default();
        digits.parse().unwrap()
    });
    let mut body = vec![0; length];
    timeout(PATIENCE, program.read_exact(&mut body)).await.expect("the body is short").unwrap();
    let status = head.split(' ').nth(1).unwrap_or_default();
    format!("{status} {}", String::from_utf8_lossy(&body).to_lowercase())
}

/// A field as a literal without indexing (RFC 7541, 6.2.2).
fn literal((name, value): (&str, &str)) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

/// Status and body of the HTTP/2 response, or that the stream was reset.
async fn asked_http2(to: &str, fields: &[(&str, &str)]) -> String {
    let mut program = h2::connect(to, &[]).await;
    let block: Vec<u8> = fields.iter().copied().flat_map(literal).collect();
    program.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)).await.unwrap();
    let mut told = String::new();
    loop {
        let came = h2::read(&mut program).await.expect("the connection goes on");
        match came.kind {
            HEADERS => told = status_of(&came.payload) + " ",
            DATA => told += str::from_utf8(&came.payload).unwrap(),
            RST_STREAM => return "reset".into(),
            _ => continue,
        }
        if came.flags & END_STREAM != 0 {
            return told;
        }
    }
}

/// Status in the first header block of a connection.
fn status_of(block: &[u8]) -> String {
    let mut status = String::new();
    let mut each = |field| {
        if let Field::Status(own) = field {
            status = own.as_str().to_owned();
        }
    };
    Decoder::new(4096).decode(block, &mut each).unwrap();
    status
}

fn get<'a>(authority: &'a str, path: &'a str) -> Vec<(&'a str, &'a str)> {
    let authority = Some((":authority", authority)).filter(|(_, authority)| !authority.is_empty());
    let own = [(":method", "GET"), (":scheme", "http"), (":path", path)];
    own.into_iter().chain(authority).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn path_bytes_are_preserved_between_all_http_versions() {
    let _machine = beside_others().await;
    let world = World::start(POLICY).await;
    let _one = Told::start(&world, "shop/one", Protocol::Http1).await;
    let _two = Told::start(&world, "shop/two", Protocol::Http2).await;
    let proxy = Proxy::start(&world).await;
    // Forwarded unparsed, parsed, and over HTTP/2.
    let ways = [&["--http1.1"][..], &["--http1.1", "-H", "te: trailers"], &["--http2-prior-knowledge"]];
    for way in ways {
        for service in ["one.shop", "two.shop"] {
            let host = format!("host: {service}");
            let with_host = [way, &["-H", &host]].concat();
            for target in [r#"/?q={"a":1}"#, "/<a>`b\"c?`<\">|^[]\\{}", "/a|b^c\\d{e}", "/%3Ca%3e?%22"] {
                let told = curl(&proxy.by_host, target, &with_host).await;
                assert_eq!(told, format!("{target} {service} 200"), "{way:?}");
            }
        }
        for target in ["/<forbidden>", r#"/x?q={"a":2}"#] {
            let told = curl(&proxy.for_one, target, way).await;
            assert_eq!(told, " 403", "routes match what the server would see: {way:?} {target}");
        }
    }
    // UTF-8 is forwarded; other non-ASCII bytes are refused.
    let told = asked(&proxy.for_one, "GET /é?ü=\" HTTP/1.1\r\nhost: a.b\r\n\r\n".as_bytes()).await;
    assert_eq!(told, "200 /é?ü=\" a.b");
    for byte in [b' ', b'\t', 0x01, 0x7f, 0xff] {
        let request = [b"GET /a", &[byte][..], b"b HTTP/1.1\r\nhost: a.b\r\n\r\n"].concat();
        assert!(asked(&proxy.for_one, &request).await.starts_with("400 "), "{byte:#x}");
    }
    for path in ["/a b", "/a\u{1}b", "/a\u{7f}b", "/a#b", "g", "?a", "*"] {
        assert_eq!(asked_http2(&proxy.for_one, &get("a.b", path)).await, "reset", "{path}");
    }
    assert_eq!(asked_http2(&proxy.for_one, &get("a.b", "/a?\"<`>")).await, "200 /a?\"<`> a.b");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_without_path_or_host_is_refused() {
    let _machine = beside_others().await;
    let world = World::start(POLICY).await;
    let _one = Told::start(&world, "shop/one", Protocol::Http1).await;
    let proxy = Proxy::start(&world).await;
    for to in [&proxy.for_one, &proxy.by_host] {
        for target in ["g", "one.shop:80", "*", "/a#b", "http://one.shop/#b", "?a", "http://one.shop:80x/"] {
            let request = format!("GET {target} HTTP/1.1\r\nhost: one.shop\r\n\r\n");
            assert!(asked(to, request.as_bytes()).await.starts_with("400 "), "{target}");
        }
        for host in
            ["", "one.shop:80x", "one.shop:65536", "one.shop..", "one shop", "user@one.shop", "a\r\nhost: a"]
        {
            let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n");
            assert!(asked(to, request.as_bytes()).await.starts_with("400 "), "{host}");
        }
        let told = asked(to, b"GET / HTTP/1.1\r\n\r\n").await;
        assert!(told.starts_with("400 ") && told.contains("names no host"), "{told}");
        assert!(
            asked(to, b"GET http://one.shop/ HTTP/1.1\r\n\r\n").await.starts_with("400 "),
            "RFC 9112 3.2"
        );
        assert!(asked(to, b"OPTIONS * HTTP/1.1\r\nhost: one.shop\r\n\r\n").await.starts_with("200 * "));
        for host in ["one.shop:80x", "one.shop:65536", "one.shop.."] {
            assert!(asked_http2(to, &get(host, "/")).await.starts_with("400 "), "{host}");
            let by_header = [get("", "/"), vec![("host", host)]].concat();
            assert!(asked_http2(to, &by_header).await.starts_with("400 "), "{host}");
        }
    }
    // HTTP/1.0 needs no host.
    assert_eq!(asked(&proxy.for_one, b"GET /a HTTP/1.0\r\n\r\n").await, "200 /a one.shop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorization_rule_by_host_matches_host_that_server_sees() {
    let _machine = beside_others().await;
    let world = World::start(POLICY).await;
    let _one = Told::start(&world, "shop/one", Protocol::Http1).await;
    let proxy = Proxy::start(&world).await;
    for way in ["--http1.1", "--http2-prior-knowledge"] {
        for host in
            ["admin.example", "Admin.Example.", "admin.example:80", "admin.example.:8080", "admin.example:"]
        {
            let told = curl(&proxy.for_one, "/", &[way, "-H", &format!("host: {host}")]).await;
            assert_eq!(told, " 403", "{way} {host}");
        }
        let told = curl(&proxy.for_one, "/", &[way, "-H", "host: header.example"]).await;
        assert_eq!(told, " 403", "{way}: the header is a header as any other");
        let told = curl(&proxy.for_one, "/a", &[way, "-H", "host: Other.Example.:81"]).await;
        assert_eq!(told, "/a Other.Example.:81 200", "{way}: what is not refused goes on as it came");
    }
    // A host in the URI takes precedence over the header, for rules and for the server.
    for (uri, header, told) in [
        ("admin.example", "other.example", "403 "),
        ("other.example", "admin.example", "200 /a other.example"),
        ("header.example", "other.example", "403 "),
        ("other.example", "header.example", "200 /a other.example"),
    ] {
        let request = format!("GET http://{uri}/a HTTP/1.1\r\nhost: {header}\r\n\r\n");
        assert_eq!(asked(&proxy.for_one, request.as_bytes()).await, told, "{uri} {header}");
        let fields = [get(uri, "/a"), vec![("host", header)]].concat();
        assert_eq!(asked_http2(&proxy.for_one, &fields).await, told, "{uri} {header}");
    }
    // The same with service selection by host; the server receives the service's name.
    for (uri, header) in [("One.Shop.:80", "two.shop"), ("one.shop", "one.shop:99")] {
        let request = format!("GET http://{uri}?a HTTP/1.1\r\nhost: {header}\r\n\r\n");
        assert_eq!(asked(&proxy.by_host, request.as_bytes()).await, "200 /?a one.shop", "{uri} {header}");
        let fields = [get(uri, "/a"), vec![("host", header)]].concat();
        assert_eq!(asked_http2(&proxy.by_host, &fields).await, "200 /a one.shop", "{uri} {header}");
    }
    let told = asked(&proxy.by_host, b"GET http://two.shop/ HTTP/1.1\r\nhost: one.shop\r\n\r\n").await;
    assert!(told.starts_with("404 "), "{told}");
    let fields = [get("two.shop", "/"), vec![("host", "one.shop")]].concat();
    assert!(asked_http2(&proxy.by_host, &fields).await.starts_with("404 "));
}
