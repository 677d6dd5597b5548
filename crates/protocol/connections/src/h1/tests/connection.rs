//! One connection, in memory or over a socket.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use fairmesh_wire::transport::Stream;
use futures_util::{FutureExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, uri::PathAndQuery};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::{Instant, timeout},
};

use crate::{
    AttemptTimeouts, Head, Request, RequestBody, SendError,
    h1::{ResponseBody, connection::Connection},
};
use fairmesh_http::h1::Malformed;

const TEST_TIMEOUT: Duration = Duration::from_secs(10);
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ntea";

/// Returns a request whose body is buffered.
pub(super) fn request(
    method: &Method,
    headers: &[(&'static str, &'static str)],
    body: &'static str,
) -> Request {
    let body = RequestBody::take(Full::from(body)).now_or_never().unwrap().unwrap();
    with_body(method, headers, body)
}

fn with_body(method: &Method, headers: &[(&'static str, &'static str)], body: RequestBody) -> Request {
    let headers =
        headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    let head = Head {
        method: method.clone(),
        authority: "cart.shop".parse().unwrap(),
        path: PathAndQuery::from_static("/").into(),
        headers: headers.collect::<HeaderMap>(),
        grpc: false,
    };
    Request { head, body, left: Some(Duration::from_millis(1500)) }
}

type Frames = mpsc::UnboundedSender<Frame<Bytes>>;

/// Returns a body whose frames the sender produces. The body ends when the sender is dropped.
fn streamed() -> (Frames, impl Body<Data = Bytes, Error = Infallible> + Send + 'static) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let frames = stream::unfold(receiver, async |mut receiver| Some((Ok(receiver.recv().await?), receiver)));
    (sender, StreamBody::new(Box::pin(frames)))
}

/// Returns a request whose body is produced frame by frame.
async fn upload(headers: &[(&'static str, &'static str)]) -> (Frames, Request) {
    let (frames, body) = streamed();
    (frames, with_body(&Method::POST, headers, RequestBody::take(body).await.unwrap()))
}

fn connected(room: usize) -> (Box<Connection<DuplexStream>>, DuplexStream) {
    let (near, far) = duplex(room);
    (Box::new(Connection::new(near, None)), far)
}

/// Reads until the text ends with `end`, and no further.
async fn read_until(stream: &mut DuplexStream, end: &str) -> String {
    let mut seen = Vec::new();
    while !seen.ends_with(end.as_bytes()) {
        seen.push(timeout(TEST_TIMEOUT, stream.read_u8()).await.unwrap().unwrap());
    }
    String::from_utf8(seen).unwrap()
}

/// Reads to the end of the stream.
async fn read_to_end(mut stream: DuplexStream) -> String {
    let mut seen = String::new();
    timeout(TEST_TIMEOUT, stream.read_to_string(&mut seen)).await.unwrap().unwrap();
    seen
}

#[tokio::test]
async fn request_is_written_with_its_body_length_and_response_is_read() {
    let (connection, mut server) = connected(1 << 16);
    let mut pending = Some(request(
        &Method::POST,
        &[("content-length", "9"), ("x-fairmesh-deadline", "7"), ("x", "y")],
        "tea",
    ));
    server.write_all(RESPONSE).await.unwrap();
    let response = connection.exchange(&mut pending, None).await.unwrap();
    assert_eq!((response.status().as_u16(), response.body().size_hint().exact()), (200, Some(3)));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "tea");
    assert!(pending.is_none());
    let head = "POST / HTTP/1.1\r\nhost: cart.shop\r\nx-fairmesh-deadline: 1500\r\nx: y\r\ncontent-length: 3\r\n\r\n";
    assert_eq!(
        read_to_end(server).await,
        format!("{head}tea"),
        "neither a wrong length nor more bytes are sent"
    );
}

#[tokio::test]
async fn request_body_of_unknown_length_is_sent_chunked_with_trailers() {
    let (connection, mut server) = connected(1 << 16);
    let (frames, request) = upload(&[]).await;
    let mut pending = Some(request);
    let server = async {
        let head = read_until(&mut server, "\r\n\r\n").await;
        assert!(
            head.contains("\r\ntransfer-encoding: chunked\r\n") && !head.contains("content-length"),
            "{head}"
        );
        frames.send(Frame::data("green tea".into())).unwrap();
        assert_eq!(read_until(&mut server, "tea\r\n").await, "9\r\ngreen tea\r\n");
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", 9.into());
        frames.send(Frame::trailers(trailers)).unwrap();
        assert_eq!(read_until(&mut server, "\r\n\r\n").await, "0\r\nx-sum: 9\r\n\r\n");
        server.write_all(RESPONSE).await.unwrap();
    };
    let (response, ()) = tokio::join!(connection.exchange(&mut pending, None), server);
    assert_eq!(response.unwrap().into_body().collect().await.unwrap().to_bytes(), "tea");
}

