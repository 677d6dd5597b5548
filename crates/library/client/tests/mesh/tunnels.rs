//! Connections handed to the caller: after an upgrade, and for protocols other than HTTP.

use std::net::SocketAddr;

use fairmesh_calls::{discovery::ServiceState, forwarding::service_state};
use fairmesh_client::{Body, FaultKind, ServiceHandle};
use fairmesh_model::{EndpointState, Protocol};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::{
    rig::{PATIENCE, Rig},
    server::{Server, nobody},
};

const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\nwelcome";

/// Number of calls and streams in flight, as counted by the balancer.
fn in_flight(service: &ServiceHandle) -> (u32, u32) {
    let ServiceState::Ready(ready) = &*service_state(service) else { return (0, 0) };
    let counts = ready.upstream.candidates().map(|candidate| (candidate.outstanding, candidate.streams));
    counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

fn chat() -> Request<Body> {
    let asked = Request::get("/chat").header("connection", "Upgrade").header("upgrade", "chat");
    asked.body(Body::empty()).unwrap()
}

/// Starts a server that answers each request with this response and then echoes. Returns the request heads it received.
async fn echo(answer: &'static str) -> (SocketAddr, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (heads, seen) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let heads = heads.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else { return };
                    head.push(byte);
                }
                let _ = heads.send(String::from_utf8(head).unwrap());
                let _ = stream.write_all(answer.as_bytes()).await;
                said_again(stream).await;
            });
        }
    });
    (address, seen)
}

async fn said_again(mut stream: TcpStream) {
    let (mut reader, mut writer) = stream.split();
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
    let _ = writer.shutdown().await;
}

#[tokio::test]
async fn upgraded_connection_is_handed_to_caller_and_counts_as_stream() {
    let rig = Rig::start().await;
    let (address, mut heads) = echo(SWITCH).await;
    rig.replicated("shop/chat", Protocol::Http1, &[address]);
    let mesh = rig.mesh().await;
    let service = mesh.service("shop/chat").unwrap();
    let answer = service.send(chat()).await.unwrap();
    assert_eq!(
        (answer.status(), &answer.headers()["upgrade"]),
        (StatusCode::SWITCHING_PROTOCOLS, &"chat".parse().unwrap())
    );
    let head = heads.recv().await.unwrap().to_ascii_lowercase();
    assert!(head.contains("\r\nupgrade: chat\r\n") && head.contains("\r\nconnection: upgrade\r\n"), "{head}");
    assert_eq!(in_flight(&service), (1, 0));
    let mut tunnel = answer.into_body().into_tunnel().unwrap();
    assert_eq!(in_flight(&service), (0, 1));
    assert_eq!(tunnel.endpoint().address, address);
    tunnel.write_all(b", friend").await.unwrap();
    tunnel.shutdown().await.unwrap();
    let mut said = String::new();
    timeout(PATIENCE, tunnel.read_to_string(&mut said)).await.unwrap().unwrap();
    assert_eq!(said, "welcome, friend", "bytes that arrived with the response come first");
    drop(tunnel);
    assert_eq!((in_flight(&service), mesh.stats().connections_open), ((0, 0), 0));
}

#[tokio::test]
async fn connection_is_upgraded_only_if_client_and_server_agree() {
    let rig = Rig::start().await;
    let (switching, _heads) = echo(SWITCH).await;
    rig.replicated("shop/pushy", Protocol::Http1, &[switching]);
    let pushy = rig.mesh().await.service("shop/pushy").unwrap();
    let plain = Request::get("/").header("upgrade", "chat").body(Body::empty()).unwrap();
    let fault = pushy.send(plain).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Protocol, "{fault}");

    let server = Server::echo("a").await;
    rig.replicated("shop/plain", Protocol::Http1, &[server.address]);
    let service = rig.mesh().await.service("shop/plain").unwrap();
    let answer = service.send(chat()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(answer.into_body().into_tunnel().is_none());
    let answer = service.send(chat()).await.unwrap();
    assert!(!answer.into_body().collect().await.unwrap().to_bytes().is_empty());

    rig.replicated("shop/two", Protocol::Http2, &[server.address]);
    let fault = rig.mesh().await.service("shop/two").unwrap().send(chat()).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Invalid);
    assert!(fault.to_string().contains("protocol http1"), "{fault}");
}

#[tokio::test]
async fn open_connection_skips_unreachable_endpoints() {
    let rig = Rig::start().await;
    let (there, mut heads) = echo("").await;
    rig.replicated("shop/db", Protocol::Http2, &[nobody().await, nobody().await, there]);
    let service = rig.mesh().await.service("shop/db").unwrap();
    for _ in 0..8 {
        let mut tunnel = service.open_connection(Request::new(())).await.unwrap();
        assert_eq!((in_flight(&service), tunnel.endpoint().address), ((0, 1), there));
        tunnel.write_all(b"hello\r\n\r\n and more").await.unwrap();
        tunnel.shutdown().await.unwrap();
        let mut said = String::new();
        timeout(PATIENCE, tunnel.read_to_string(&mut said)).await.unwrap().unwrap();
        assert_eq!((said.as_str(), heads.recv().await.unwrap().as_str()), (" and more", "hello\r\n\r\n"));
    }
    assert_eq!(in_flight(&service), (0, 0));

    rig.replicated("shop/gone", Protocol::Http1, &[]);
    rig.endpoint("shop/gone", "i0", nobody().await, EndpointState::Serving);
    let service = rig.mesh().await.service("shop/gone").unwrap();
    let fault = service.open_connection(Request::new(())).await.unwrap_err();
    assert_eq!((fault.kind(), in_flight(&service)), (FaultKind::Unreachable, (0, 0)));
}
