//! One probe of another agent by every protocol. Each protocol has its own connection, except gRPC, which reuses that
//! of HTTP/2.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_probes::{Outcomes, Protocol};
use http::{Request, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use super::probe_responder::{
    EMPTY_MESSAGE, MASKED, PING, PING_PAYLOAD, PONG, WEBSOCKET_ACCEPT, WEBSOCKET_KEY, read_head,
};

/// Timeout of each protocol.
const TIMEOUT: Duration = Duration::from_millis(1_500);
/// Maximum size of a body, in bytes.
const MAX_BODY: usize = 1024;
/// The masking key of the ping. It hides nothing, but RFC 6455 requires clients to mask frames.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// Probes `target`, from the local address `from` if given.
pub(super) async fn probe(target: SocketAddr, from: Option<IpAddr>) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let connected = timed(connect(target, from)).await;
    note(&mut outcomes, Protocol::Tcp, connected.as_ref().map(|(_, took)| *took));
    let Some((stream, _)) = connected else { return outcomes };
    let http1 = timed(http1(stream, target));
    let websocket = timed(async { websocket(connect(target, from).await?, target).await });
    let (http1, websocket, (http2, grpc)) = tokio::join!(http1, websocket, http2_and_grpc(target, from));
    note(&mut outcomes, Protocol::Http1, http1.map(|((), took)| took));
    note(&mut outcomes, Protocol::Http2, http2);
    note(&mut outcomes, Protocol::Grpc, grpc);
    note(&mut outcomes, Protocol::WebSocket, websocket.map(|((), took)| took));
    outcomes
}

fn note(outcomes: &mut Outcomes, protocol: Protocol, took: Option<Duration>) {
    match took {
        Some(took) => outcomes.pass(protocol, took),
        None => outcomes.fail(protocol),
    }
}

/// Returns the result and its duration. `None` after an error or timeout.
async fn timed<T>(work: impl Future<Output = io::Result<T>>) -> Option<(T, Duration)> {
    let began = Instant::now();
    let done = timeout(TIMEOUT, work).await.ok()?.ok()?;
    Some((done, began.elapsed()))
}

async fn connect(target: SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = if target.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(from) = from.filter(|from| from.is_ipv4() == target.is_ipv4()) {
        socket.bind((from, 0).into())?;
    }
    let stream = socket.connect(target).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn http1(mut stream: TcpStream, target: SocketAddr) -> io::Result<()> {
    let request = format!("GET /probe HTTP/1.1\r\nhost: {target}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    match read_head(&mut stream).await?.starts_with("HTTP/1.1 200 ") {
        true => Ok(()),
        false => Err(io::Error::other("another status than 200")),
    }
}

async fn websocket(mut stream: TcpStream, target: SocketAddr) -> io::Result<()> {
    let request = format!(
        "GET /probe HTTP/1.1\r\nhost: {target}\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: {WEBSOCKET_KEY}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let head = read_head(&mut stream).await?;
    if !head.starts_with("HTTP/1.1 101 ") || !head.contains(WEBSOCKET_ACCEPT) {
        return Err(io::Error::other("the upgrade was not accepted"));
    }
    let length = PING_PAYLOAD.len() as u8;
    let mut ping = vec![PING, MASKED | length];
    ping.extend(MASK);
    ping.extend(PING_PAYLOAD.iter().zip(MASK).map(|(byte, mask)| byte ^ mask));
    stream.write_all(&ping).await?;
    let mut pong = [0; 6];
    stream.read_exact(&mut pong).await?;
    match pong[..2] == [PONG, length] && pong[2..] == PING_PAYLOAD {
        true => Ok(()),
        false => Err(io::Error::other("the ping was not answered")),
    }
}

/// Durations of HTTP/2 and gRPC over one connection. If HTTP/2 fails, gRPC is not tried.
async fn http2_and_grpc(target: SocketAddr, from: Option<IpAddr>) -> (Option<Duration>, Option<Duration>) {
    let open = async {
        let stream = TokioIo::new(connect(target, from).await?);
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), stream).await.map_err(io::Error::other)?;
        let driver = AbortOnDropHandle::new(tokio::spawn(connection));
        call(&mut sender, target, "text/plain").await?;
        Ok((sender, driver))
    };
    let Some(((mut sender, _driver), http2)) = timed(open).await else { return (None, None) };
    let call = async {
        match call(&mut sender, target, "application/grpc").await?.as_deref() {
            Some(b"0") => Ok(()),
            _ => Err(io::Error::other("another status than OK")),
        }
    };
    (Some(http2), timed(call).await.map(|((), took)| took))
}

/// Sends a request, and returns the gRPC status from the trailers.
async fn call(
    sender: &mut SendRequest<Full<Bytes>>,
    target: SocketAddr,
    content_type: &str,
) -> io::Result<Option<Vec<u8>>> {
    let request = Request::post(format!("http://{target}/fairmesh.Probe/Answer"))
        .header(CONTENT_TYPE, content_type)
        .header("te", "trailers")
        .body(Full::new(Bytes::from_static(EMPTY_MESSAGE)))
        .map_err(io::Error::other)?;
    let response = sender.send_request(request).await.map_err(io::Error::other)?;
    if response.status() != StatusCode::OK {
        return Err(io::Error::other("another status than 200"));
    }
    let body = Limited::new(response.into_body(), MAX_BODY).collect().await.map_err(io::Error::other)?;
    Ok(body.trailers().and_then(|trailers| Some(trailers.get("grpc-status")?.as_bytes().to_vec())))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::{super::probe_responder, *};

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = probe_responder::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn agent_answers_zone_probes_of_every_protocol() {
        let (listener, address) = listener().await;
        let serving = tokio::spawn(probe_responder::serve(listener));
        let outcomes = probe(address, Some("127.0.0.1".parse().unwrap())).await;
        for protocol in Protocol::ALL {
            assert!(outcomes.took(protocol).is_some(), "{protocol:?}: {outcomes:?}");
        }
        serving.abort();
    }

    #[tokio::test]
    async fn zone_probe_of_closed_port_fails_at_tcp() {
        let (listener, address) = listener().await;
        drop(listener);
        let outcomes = probe(address, None).await;
        assert_eq!(outcomes.fault(), Some(Protocol::Tcp));
        assert!(!outcomes.has_failed(Protocol::Http1) && outcomes.took(Protocol::Http1).is_none());
    }

    #[tokio::test]
    async fn zone_probe_reports_http2_failure_of_http1_only_peer() {
        let (listener, address) = listener().await;
        let serving = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    read_head(&mut stream).await?;
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await
                });
            }
        });
        let outcomes = probe(address, None).await;
        assert!(outcomes.took(Protocol::Http1).is_some(), "{outcomes:?}");
        let failed: Vec<_> =
            Protocol::ALL.into_iter().filter(|protocol| outcomes.has_failed(*protocol)).collect();
        assert_eq!(failed, [Protocol::Http2, Protocol::Grpc, Protocol::WebSocket]);
        serving.abort();
    }
}