#[tokio::test]
async fn request_body_that_differs_from_declared_length_fails() {
    for (said, text) in [("5", "tea"), ("2", "tea")] {
        let (connection, server) = connected(1 << 16);
        let (frames, body) = upload(&[]).await;
        let mut pending =
            Some(Request { head: request(&Method::POST, &[("content-length", said)], "").head, ..body });
        frames.send(Frame::data(text.into())).unwrap();
        drop(frames);
        let failed = timeout(TEST_TIMEOUT, connection.exchange(&mut pending, None)).await.unwrap();
        assert!(matches!(failed, Err(SendError::Body(_))));
        let seen = read_to_end(server).await;
        let (head, body) = seen.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("content-length: {said}")) && body.len().to_string() != said,
            "{seen}"
        );
    }
}

#[tokio::test]
async fn request_that_was_not_sent_stays_available_for_retry() {
    let (connection, server) = connected(1 << 16);
    drop(server);
    let mut pending = Some(request(&Method::POST, &[], "tea"));
    assert!(matches!(connection.exchange(&mut pending, None).await, Err(SendError::Stale(_))));
    let body = pending.unwrap().body.collect().await.unwrap();
    assert_eq!(body.to_bytes(), "tea");

    // Nothing is sent if the buffer is full.
    let (mut near, _server) = duplex(1);
    near.write_all(b"x").await.unwrap();
    let mut pending = Some(request(&Method::POST, &[], "tea"));
    assert!(Box::new(Connection::new(near, None)).exchange(&mut pending, None).now_or_never().is_none());
    assert!(pending.is_some());
}

