//! Answers probes of other agents: HTTP/1.1, HTTP/2, gRPC and WebSocket on one port.
//!
//! Each connection serves one probe, is limited in bytes and time, and is reset if there are too many. Answers reveal
//! nothing, so any peer may connect.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

/// Maximum number of connections.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// Maximum lifetime of a connection.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept, for example while the machine has no file descriptors left.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Maximum size of a request head, in bytes.
const MAX_HEAD: usize = 2 * 1024;
/// Maximum number of concurrent streams of a connection.
const MAX_STREAMS: u32 = 4;
/// The `Sec-WebSocket-Key` of every probe and the `Sec-WebSocket-Accept` that proves a WebSocket server: the example of
/// RFC 6455, section 1.3.
pub(super) const WEBSOCKET_KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
pub(super) const WEBSOCKET_ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// The payload of a ping, and the bits of its frames (RFC 6455, section 5.2).
pub(super) const PING_PAYLOAD: [u8; 4] = *b"mesh";
pub(super) const PING: u8 = 0x89;
pub(super) const PONG: u8 = 0x8a;
pub(super) const MASKED: u8 = 0x80;
/// An empty gRPC message.
pub(super) const EMPTY_MESSAGE: &[u8] = &[0; 5];

pub(super) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Accepts connections forever.
pub(super) async fn serve(listener: TcpListener) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_RETRY).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        tokio::spawn(async move {
            // The prober sees a failure.
            let _ = timeout(TIMEOUT, answer(stream)).await;
            drop(place);
        });
    }
}

async fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut first = [0];
    stream.peek(&mut first).await?;
    // `PRI * HTTP/2.0`: probes of HTTP/1.1 begin with GET.
    if first == *b"P" {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.max_concurrent_streams(MAX_STREAMS).max_header_list_size(MAX_HEAD as u32);
        return builder
            .serve_connection(TokioIo::new(stream), service_fn(respond))
            .await
            .map_err(io::Error::other);
    }
    let head = read_head(&mut stream).await?;
    if !head.to_ascii_lowercase().contains("\r\nupgrade: websocket\r\n") {
        return stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    }
    let accepted = format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
         sec-websocket-accept: {WEBSOCKET_ACCEPT}\r\n\r\n"
    );
    stream.write_all(accepted.as_bytes()).await?;
    let mut frame = [0; 10];
    stream.read_exact(&mut frame).await?;
    let [kind, length, mask @ .., a, b, c, d] = frame;
    let payload = [a, b, c, d];
    if kind != PING || usize::from(length & !MASKED) != payload.len() {
        return Err(io::Error::other("not the ping of a probe"));
    }
    let mut pong = vec![PONG, payload.len() as u8];
    pong.extend(payload.iter().zip(mask).map(|(byte, mask)| byte ^ mask));
    stream.write_all(&pong).await
}

/// Reads an HTTP/1.1 head up to and including its empty line.
pub(super) async fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_HEAD {
            return Err(io::Error::other("the head is too long"));
        }
        // Byte by byte, so that a frame after the head stays in the socket.
        head.push(stream.read_u8().await?);
    }
    String::from_utf8(head).map_err(io::Error::other)
}

/// The response over HTTP/2, valid for a unary gRPC call.
async fn respond(request: Request<Incoming>) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let grpc = HeaderValue::from_static("application/grpc");
    if request.headers().get(CONTENT_TYPE) != Some(&grpc) {
        return Ok(Response::new(Full::new(Bytes::new()).boxed()));
    }
    let trailers =
        HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
    let message = Full::new(Bytes::from_static(EMPTY_MESSAGE)).with_trailers(async { Some(Ok(trailers)) });
    let mut response = Response::new(message.boxed());
    response.headers_mut().insert(CONTENT_TYPE, grpc);
    Ok(response)
}
