//! Calls from the client library to the server library over mutual TLS.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_client::{Body, FaultKind, Mesh, Retry, Transport};
use fairmesh_identity::{Authority, Clock as _, Credentials, PrivateKey, SystemClock, Workload};
use fairmesh_model::{
    Endpoint, EndpointState, Location, MtlsMode, Policy, Protocol, Revocation, Revocations,
    RevokedCertificates, ServiceKind, SpiffePath, TrustDomain,
};
use fairmesh_server::{MeshServer, serve_http};
use fairmesh_test_support::{endpoint, eventually, eventually_async};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::rig::*;

/// Time within which a revocation must take effect.
const REVOCATION_LIMIT: Duration = Duration::from_secs(10);

const PROTOCOLS: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// A trust domain for tests.
struct Domain {
    authority: Authority,
    _folder: tempfile::TempDir,
}

impl Default for Domain {
    fn default() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let domain = TrustDomain::new("test").unwrap();
        Self {
            authority: Authority::open(folder.path(), &domain, SystemClock.now()).unwrap(),
            _folder: folder,
        }
    }
}

impl Domain {
    /// Returns the transport of a process with this identity.
    fn process(&self, path: &str) -> Transport {
        self.process_that_trusts(path, self)
    }

    /// Returns the transport of a process with this identity that also trusts another authority.
    fn process_that_trusts(&self, path: &str, other: &Self) -> Transport {
        Transport::tls(self.workload(path, other))
    }

    fn workload(&self, path: &str, other: &Self) -> Arc<Workload> {
        let workload = Workload::default();
        workload.install(self.credentials(path, other)).unwrap();
        Arc::new(workload)
    }

    fn credentials(&self, path: &str, other: &Self) -> Credentials {
        let (key, now) = (PrivateKey::generate().unwrap(), SystemClock.now());
        let mut bundle = self.authority.bundle();
        bundle.roots.extend(other.authority.bundle().roots);
        let id = path.parse::<SpiffePath>().unwrap().within(&bundle.domain);
        let issued = self.authority.issue(&key.signing_request().unwrap(), &id, now).unwrap();
        Credentials::new(key, issued.chain, bundle, now).unwrap()
    }
}

async fn serve(name: &'static str, transport: Transport) -> SocketAddr {
    start(name, transport).await.0
}

/// Starts a server that responds with its name and the length of the request.
async fn start(name: &'static str, transport: Transport) -> (SocketAddr, MeshServer) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // The server reads its policy there and is not registered: the test writes the records.
    let records = Rig::start().await;
    let server = MeshServer::builder("shop/one")
        .address(address)
        .location(Location::in_region(region("eu")))
        .control(records.address())
        .transport(transport);
    let server = server.start().await.unwrap();
    let service = tower::service_fn(move |request: Request<hyper::body::Incoming>| async move {
        let length = request.into_body().collect().await.unwrap().to_bytes().len();
        let mut text = format!("{name} {length} ").into_bytes();
        // The response is as long as the request.
        text.resize(text.len() + length, b'x');
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
    });
    let serving = server.clone();
    tokio::spawn(async move {
        let _records = records;
        serve_http(listener, service, &serving).await
    });
    (address, server)
}

/// Writes an endpoint that speaks mutual TLS.
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
async fn calls_over_tls_reuse_their_connections() {
    let domain = Domain::default();
    let one = serve("one", domain.process("shop/one")).await;
    for protocol in PROTOCOLS {
        let rig = Rig::start().await;
        rig.service("shop/one", ServiceKind::Replicated, protocol);
        write(&rig, "i0", one);
        let mesh = mesh(&rig, domain.process("shop/caller")).await;
        for length in [0, 5, 100_000, 5, 4 << 20, 5, 5] {
            assert_eq!(send(&mesh, length).await, format!("one {length} "), "{protocol:?}");
        }
        let stats = mesh.stats();
        assert_eq!((stats.connection_reuses, stats.retries), (6, 0), "{protocol:?}");
    }
}

#[tokio::test]
async fn idle_connections_to_revoked_server_are_closed_at_once() {
    let domain = Domain::default();
    let one = serve("one", domain.process("shop/one")).await;
    for protocol in PROTOCOLS {
        let rig = Rig::start().await;
        rig.service("shop/one", ServiceKind::Replicated, protocol);
        write(&rig, "i0", one);
        let caller = domain.workload("shop/caller", &domain);
        let mesh = mesh(&rig, Transport::tls(caller.clone())).await;
        send(&mesh, 5).await;
        assert_eq!(mesh.stats().connections_open, 1, "{protocol:?}");
        let (path, certificates) = ("shop/one".parse().unwrap(), RevokedCertificates::All);
        caller.revoke(Revocations { entries: vec![Revocation { path, certificates, at: 0 }] });
        let closed = eventually("the connection is closed", || mesh.stats().connections_open == 0);
        timeout(REVOCATION_LIMIT, closed).await.expect("it is closed in time");
        let fault = ask(&mesh.service("shop/one").unwrap(), post("/", "tea")).await.unwrap_err();
        assert!(fault.to_string().contains("shop/one is revoked"), "{protocol:?}: {fault}");
    }
}

