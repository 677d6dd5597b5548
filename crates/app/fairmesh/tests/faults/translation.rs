//! Programs and servers that speak different HTTP versions: a message has the same meaning on both sides of the proxy.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::Protocol;
use fairmesh_server::{MeshServer, serve_http};
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::{TcpListener, TcpStream},
    process::Command,
    task::JoinHandle,
};

use crate::harness::{Proxy, World, beside_others};

type AnyBody = UnsyncBoxBody<Bytes, Infallible>;

/// A request as received by a server.
#[derive(Clone, Debug)]
struct Seen {
    version: Version,
    host: String,
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

/// A server that remembers its last request.
struct Mirror {
    name: &'static str,
    version: Version,
    seen: Arc<Mutex<Option<Seen>>>,
    _server: MeshServer,
    serving: JoinHandle<()>,
}

impl Mirror {
    async fn start(world: &World, name: &'static str, protocol: Protocol) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let builder =
            MeshServer::builder(format!("shop/{name}")).instance(name).address(address).protocol(protocol);
        let server = builder.agent(world.agent_address()).start().await.unwrap();
        let seen = Arc::new(Mutex::new(None));
        let serving = tokio::spawn({
            let (server, seen) = (server.clone(), Arc::clone(&seen));
            let service = tower::service_fn(move |request| answer(request, Arc::clone(&seen)));
            async move { serve_http(listener, service, &server).await.unwrap() }
        });
        world.serves(&format!("shop/{name}"), name).await;
        let version = if protocol == Protocol::Http1 { Version::HTTP_11 } else { Version::HTTP_2 };
        Self { name, version, seen, _server: server, serving }
    }

    /// The last request received.
    fn saw(&self) -> Seen {
        self.seen.lock().unwrap().take().expect("it was sent nothing")
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Responds as the path says.
async fn answer(
    request: Request<Incoming>,
    seen: Arc<Mutex<Option<Seen>>>,
) -> Result<Response<AnyBody>, Infallible> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let body = match path.as_str() {
        // The response is sent before the request is read.
        "/early" => None,
        _ => body.collect().await.ok(),
    };
    let host = head.uri.authority().map(ToString::to_string);
    let host = host.or_else(|| Some(head.headers.get(header::HOST)?.to_str().ok()?.to_owned()));
    let trailers = body.as_ref().and_then(|body| body.trailers().cloned());
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let kind = head.headers.get(header::CONTENT_TYPE).cloned();
    let (version, headers) = (head.version, head.headers);
    let host = host.unwrap_or_default();
    *seen.lock().unwrap() = Some(Seen { version, host, headers, body: body.clone(), trailers });
    let answer = Response::builder();
    let answer = match path.as_str() {
        "/slow" => {
            tokio::time::sleep(Duration::from_secs(10)).await;
            answer.body(Empty::new().boxed_unsync())
        }
        "/early" => answer.status(StatusCode::PAYLOAD_TOO_LARGE).body(Full::from("too much").boxed_unsync()),
        "/empty" => answer.status(StatusCode::NO_CONTENT).body(Empty::new().boxed_unsync()),
        "/same" => answer
            .status(StatusCode::NOT_MODIFIED)
            .header(header::ETAG, "\"7\"")
            .body(Empty::new().boxed_unsync()),
        "/stream" => {
            let parts = [Frame::data("some ".into()), Frame::data("tea".into()), Frame::trailers(sum())];
            let body = StreamBody::new(stream::iter(parts.map(Ok)));
            answer.header(header::TRAILER, "x-sum").body(body.boxed_unsync())
        }
        _ => {
            let answer = answer.header(header::SET_COOKIE, "a=1; Path=/").header(header::SET_COOKIE, "b=2");
            let answer = kind.iter().fold(answer, |answer, kind| answer.header(header::CONTENT_TYPE, kind));
            answer.body(Full::from(body).boxed_unsync())
        }
    };
    Ok(answer.unwrap())
}

fn sum() -> HeaderMap {
    HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from_static("7"))])
}

/// A program that speaks HTTP/1.1 or HTTP/2.
enum Program {
    Http1(http1::SendRequest<AnyBody>),
    Http2(http2::SendRequest<AnyBody>),
}

