//! Calls of the client library to the server library, over mutual TLS.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Waker},
};

use bytes::Bytes;
use fairmesh_client::{Body, FaultKind, Mesh, Retry, Transport};
use fairmesh_model::{Endpoint, EndpointState, Identity, Location, Protocol, ServiceKind};
use fairmesh_server::{Server, serve_http};
use fairmesh_test_support::{Authority, Certificate, endpoint, eventually_async};
use fairmesh_wire::transport::{
    ExpectedPeer, TlsIdentity,
    rustls::{ClientConfig, ServerConfig, pki_types::CertificateDer},
};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::rig::*;

const PROTOCOLS: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// Services prove their identities by certificates of an authority of their own.
#[derive(Debug)]
struct Identified {
    services: HashMap<&'static str, Arc<ClientConfig>>,
    server: Arc<ServerConfig>,
}

impl TlsIdentity for Identified {
    fn client(&self, peer: ExpectedPeer<'_>) -> Arc<ClientConfig> {
        let ExpectedPeer::Service(service) = peer else { panic!("agents have Unix sockets here") };
        Arc::clone(&self.services[service.to_string().as_str()])
    }

    fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    fn identify(&self, _: &[CertificateDer<'_>]) -> Identity {
        Identity::Anonymous
    }
}

/// A process with a certificate. It accepts clients of `callers`, and servers of `shop/one` of the other authority.
fn process(callers: &Authority, shop_one: &Authority, own: &Certificate) -> Transport {
    let services = HashMap::from([("shop/one", shop_one.client(own))]);
    Transport::tls(Arc::new(Identified { services, server: callers.server(own) }))
}

/// A server that responds with its name and the length of the request.
async fn serve(name: &'static str, transport: Transport) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // Not registered: the test writes the records.
    let server = Server::builder("shop/one")
        .address(address)
        .location(Location::in_region(region("eu")))
        .control("127.0.0.1:1".parse().unwrap())
        .transport(transport);
    let server = server.start().await.unwrap();
    let service = tower::service_fn(move |request: Request<hyper::body::Incoming>| async move {
        let length = request.into_body().collect().await.unwrap().to_bytes().len();
        let mut text = format!("{name} {length} ").into_bytes();
        // As long as the request.
        text.resize(text.len() + length, b'x');
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
    });
    tokio::spawn(async move { serve_http(listener, service, &server).await });
    address
}

/// An endpoint that speaks mutual TLS.
fn write(rig: &Rig, instance: &str, address: SocketAddr) {
    let state = EndpointState::Serving;
    rig.write_endpoint("shop/one", Endpoint { address, state, mtls: true, ..endpoint(instance, "eu") });
}

async fn mesh(rig: &Rig, transport: Transport) -> Mesh {
    let mesh = Mesh::builder().agent(rig.address()).client_id("test").cache_dir(rig.cache_dir());
    mesh.transport(transport).connect().await.unwrap()
}

async fn send(mesh: &Mesh, length: usize) -> String {
    let request = http::Request::post("/").body(Body::from(vec![b'x'; length])).unwrap();
    let (status, text) = ask(&mesh.service("shop/one").unwrap(), request).await.unwrap();
    assert_eq!(status, 200);
    assert!(text.len() > length);
    text.trim_end_matches('x').to_owned()
}

#[tokio::test]
async fn calls_over_tls_keep_their_connections() {
    let (callers, shop) = (Authority::default(), Authority::default());
    let one = serve("one", process(&callers, &shop, &shop.issue())).await;
    for protocol in PROTOCOLS {
        let rig = Rig::start().await;
        rig.service("shop/one", ServiceKind::Replicated, protocol);
        write(&rig, "i0", one);
        let mesh = mesh(&rig, process(&callers, &shop, &callers.issue())).await;
        for length in [0, 5, 100_000, 5, 4 << 20, 5, 5] {
            assert_eq!(send(&mesh, length).await, format!("one {length} "), "{protocol:?}");
        }
        let stats = mesh.stats();
        assert_eq!((stats.connection_reuses, stats.retries), (6, 0), "{protocol:?}");
    }
}

#[tokio::test]
async fn a_server_with_another_identity_gets_no_request() {
    let (callers, shop, other) = (Authority::default(), Authority::default(), Authority::default());
    let (wrong, right) = tokio::join!(
        serve("wrong", process(&callers, &shop, &other.issue())),
        serve("right", process(&callers, &shop, &shop.issue())),
    );
    for protocol in PROTOCOLS {
        let rig = Rig::start().await;
        rig.service("shop/one", ServiceKind::Replicated, protocol);
        write(&rig, "i0", wrong);
        let mesh = mesh(&rig, process(&callers, &shop, &callers.issue())).await;
        let fault = ask(&mesh.service("shop/one").unwrap(), post("/", "tea")).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Unreachable, "{protocol:?}: {fault}");
        assert!(fault.to_string().contains("the TLS handshake failed"), "{protocol:?}: {fault}");
        write(&rig, "i1", right);
        let follows = async || ask(&mesh.service("shop/one").unwrap(), post("/", "tea")).await.is_ok();
        eventually_async("the other endpoint is known", follows).await;
        for _ in 0..20 {
            assert_eq!(send(&mesh, 5).await, "right 5 ", "{protocol:?}");
        }
    }
}

#[tokio::test]
async fn a_call_that_a_server_rejects_for_its_certificate_is_known_to_be_unsent() {
    let (callers, shop, other) = (Authority::default(), Authority::default(), Authority::default());
    let address = serve("one", process(&other, &shop, &shop.issue())).await;
    for protocol in PROTOCOLS {
        let rig = Rig::start().await;
        rig.service("shop/one", ServiceKind::Replicated, protocol);
        write(&rig, "i0", address);
        let mesh = mesh(&rig, process(&callers, &shop, &callers.issue())).await;
        let fault = ask(&mesh.service("shop/one").unwrap(), post("/", "tea")).await.unwrap_err();
        assert_eq!(
            (fault.kind(), fault.retry()),
            (FaultKind::Unreachable, Retry::Unsent),
            "{protocol:?}: {fault}"
        );
    }
}

#[tokio::test]
async fn a_caller_without_an_identity_does_not_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rig = Rig::start().await;
    rig.service("shop/one", ServiceKind::Replicated, Protocol::Http1);
    write(&rig, "i0", listener.local_addr().unwrap());
    let mesh = mesh(&rig, Transport::default()).await;
    let fault = ask(&mesh.service("shop/one").unwrap(), post("/", "tea")).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unreachable);
    assert!(
        fault.to_string().contains("accepts only mutual TLS, and this program has no identity"),
        "{fault}"
    );
    let accepted = listener.poll_accept(&mut Context::from_waker(Waker::noop()));
    assert!(accepted.is_pending(), "it connected");
}

#[tokio::test]
async fn a_tls_server_responds_to_no_plaintext() {
    let (callers, shop) = (Authority::default(), Authority::default());
    let one = serve("one", process(&callers, &shop, &shop.issue())).await;
    let mut stream = TcpStream::connect(one).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: one.shop\r\n\r\n").await.unwrap();
    let mut read = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut read)).await.unwrap().unwrap();
    assert!(!read.windows(4).any(|window| window == b"HTTP"), "{read:?}");
}
