//! Tests of mutual TLS between processes of the mesh.

use std::{future::poll_fn, io::ErrorKind, pin::Pin, sync::Arc, task::Context, time::Duration};

use fairmesh_identity::{Member, Workload};
use fairmesh_listen::{Acceptor, Limits, Memory};
use fairmesh_model::Identity;
use fairmesh_wire::transport::{Address, ExpectedPeer, Stream, TlsIdentity as _, Transport};
use tokio::{
    io::{AsyncRead as _, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf},
    net::{TcpListener, TcpStream},
    time::Instant,
};

use crate::support::*;

fn free_port() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

#[tokio::test]
async fn both_sides_of_mesh_connection_are_authenticated() {
    let ca = Ca::default();
    let listener = ca.transport("fairmesh/control/one").bind(&free_port()).await.unwrap();
    let address = listener.address().unwrap();
    let agent = ca.transport("fairmesh/agent/web-1");
    let accept = async || listener.accept().await.handshake().await;
    let (dialled, accepted) = soon(async { tokio::join!(agent.dial(&address), accept()) }).await;
    let (mut dialled, mut accepted) = (dialled.unwrap(), accepted.unwrap());
    assert_eq!(dialled.identity(), &Identity::Spiffe(id("fairmesh/control/one")));
    assert_eq!(accepted.identity(), &Identity::Spiffe(id("fairmesh/agent/web-1")));
    dialled.write_all(b"hello").await.unwrap();
    dialled.flush().await.unwrap();
    let mut read = [0; 5];
    soon(accepted.read_exact(&mut read)).await.unwrap();
    assert_eq!(&read, b"hello");
}

#[tokio::test]
async fn certificates_of_services_and_operators_are_refused_as_mesh_processes() {
    let ca = Ca::default();
    for impostor in ["shop/cart", "fairmesh/operator/alice"] {
        let listener = ca.transport(impostor).bind(&free_port()).await.unwrap();
        let address = listener.address().unwrap();
        let agent = ca.transport("fairmesh/agent/web-1");
        let accept = async || listener.accept().await.handshake().await.map(drop);
        let (dialled, accepted) = soon(async { tokio::join!(agent.dial(&address), accept()) }).await;
        let error = dialled.unwrap_err().to_string();
        assert!(error.contains(impostor) && error.contains("a process of the mesh"), "{error}");
        accepted.unwrap_err();
    }
}

#[tokio::test]
async fn upstream_must_be_control_plane_or_replica() {
    let ca = Ca::default();
    for (role, is_upstream) in [
        ("fairmesh/control/one", true),
        ("fairmesh/replica/web-1.eu", true),
        ("fairmesh/agent/web-2", false),
        ("fairmesh/proxy/web-1.edge", false),
        ("fairmesh/operator/alice", false),
        ("shop/cart", false),
    ] {
        let listener = ca.transport(role).bind(&free_port()).await.unwrap();
        let address = listener.address().unwrap();
        let agent = ca.transport("fairmesh/agent/web-1").to_upstreams();
        let accept = async || listener.accept().await.handshake().await.map(drop);
        let (dialled, _) = soon(async { tokio::join!(agent.dial(&address), accept()) }).await;
        match dialled {
            Ok(_) => assert!(is_upstream, "{role}"),
            Err(error) => {
                assert!(
                    !is_upstream && error.to_string().contains("a control plane or a replica"),
                    "{role}: {error}"
                );
            }
        }
    }
}

#[tokio::test]
async fn expired_certificate_is_refused_on_session_resumption() {
    let ca = Ca::default();
    for expired in ["fairmesh/agent/web-1", "fairmesh/control/one"] {
        let clock = Arc::<SetClock>::default();
        clock.set(now());
        let process = |path: &str| {
            // The clock of the other side is later.
            let workload = if path == expired { Workload::default() } else { Workload::new(clock.clone()) };
            workload.install(ca.credentials(path, now())).unwrap();
            Transport::tls(Arc::new(workload))
        };
        let (agent, control) = (process("fairmesh/agent/web-1"), process("fairmesh/control/one"));
        let (dialled, accepted) = connect(&agent, &control).await;
        let (mut dialled, mut accepted) = (dialled.unwrap(), accepted.unwrap());
        // The first connection leaves a resumable session and stays open.
        for time in [now(), now() + 25 * HOUR] {
            clock.set(time);
            accepted.write_all(b"x").await.unwrap();
            accepted.flush().await.unwrap();
            assert_eq!(soon(dialled.read_u8()).await.unwrap(), b'x');
        }
        let (dialled, accepted) = connect(&agent, &control).await;
        let refused = if expired.contains("agent") { accepted } else { dialled };
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("the certificate has expired"), "{expired}: {error}");
    }
}

#[tokio::test]
async fn mesh_connections_are_plaintext_until_identity_exists() {
    let ca = Ca::default();
    let workload = Arc::<Workload>::default();
    let transport = Transport::tls(Arc::clone(&workload) as _);
    let listener = transport.bind(&free_port()).await.unwrap();
    let address = listener.address().unwrap();
    let accept = async || listener.accept().await.handshake().await;
    let (dialled, accepted) = soon(async { tokio::join!(transport.dial(&address), accept()) }).await;
    assert_eq!(dialled.unwrap().identity(), &Identity::Anonymous);
    assert_eq!(accepted.unwrap().identity(), &Identity::Anonymous);
    workload.install(ca.credentials("fairmesh/agent/web-1", now())).unwrap();
    let (dialled, accepted) = soon(async { tokio::join!(transport.dial(&address), accept()) }).await;
    assert_eq!(dialled.unwrap().identity(), &Identity::Spiffe(id("fairmesh/agent/web-1")));
    assert_eq!(accepted.unwrap().identity(), &Identity::Spiffe(id("fairmesh/agent/web-1")));
}