impl Program {
    async fn connect(to: &str, http2: bool) -> Self {
        let stream = TokioIo::new(TcpStream::connect(to).await.unwrap());
        if http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            return Self::Http2(sender);
        }
        let (sender, connection) = http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        Self::Http1(sender)
    }

    fn is_http2(&self) -> bool {
        matches!(self, Self::Http2(_))
    }

    async fn begin(&mut self, mut request: Request<AnyBody>) -> Response<Incoming> {
        match self {
            Self::Http1(sender) => {
                let host = request.uri().authority().unwrap().as_str().parse().unwrap();
                request.headers_mut().insert(header::HOST, host);
                *request.uri_mut() = request.uri().path().parse().unwrap();
                sender.ready().await.unwrap();
                sender.send_request(request).await.unwrap()
            }
            Self::Http2(sender) => sender.send_request(request).await.unwrap(),
        }
    }

    async fn call(&mut self, request: Request<AnyBody>) -> (Response<Bytes>, Option<HeaderMap>) {
        let (head, body) = self.begin(request).await.into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned();
        (Response::from_parts(head, body.to_bytes()), trailers)
    }
}

fn request(
    method: Method,
    mirror: &Mirror,
    path: &str,
    body: impl Into<Option<&'static str>>,
) -> Request<AnyBody> {
    let body = match body.into() {
        Some(text) => Full::from(text).boxed_unsync(),
        None => Empty::new().boxed_unsync(),
    };
    Request::builder().method(method).uri(format!("http://{}.shop{path}", mirror.name)).body(body).unwrap()
}

