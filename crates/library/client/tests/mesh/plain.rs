//! The same requests are sent twice, parsed and on the fast path, to servers that respond in every way. Both must get
//! the same response, send the same bytes to servers, and count the same.

use std::{
    collections::HashSet,
    future::poll_fn,
    sync::{Arc, Mutex},
    task::Context,
    time::Duration,
};

use bytes::BytesMut;
use fairmesh_calls::forwarding::try_fast;
use fairmesh_client::{Fault, FaultKind, Mesh, ServiceHandle};
use fairmesh_http::h1::{BorrowedRequest, BorrowedResponse, ReceivedRequest, RequestReader, header_storage};
use fairmesh_model::{Policy, Protocol, RateLimit, Retries, Scope, arith::Generator};
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt as _, Full};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::Instant,
};

use crate::rig::Rig;

/// Responses of a server by path. The second part is sent after a delay; without a third part, the connection is kept
/// open.
const WAYS: [(&str, &[&str]); 17] = [
    ("/plain", &["HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: 3\r\n\r\ntea"]),
    ("/dated", &["HTTP/1.1 201 Made\r\nDate: then\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"]),
    ("/404", &["HTTP/1.1 404 Not Found\r\nx: 1\r\nx: 2\r\ncontent-length: 3\r\n\r\ntea"]),
    ("/500", &["HTTP/1.1 500 Oh\r\ncontent-length: 3\r\n\r\ntea"]),
    ("/503", &["HTTP/1.1 503 Later\r\ncontent-length: 0\r\n\r\n"]),
    ("/chunked", &["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\ntea\r\n0\r\nx: 1\r\n\r\n"]),
    ("/pieces", &["HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\ntea", "tea"]),
    ("/head", &["HTTP/1.1 200 OK\r\ncontent-le", "ngth: 3\r\n\r\ntea"]),
    ("/204", &["HTTP/1.1 204 No Content\r\n\r\n"]),
    ("/interim", &["HTTP/1.1 102 Wait\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ntea"]),
    (
        "/load",
        &["HTTP/1.1 200 OK\r\nendpoint-load-metrics: TEXT cpu_utilization=0.3\r\ncontent-length: 0\r\n\r\n"],
    ),
    ("/nonsense", &["HTTP/1.1 200 OK\r\nendpoint-load-metrics: much\r\ncontent-length: 0\r\n\r\n"]),
    ("/101", &["HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "", ""]),
    ("/close", &["HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 3\r\n\r\ntea", "", ""]),
    ("/cut", &["HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\ntea", "", ""]),
    ("/gone", &["", "", ""]),
    ("/garbage", &["SSH-2.0\r\n\r\n", "", ""]),
];

/// Result of one call.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// Status, fields and body; the body is `None` if it failed.
    answer: Result<(u16, HeaderMap, Option<String>), String>,
    /// The bytes that servers received.
    seen: Vec<String>,
    counted: [u64; 6],
}

/// The requests that a server received since the last check, and the callers to which it responded.
type Log = Arc<Mutex<(Vec<String>, HashSet<String>)>>;

async fn server(log: Log) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, Arc::clone(&log)));
        }
    });
    address
}

async fn serve(mut stream: TcpStream, log: Log) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let (mut input, mut requests) = (BytesMut::new(), RequestReader::default());
    loop {
        let ReceivedRequest { head, body, .. } = loop {
            if let Some(received) = requests.read(&mut input).ok()? {
                break received;
            }
            (stream.read_buf(&mut input).await.ok()? > 0).then_some(())?;
        };
        let size = usize::try_from(body.left()?).ok()?;
        while input.len() < size {
            (stream.read_buf(&mut input).await.ok()? > 0).then_some(())?;
        }
        let body = String::from_utf8(input.split_to(size).to_vec()).unwrap();
        let id = head.headers()["x-id"].to_str().unwrap().to_owned();
        let fields = fields(head.headers());
        let first = {
            let mut log = log.lock().unwrap();
            log.0.push(format!("{} {} {fields:?} {body}", head.method(), head.uri()));
            log.1.insert(id)
        };
        let path = head.uri().path();
        // A request that fails the first time succeeds when it is repeated.
        let path = path.strip_prefix("/once").map_or(path, |path| if first { path } else { "/plain" });
        let large = [
            format!("HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n{}", "t".repeat(40_000)),
            "e".repeat(20_000),
        ];
        let large = large.each_ref().map(|part| &part[..]);
        let parts = WAYS.iter().find(|(own, _)| *own == path).map_or(&large[..], |(_, parts)| parts);
        for part in parts {
            stream.write_all(part.as_bytes()).await.ok()?;
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }
        if parts.len() == 3 {
            return Some(());
        }
    }
}