#[tokio::test]
async fn request_body_is_sent_completely_at_any_write_size() {
    for size in [1, 4095, 4096, 4097, 70_000] {
        for room in [7, 4096, 1 << 20] {
            let (connection, mut server) = connected(room);
            let sent: Bytes = (0..size).map(|at: usize| (at % 251) as u8).collect();
            let body = RequestBody::take_unpin(Full::from(sent.clone())).await.unwrap();
            let mut pending = Some(with_body(&Method::POST, &[], body));
            let server = async {
                let head = read_until(&mut server, "\r\n\r\n").await;
                assert!(head.ends_with(&format!("\r\ncontent-length: {size}\r\n\r\n")), "{head}");
                let mut came = vec![0; size];
                timeout(TEST_TIMEOUT, server.read_exact(&mut came)).await.unwrap().unwrap();
                assert!(came == sent, "{size} bytes in pieces of {room}");
                server.write_all(RESPONSE).await.unwrap();
            };
            let (response, ()) = tokio::join!(connection.exchange(&mut pending, None), server);
            assert_eq!(response.unwrap().into_body().collect().await.unwrap().to_bytes(), "tea");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn http1_exchange_times_out_and_reports_whether_request_was_sent() {
    for (room, unsent) in [(1 << 16, false), (1, true)] {
        let (mut near, _server) = duplex(room);
        near.write_all(b"x").await.unwrap();
        let mut pending = Some(request(&Method::POST, &[], "tea"));
        let begun = Instant::now();
        let timeouts = Some(AttemptTimeouts::until(begun + Duration::from_millis(100)));
        let ended = Box::new(Connection::new(near, None)).exchange(&mut pending, timeouts).await;
        assert!(matches!(ended, Err(SendError::TimedOut)));
        assert!(begun.elapsed() < Duration::from_millis(110));
        assert_eq!(pending.is_some(), unsent);
    }
}

#[tokio::test]
async fn partly_sent_request_fails_as_possibly_processed() {
    for (said, refused) in [("", false), ("HTTP/1.1 2", false), ("SMTP", true)] {
        let (connection, mut server) = connected(1 << 16);
        let mut pending = Some(request(&Method::POST, &[], "tea"));
        server.write_all(said.as_bytes()).await.unwrap();
        server.shutdown().await.unwrap();
        let Err(SendError::Broken(error)) = connection.exchange(&mut pending, None).await else {
            panic!("{said}")
        };
        assert_eq!((error.is::<Malformed>(), pending.is_some()), (refused, false), "{said}");
    }
}

#[tokio::test]
async fn early_response_is_returned_during_request_upload() {
    let (connection, mut server) = connected(1 << 16);
    let (frames, request) = upload(&[]).await;
    let mut pending = Some(request);
    server.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    let response = connection.exchange(&mut pending, None).await.unwrap();
    read_until(&mut server, "\r\n\r\n").await;
    // The response is not read.
    for text in ["green ", "tea"] {
        frames.send(Frame::data(text.into())).unwrap();
        read_until(&mut server, &format!("{text}\r\n")).await;
    }
    drop(frames);
    read_until(&mut server, "0\r\n\r\n").await;
    server.write_all(b"3\r\ntea\r\n0\r\n\r\n").await.unwrap();
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes(), "tea");
}

#[tokio::test]
async fn dropping_response_cancels_request_upload() {
    let (connection, mut server) = connected(1 << 16);
    let (frames, request) = upload(&[]).await;
    let mut pending = Some(request);
    server.write_all(RESPONSE).await.unwrap();
    let response = connection.exchange(&mut pending, None).await.unwrap();
    drop(response);
    timeout(TEST_TIMEOUT, frames.closed()).await.unwrap();
    assert!(!read_to_end(server).await.ends_with("0\r\n\r\n"), "the server must not take it for complete");
}

#[tokio::test]
async fn long_request_and_response_bodies_do_not_deadlock() {
    const SIZE: usize = 200_000;
    // With small buffers, a side that only writes or only reads blocks.
    let (connection, mut server) = connected(100);
    let body = RequestBody::take(Full::new(Bytes::from(vec![b'x'; SIZE]))).await.unwrap();
    let mut pending = Some(with_body(&Method::POST, &[], body));
    let server = async {
        read_until(&mut server, "\r\n\r\nxxxxx").await;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", SIZE - 5);
        server.write_all(head.as_bytes()).await.unwrap();
        let mut left = SIZE - 5;
        while left > 0 {
            let mut piece = [0; 64];
            let read = server.read(&mut piece).await.unwrap();
            server.write_all(&piece[..read]).await.unwrap();
            left -= read;
        }
    };
    let client =
        async { connection.exchange(&mut pending, None).await.unwrap().into_body().collect().await.unwrap() };
    let (body, ()) = timeout(TEST_TIMEOUT, async { tokio::join!(client, server) }).await.unwrap();
    assert_eq!(body.to_bytes().len(), SIZE - 5);
}

#[tokio::test]
async fn response_of_server_that_stops_reading_request_is_returned() {
    let (connection, mut server) = connected(100);
    let body = RequestBody::take(Full::new(Bytes::from(vec![b'x'; 10_000]))).await.unwrap();
    let mut pending = Some(with_body(&Method::POST, &[], body));
    let server = async {
        read_until(&mut server, "\r\n\r\nx").await;
        server.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        drop(server);
    };
    let (response, ()) = tokio::join!(connection.exchange(&mut pending, None), server);
    assert_eq!(response.unwrap().status(), 413);
}

/// Returns a connection whose response was read, and the server's end.
async fn used(response: &'static [u8]) -> (ResponseBody, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let mut far = far.unwrap().0;
    far.write_all(response).await.unwrap();
    let connection = Box::new(Connection::new(Stream::Tcp(near.unwrap()), None));
    let mut pending = Some(request(&Method::GET, &[], ""));
    let mut body = connection.exchange(&mut pending, None).await.unwrap().into_body();
    while body.frame().await.is_some() {}
    (body, far)
}

#[tokio::test]
async fn idle_connection_is_reusable_until_unexpected_bytes_arrive() {
    for said in ["", "HTTP/1.1 408 Request Timeout\r\n\r\n"] {
        let (mut body, mut server) = used(RESPONSE).await;
        let connection = body.connection().unwrap();
        assert!(connection.is_reusable() && connection.is_quiet());
        server.write_all(said.as_bytes()).await.unwrap();
        server.shutdown().await.unwrap();
        let noticed = async {
            while connection.is_quiet() {
                tokio::task::yield_now().await;
            }
        };
        timeout(TEST_TIMEOUT, noticed).await.unwrap();
    }
}

#[tokio::test]
async fn non_persistent_connection_is_not_reused() {
    for (response, reusable) in [
        (RESPONSE, true),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\ntea", false),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\ntea", false),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nteapot", false),
    ] {
        let (mut body, _server) = used(response).await;
        assert_eq!(
            body.connection().unwrap().is_reusable(),
            reusable,
            "{}",
            String::from_utf8_lossy(response)
        );
    }
}