#[tokio::test]
async fn server_with_wrong_identity_receives_no_request() {
    let domain = Domain::default();
    let (wrong, right) =
        tokio::join!(serve("wrong", domain.process("shop/two")), serve("right", domain.process("shop/one")),);
    for protocol in PROTOCOLS {
        let rig = Rig::start().await;
        rig.service("shop/one", ServiceKind::Replicated, protocol);
        write(&rig, "i0", wrong);
        let mesh = mesh(&rig, domain.process("shop/caller")).await;
        let fault = ask(&mesh.service("shop/one").unwrap(), post("/", "tea")).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Unreachable, "{protocol:?}: {fault}");
        let reason = "the peer is spiffe://test/shop/two, not shop/one";
        assert!(fault.to_string().contains(reason), "{protocol:?}: {fault}");
        write(&rig, "i1", right);
        let follows = async || ask(&mesh.service("shop/one").unwrap(), post("/", "tea")).await.is_ok();
        eventually_async("the other endpoint is known", follows).await;
        for _ in 0..20 {
            assert_eq!(send(&mesh, 5).await, "right 5 ", "{protocol:?}");
        }
    }
}

#[tokio::test]
async fn call_refused_for_client_certificate_fails_as_unsent() {
    let domain = Domain::default();
    let address = serve("one", domain.process("shop/one")).await;
    let other = Domain::default();
    for protocol in PROTOCOLS {
        let rig = Rig::start().await;
        rig.service("shop/one", ServiceKind::Replicated, protocol);
        write(&rig, "i0", address);
        let mesh = mesh(&rig, other.process_that_trusts("shop/caller", &domain)).await;
        let fault = ask(&mesh.service("shop/one").unwrap(), post("/", "tea")).await.unwrap_err();
        assert_eq!(
            (fault.kind(), fault.retry()),
            (FaultKind::Unreachable, Retry::Unsent),
            "{protocol:?}: {fault}"
        );
    }
}

#[tokio::test]
async fn caller_without_identity_does_not_connect_to_tls_endpoints() {
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

/// Starts a listener of an intruder, whose record says that it speaks plaintext.
async fn intruder(rig: &Rig) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, state) = (listener.local_addr().unwrap(), EndpointState::Serving);
    rig.write_endpoint("shop/one", Endpoint { address, state, ..endpoint("i1", "eu") });
    listener
}

fn has_connection(listener: &TcpListener) -> bool {
    listener.poll_accept(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[tokio::test]
async fn caller_with_identity_sends_nothing_to_plaintext_endpoints() {
    let domain = Domain::default();
    let honest = serve("one", domain.process("shop/one")).await;
    for protocol in PROTOCOLS {
        let rig = Rig::start().await;
        rig.service("shop/one", ServiceKind::Replicated, protocol);
        let intruder = intruder(&rig).await;
        let mesh = mesh(&rig, domain.process("shop/caller")).await;
        let fault = ask(&mesh.service("shop/one").unwrap(), post("/", "tea")).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::NoEndpoints, "{protocol:?}");
        let reason = "1 plaintext endpoint in a strict mesh";
        assert!(fault.to_string().contains(reason), "{protocol:?}: {fault}");
        write(&rig, "i0", honest);
        let follows = async || ask(&mesh.service("shop/one").unwrap(), post("/", "tea")).await.is_ok();
        eventually_async("the honest endpoint is known", follows).await;
        for _ in 0..20 {
            assert_eq!(send(&mesh, 5).await, "one 5 ", "{protocol:?}");
        }
        assert!(!has_connection(&intruder), "{protocol:?}");
        // Only a permissive policy allows it; then a load poll or a call may use it.
        rig.policy("shop/one", Policy { mtls: MtlsMode::Permissive, ..Policy::default() });
        let used = async || {
            let _ = timeout(Duration::from_millis(100), send(&mesh, 5)).await;
            has_connection(&intruder)
        };
        eventually_async("it is used", used).await;
    }
}

#[tokio::test]
async fn caller_that_gets_identity_later_uses_no_plaintext_endpoint() {
    let domain = Domain::default();
    let rig = Rig::start().await;
    rig.service("shop/one", ServiceKind::Replicated, Protocol::Http1);
    let intruder = intruder(&rig).await;
    let late = Arc::new(Workload::default());
    let mesh = mesh(&rig, Transport::tls(late.clone())).await;
    mesh.service("shop/one").unwrap().prepare().await.unwrap();
    // The table was compiled before the identity arrived.
    late.install(domain.credentials("shop/caller", &domain)).unwrap();
    let fault = ask(&mesh.service("shop/one").unwrap(), post("/", "tea")).await.unwrap_err();
    assert_eq!((fault.kind(), fault.retry()), (FaultKind::Unreachable, Retry::Unsent), "{fault}");
    assert!(fault.to_string().contains("plaintext endpoint in a strict mesh"), "{fault}");
    assert!(!has_connection(&intruder));
}

#[tokio::test]
async fn tls_server_does_not_answer_plaintext() {
    let domain = Domain::default();
    let (one, server) = start("one", domain.process("shop/one")).await;
    let mut stream = TcpStream::connect(one).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: one.shop\r\n\r\n").await.unwrap();
    let mut read = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut read)).await.unwrap().unwrap();
    assert!(!read.windows(4).any(|window| window == b"HTTP"), "{read:?}");
    eventually("the handshake is counted", || server.admission().failed_handshakes == 1).await;
}