/// Starts a proxy, and a server and a program of each version.
async fn all(world: &World) -> (Proxy, [Mirror; 2], [Program; 2]) {
    let mirrors = [
        Mirror::start(world, "one", Protocol::Http1).await,
        Mirror::start(world, "two", Protocol::Http2).await,
    ];
    let proxy = Proxy::start(world).await;
    let programs =
        [Program::connect(&proxy.by_host, false).await, Program::connect(&proxy.by_host, true).await];
    (proxy, mirrors, programs)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_and_trailers_are_preserved_between_http_versions() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let (_proxy, mirrors, mut programs) = all(&world).await;
    for mirror in &mirrors {
        for program in &mut programs {
            let what = format!("HTTP/2 {} to {:?}", program.is_http2(), mirror.version);
            let (answer, _) = program.call(request(Method::POST, mirror, "/echo", "a body")).await;
            assert_eq!((answer.status(), &answer.body()[..]), (StatusCode::OK, &b"a body"[..]), "{what}");
            assert_eq!(answer.headers()[header::CONTENT_LENGTH], "6", "{what}");
            assert_eq!(answer.headers().get_all(header::SET_COOKIE).iter().count(), 2, "{what}");
            let seen = mirror.saw();
            assert_eq!((seen.version, &seen.body[..]), (mirror.version, &b"a body"[..]), "{what}");
            assert_eq!(seen.headers[header::CONTENT_LENGTH], "6", "{what}");
            assert!(seen.host.starts_with(&format!("{}.shop", mirror.name)), "{what}: {seen:?}");

            // A body of unknown length, with trailers.
            let parts = [Frame::data("some ".into()), Frame::data("water".into()), Frame::trailers(sum())];
            let mut streamed = request(Method::POST, mirror, "/stream", None);
            *streamed.body_mut() = StreamBody::new(stream::iter(parts.map(Ok))).boxed_unsync();
            streamed.headers_mut().insert(header::TRAILER, HeaderValue::from_static("x-sum"));
            streamed.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
            let (answer, trailers) = program.call(streamed).await;
            assert_eq!((&answer.body()[..], trailers), (&b"some tea"[..], Some(sum())), "{what}");
            let seen = mirror.saw();
            assert_eq!((&seen.body[..], seen.trailers), (&b"some water"[..], Some(sum())), "{what}");
            assert_eq!(
                seen.headers.get(header::TE).map(HeaderValue::as_bytes),
                Some(&b"trailers"[..]),
                "{what}"
            );
            assert!(!seen.headers.contains_key(header::CONTENT_LENGTH), "{what}");

            // An HTTP/1.1 client that did not ask for trailers gets none, but the whole body.
            let (answer, trailers) = program.call(request(Method::GET, mirror, "/stream", None)).await;
            assert_eq!(answer.body(), "some tea", "{what}");
            assert!(program.is_http2() || trailers.is_none(), "{what}");
            let seen = mirror.saw();
            assert!(
                seen.body.is_empty() && !seen.headers.contains_key(header::TRANSFER_ENCODING),
                "{what}: {seen:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodiless_and_early_responses_survive_http_version_translation() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let (proxy, mirrors, mut programs) = all(&world).await;
    for mirror in &mirrors {
        for program in &mut programs {
            let what = format!("HTTP/2 {} to {:?}", program.is_http2(), mirror.version);
            let (answer, _) = program.call(request(Method::HEAD, mirror, "/echo", None)).await;
            assert_eq!((answer.status(), answer.body().len()), (StatusCode::OK, 0), "{what}");
            for (path, status) in [("/empty", StatusCode::NO_CONTENT), ("/same", StatusCode::NOT_MODIFIED)] {
                let (answer, _) = program.call(request(Method::GET, mirror, path, None)).await;
                assert_eq!((answer.status(), answer.body().len()), (status, 0), "{what}");
                let tag = answer.headers().get(header::ETAG);
                assert_eq!(tag.is_some(), status == StatusCode::NOT_MODIFIED, "{what}");
                assert!(!answer.headers().contains_key(header::TRANSFER_ENCODING), "{what}: {answer:?}");
            }
            // The connection stays usable after each response.
            let (answer, _) = program.call(request(Method::POST, mirror, "/echo", "more")).await;
            assert_eq!(answer.body(), "more", "{what}");
        }
        for http2 in [false, true] {
            let mut program = Program::connect(&proxy.by_host, http2).await;
            let endless = stream::unfold((), async |()| {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Some((Ok(Frame::data(Bytes::from_static(&[7; 1024]))), ()))
            });
            let mut early = request(Method::POST, mirror, "/early", None);
            *early.body_mut() = StreamBody::new(endless).boxed_unsync();
            let answer = program.begin(early).await;
            assert_eq!(
                answer.status(),
                StatusCode::PAYLOAD_TOO_LARGE,
                "HTTP/2 {http2} to {:?}",
                mirror.version
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn split_http2_cookies_are_joined_for_http1() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let (_proxy, mirrors, mut programs) = all(&world).await;
    for mirror in &mirrors {
        for program in &mut programs {
            let mut asked = request(Method::GET, mirror, "/echo", None);
            for crumb in ["a=1", "b=2; c=3"] {
                asked.headers_mut().append(header::COOKIE, HeaderValue::from_static(crumb));
            }
            program.call(asked).await;
            let seen = mirror.saw();
            let cookies: Vec<_> = seen.headers.get_all(header::COOKIE).iter().collect();
            match mirror.version {
                Version::HTTP_11 => assert_eq!(cookies, ["a=1; b=2; c=3"]),
                _ => assert_eq!(cookies, ["a=1", "b=2; c=3"]),
            }
        }
    }
}

/// Path of calls that the proxy answers itself.
const NOWHERE: &str = "/nowhere";

/// Response to a gRPC-Web call of curl: headers and body.
async fn grpc_web(to: &str, version: &str, kind: &str, (host, path): (&str, &str), more: &[&str]) -> String {
    // Over HTTP/2, curl 7.88 hangs if the complete response arrives before it has sent its body.
    let body = if path == NOWHERE { "" } else { "\u{1}\u{2}web" };
    let output = Command::new("curl")
        .args(["-sSi", "--max-time", "20", version, "-H", &format!("content-type: {kind}")])
        .args(["-H", &format!("host: {host}"), "--data-binary", body])
        .arg(format!("http://{to}{path}"))
        .args(more)
        .output()
        .await
        .expect("this test needs curl");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).to_ascii_lowercase()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_web_is_forwarded_and_gets_readable_errors() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let (proxy, mirrors, _) = all(&world).await;
    let to = &proxy.by_host;
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for kind in ["application/grpc-web", "application/grpc-web+proto", "application/grpc-web-text"] {
            for mirror in &mirrors {
                let host = format!("{}.shop", mirror.name);
                let answer = grpc_web(to, version, kind, (&host, "/echo"), &["-H", "x-grpc-web: 1"]).await;
                assert!(answer.contains(&format!("\r\ncontent-type: {kind}\r\n")), "{answer}");
                assert!(answer.ends_with("\r\n\r\n\u{1}\u{2}web"), "{answer}");
                let seen = mirror.saw();
                assert_eq!(
                    (&seen.headers["content-type"], &seen.headers["x-grpc-web"]),
                    (&kind.parse::<HeaderValue>().unwrap(), &HeaderValue::from_static("1"))
                );
            }
            // An unknown service, and a host that is no service name.
            for host in ["nobody.shop", "localhost"] {
                let answer = grpc_web(to, version, kind, (host, NOWHERE), &[]).await;
                assert!(answer.contains(" 200") && answer.contains("\r\ngrpc-status: 5\r\n"), "{answer}");
                assert!(answer.contains(&format!("\r\ncontent-type: {kind}\r\n")), "{answer}");
                assert!(answer.contains("\r\ngrpc-message: ") && answer.ends_with("\r\n\r\n"), "{answer}");
            }
        }
        let soon = ["-H", "grpc-timeout: 200m"];
        let answer = grpc_web(to, version, "application/grpc-web", ("two.shop", "/slow"), &soon).await;
        assert!(answer.contains("\r\ngrpc-status: 4\r\n"), "{answer}");
    }
}