/// Returns the sorted fields, except those that differ from call to call.
fn fields(headers: &HeaderMap) -> Vec<String> {
    let own = ["x-fairmesh-deadline", "date"];
    let told = headers.iter().filter(|(name, value)| !own.contains(&name.as_str()) || *value == "then");
    let mut told: Vec<_> = told.map(|(name, value)| format!("{name}: {value:?}")).collect();
    told.sort();
    told
}

fn draw(seed: u64) -> String {
    let mut chance = Generator::new(seed);
    let mut below = |count: usize| chance.below(count as u64) as usize;
    let method = ["GET", "POST", "PUT", "OPTIONS"][below(4)];
    // Requests that qualify for the fast path are drawn more often, so that connections are kept.
    let way = WAYS[if below(2) == 0 { below(3) } else { below(WAYS.len()) }].0;
    let once = ["", "/once"][below(2)];
    let size = [0, 0, 5, 5_000, 65_536][below(5)];
    let field = ["", "x: 1\r\n", "X-Long: a b  c\r\ncookie: d\r\n"][below(3)];
    let length =
        if size > 0 || below(2) == 0 { format!("Content-Length: {size}\r\n") } else { String::new() };
    format!(
        "{method} {once}{way}?n={seed} HTTP/1.1\r\nHost: cart.shop\r\n{field}X-Id: {seed}\r\n{length}\r\n{}",
        "t".repeat(size)
    )
}

/// Returns the request as a proxy that parses it would send it.
fn parsed_request(text: &str) -> Request<Full<bytes::Bytes>> {
    let mut input = BytesMut::from(text);
    let received = RequestReader::default().read(&mut input).unwrap().unwrap();
    let mut request = received.head.map(|()| Full::new(input.freeze()));
    request.headers_mut().remove(header::HOST);
    request
}

async fn called(service: &ServiceHandle, text: &str) -> Result<(u16, HeaderMap, Option<String>), Fault> {
    let answer = service.send_unpin(parsed_request(text)).await?;
    Ok(read(answer).await)
}

async fn read(answer: http::Response<fairmesh_client::Body>) -> (u16, HeaderMap, Option<String>) {
    let (head, body) = answer.into_parts();
    let body = body.collect().await.ok().map(|body| String::from_utf8(body.to_bytes().into()).unwrap());
    (head.status.as_u16(), head.headers, body)
}

/// Counts calls that ended on the fast path, and calls whose body was dropped after sending.
#[derive(Debug, Default)]
struct FastCounts {
    fast: usize,
    body_dropped: usize,
}

/// Makes the call on the fast path if it qualifies.
async fn fast_call(
    service: &ServiceHandle,
    text: &str,
    counts: &mut FastCounts,
) -> Result<(u16, HeaderMap, Option<String>), Fault> {
    let begun = {
        let mut room = header_storage();
        let request = BorrowedRequest::read(text.as_bytes(), &mut room, fairmesh_headers::is_mesh_header)
            .expect("all are plain");
        try_fast(service, &request, false, Instant::now()).expect("it is routed")
    };
    let mut request = parsed_request(text);
    let slow = match begun {
        Err(slow) => *slow,
        Ok(mut fast) => {
            if fast.drop_body() {
                *request.body_mut() = Full::default();
                counts.body_dropped += usize::from(text.ends_with('t'));
            }
            let take = |answer: &BorrowedResponse<'_>, _: &_, _: &mut Context<'_>| {
                let mut out = Vec::new();
                answer.write(&mut out, || *b"Sun, 06 Nov 1994 08:49:37 GMT", false);
                out.extend_from_slice(answer.body);
                out
            };
            if let Some(out) = poll_fn(|context| fast.poll(take, context)).await {
                fast.end();
                counts.fast += 1;
                let mut input = BytesMut::from(&out[..]);
                let reader = &mut fairmesh_http::h1::ResponseReader::new(&http::Method::GET);
                let head = reader.read(&mut input).unwrap().unwrap().head;
                let body = String::from_utf8(input.to_vec()).unwrap();
                return Ok((head.status().as_u16(), head.headers().clone(), Some(body)));
            }
            fast.into_slow()
        }
    };
    Ok(read(slow.send(request, &fairmesh_calls::forwarding::CallInfo::default()).await?).await)
}

fn counted(mesh: &Mesh) -> [u64; 6] {
    let stats = mesh.stats();
    [
        stats.calls,
        stats.faults,
        stats.attempts,
        stats.retries,
        stats.reports_ignored,
        stats.attempts_without_endpoint,
    ]
}