#[tokio::test]
async fn join_token_pins_server_root_before_identity_exists() {
    let (ca, other) = (Ca::default(), Ca::default());
    let token = token_of(&ca);
    let joining = Transport::tls(Arc::new(Member::new(Arc::default(), Some(token))));
    for (path, authority, fits) in [
        ("fairmesh/control/one", &ca, true),
        ("fairmesh/replica/web-1.eu", &ca, true),
        ("shop/cart", &ca, false),
        ("fairmesh/control/one", &other, false),
    ] {
        for with_joining in [true, false] {
            let listener = authority.transport(path).bind(&free_port()).await.unwrap();
            let listener = if with_joining { listener.with_joining() } else { listener };
            let address = listener.address().unwrap();
            let accept = async || {
                let mut socket = listener.accept().await.handshake().await?;
                socket.write_all(b"x").await?;
                socket.flush().await?;
                Ok::<_, std::io::Error>(socket)
            };
            let dial = async {
                let mut socket = joining.dial(&address).await?;
                socket.read_u8().await?;
                Ok::<_, std::io::Error>(socket)
            };
            let (dialled, accepted) = soon(async { tokio::join!(dial, accept()) }).await;
            assert_eq!(dialled.is_ok(), fits && with_joining, "{path}: {dialled:?}");
            assert_eq!(accepted.is_ok(), fits && with_joining, "{path}: {accepted:?}");
            if let Ok(accepted) = accepted {
                assert_eq!(accepted.identity(), &Identity::Anonymous);
            }
        }
    }
}

fn token_of(ca: &Ca) -> fairmesh_identity::JoinToken {
    let tokens = fairmesh_identity::Tokens::open(&ca.folder.path().join("tokens")).unwrap();
    let joining = fairmesh_identity::Joining::Agent(fairmesh_model::Label::new("web-1").unwrap());
    let expires_at = (now() + HOUR).as_secs();
    let grant = fairmesh_identity::TokenGrant { joining, tenants: Vec::new(), region: None, expires_at };
    tokens.create(grant, &ca.authority.signing_root(), now()).unwrap().0
}

#[tokio::test]
async fn plaintext_and_unknown_peers_fail_mutual_tls_handshake() {
    let (ca, other) = (Ca::default(), Ca::default());
    let listener = ca.transport("fairmesh/control/one").bind(&free_port()).await.unwrap();
    let address = listener.address().unwrap();
    let accept = async || listener.accept().await.handshake().await.map(drop);
    let plaintext = async {
        let mut socket = Transport::default().dial(&address).await.unwrap();
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut read = Vec::new();
        let _ = socket.read_to_end(&mut read).await;
        assert!(read.first() != Some(&0), "an alert, and no frame of HTTP/2: {read:?}");
    };
    let (accepted, ()) = soon(async { tokio::join!(accept(), plaintext) }).await;
    accepted.unwrap_err();
    let stranger = async { other.transport("fairmesh/agent/web-1").dial(&address).await };
    let (accepted, dialled) = soon(async { tokio::join!(accept(), stranger) }).await;
    accepted.unwrap_err();
    let error = dialled.unwrap_err().to_string();
    assert!(error.contains("was not issued by the trust domain prod"), "{error}");
}

#[tokio::test]
async fn plaintext_caller_is_listed_while_connected() {
    let ca = Ca::default();
    let server = ca.transport("shop/cart").of_server();
    let callers = server.plaintext_callers().unwrap();
    callers.permit(true);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    client.write_all(b"GET").await.unwrap();
    let acceptor = Acceptor::new("test", Limits::program(), Memory::default());
    let accept =
        |context: &mut Context<'_>| listener.poll_accept(context).map_ok(|(stream, _)| Stream::Tcp(stream));
    let stream = soon(server.accept(soon(acceptor.accept(accept)).await)).await.unwrap();
    let tomorrow = Instant::now() + Duration::from_secs(86_400);
    assert_eq!(callers.recent(tomorrow).len(), 1);
    drop(stream);
    assert!(callers.recent(tomorrow).is_empty());
}

#[tokio::test]
async fn tls_stream_read_flushes_buffered_writes() {
    const SIZE: usize = 8 << 20;
    let ca = Ca::default();
    let server = ca.transport("shop/cart");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let cart = "shop/cart".parse().unwrap();
    let client = ca.workload("shop/checkout");
    let connecting = client.connect(ExpectedPeer::Service(&cart), stream);
    let accepting = async {
        let stream =
            fairmesh_listen::GuardedStream::outgoing(Stream::Tcp(listener.accept().await.unwrap().0));
        server.accept(stream).await.unwrap().into_parts().0
    };
    let (far, mut near) = soon(async { tokio::join!(connecting, accepting) }).await;
    let mut written = 0;
    while written < SIZE {
        match near.try_write(&[1; 1 << 16], &[2; 100]) {
            Ok(some) => written += some,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                break;
            }
        }
    }
    assert!(written > 0 && written < SIZE, "the socket accepts less at once");
    let mut far = far.unwrap();
    let receiving = async {
        let mut read = vec![0; written];
        far.read_exact(&mut read).await.unwrap();
        far.write_all(b"x").await.unwrap();
        far.flush().await.unwrap();
    };
    let reading = poll_fn(|context| {
        let mut byte = [0];
        Pin::new(&mut near).poll_read(context, &mut ReadBuf::new(&mut byte))
    });
    let (read, ()) = soon(async { tokio::join!(reading, receiving) }).await;
    read.unwrap();
}