/// Makes all calls one after another: on the fast path if `counts` is given, otherwise parsed.
async fn outcomes(counts: Option<&mut FastCounts>) -> Vec<Outcome> {
    let (rig, log) = (Rig::start().await, Log::default());
    rig.replicated("shop/cart", Protocol::Http1, &[server(Arc::clone(&log)).await]);
    let retries = Retries { attempts: 3, budget_percent: 100, budget_floor: 1000 };
    rig.policy("shop/cart", Policy { retries, ..Policy::default() });
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/cart").unwrap();
    service.prepare().await.unwrap();
    let (mut none, mut all) = (FastCounts::default(), Vec::new());
    let passes = counts.is_some();
    let counts = counts.unwrap_or(&mut none);
    for seed in 0..600 {
        let (text, before) = (draw(seed), counted(&mesh));
        let answer = match passes {
            true => fast_call(&service, &text, counts).await,
            false => called(&service, &text).await,
        };
        let answer = answer.map_err(|fault| format!("{:?} {:?}", fault.kind(), fault.retry()));
        let answer = answer.map(|(status, mut headers, body)| {
            headers.remove(header::CONNECTION);
            headers.remove(header::CONTENT_LENGTH);
            if headers.get(header::DATE).is_some_and(|date| date != "then") {
                headers.remove(header::DATE);
            }
            (status, headers, body)
        });
        let now = counted(&mesh);
        let counted = std::array::from_fn(|at| now[at] - before[at]);
        all.push(Outcome { answer, seen: std::mem::take(&mut log.lock().unwrap().0), counted });
    }
    all
}

#[tokio::test]
async fn fast_path_calls_have_same_outcomes_as_parsed_calls() {
    let mut counts = FastCounts::default();
    let (parsed, fast) = (outcomes(None).await, outcomes(Some(&mut counts)).await);
    for (seed, (parsed, fast)) in parsed.iter().zip(&fast).enumerate() {
        assert_eq!(fast, parsed, "{}", draw(seed as u64).chars().take(200).collect::<String>());
    }
    let failed = parsed.iter().filter(|outcome| outcome.answer.is_err()).count();
    let retried = parsed.iter().filter(|outcome| outcome.counted[3] > 0).count();
    assert!(
        counts.fast > 200 && counts.body_dropped > 50 && failed > 30 && retried > 30,
        "{counts:?}, {failed} failed, {retried} retried"
    );
}

#[tokio::test]
async fn rate_limit_counts_fast_path_call_once() {
    let (rig, log) = (Rig::start().await, Log::default());
    rig.replicated("shop/cart", Protocol::Http1, &[server(Arc::clone(&log)).await]);
    let limit = RateLimit { calls: 2, per: Duration::from_secs(3600), burst: 2, scope: Scope::Caller };
    rig.policy("shop/cart", Policy { limit: Some(limit), ..Policy::default() });
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/cart").unwrap();
    service.prepare().await.unwrap();
    let text = "GET /plain HTTP/1.1\r\nhost: cart.shop\r\nx-id: 1\r\n\r\n";
    let mut counts = FastCounts::default();
    let mut call = async || fast_call(&service, text, &mut counts).await.map(|(status, ..)| status);
    assert_eq!([call().await.unwrap(), call().await.unwrap()], [200, 200]);
    let fault = call().await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::RateLimited);
    assert!(fault.retry_after().is_some_and(|wait| wait > Duration::from_secs(60)));
    let stats = mesh.stats();
    assert_eq!((stats.calls, stats.rate_limited_calls, stats.faults, stats.attempts), (3, 1, 1, 2));
    assert_eq!((counts.fast, log.lock().unwrap().0.len()), (1, 2), "the first one had to connect");
}

#[tokio::test]
async fn large_response_takes_fast_path_once_complete() {
    let (rig, log) = (Rig::start().await, Log::default());
    rig.replicated("shop/cart", Protocol::Http1, &[server(Arc::clone(&log)).await]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/cart").unwrap();
    service.prepare().await.unwrap();
    let body = Some("t".repeat(40_000) + &"e".repeat(20_000));
    let mut counts = FastCounts::default();
    for id in 0..4 {
        let text = format!("PUT /large HTTP/1.1\r\nhost: cart.shop\r\nx-id: {id}\r\n\r\n");
        let (status, _, received) = fast_call(&service, &text, &mut counts).await.unwrap();
        assert!(status == 200 && received == body, "{id}");
    }
    assert_eq!(counts.fast, 3, "all but the first one, which had to connect");
}
