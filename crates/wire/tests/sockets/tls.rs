//! Mutual TLS between processes of the mesh.

use std::{future::poll_fn, io::ErrorKind, pin::Pin, sync::Arc};

use fairmesh_model::Identity;
use fairmesh_test_support::{Authority, Certificate};
use fairmesh_wire::transport::{
    ExpectedPeer, Stream, TlsIdentity, Transport,
    rustls::{ClientConfig, ServerConfig, pki_types::CertificateDer},
};
use tokio::{
    io::{AsyncRead as _, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf},
    net::TcpStream,
};

use crate::support::*;

/// Verified peers are identified as the user whose id is the number of their certificates.
#[derive(Debug)]
struct Peers {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl TlsIdentity for Peers {
    fn client(&self, peer: ExpectedPeer<'_>) -> Arc<ClientConfig> {
        assert_eq!(peer, ExpectedPeer::Mesh);
        Arc::clone(&self.client)
    }

    fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    fn identify(&self, chain: &[CertificateDer<'_>]) -> Identity {
        Identity::Local { uid: u32::try_from(chain.len()).unwrap() }
    }
}

/// A process with this certificate, which trusts an authority.
fn process(trusted: &Authority, own: &Certificate) -> Transport {
    let (client, server) = (trusted.client(own), trusted.server(own));
    Transport::tls(Arc::new(Peers { client, server }))
}

#[tokio::test]
async fn both_sides_of_a_mesh_connection_are_authenticated() {
    let authority = Authority::default();
    let transport = process(&authority, &authority.issue());
    let listener = transport.bind(&free_port()).await.unwrap();
    let address = listener.address().unwrap();
    let accept = async || listener.accept().await.handshake().await;
    let (dialled, accepted) = soon(async { tokio::join!(transport.dial(&address), accept()) }).await;
    let (mut dialled, mut accepted) = (dialled.unwrap(), accepted.unwrap());
    assert_eq!(dialled.identity(), &Identity::Local { uid: 1 });
    assert_eq!(accepted.identity(), &Identity::Local { uid: 1 });
    dialled.write_all(b"hello").await.unwrap();
    dialled.flush().await.unwrap();
    let mut read = [0; 5];
    soon(accepted.read_exact(&mut read)).await.unwrap();
    assert_eq!(&read, b"hello");
}

#[tokio::test]
async fn plaintext_and_strangers_fail_the_handshake() {
    let (authority, other) = (Authority::default(), Authority::default());
    let listener = process(&authority, &authority.issue()).bind(&free_port()).await.unwrap();
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
    let stranger = async {
        // It trusts the server, which does not trust it. In TLS 1.3 it learns so when it reads.
        let mut socket = process(&authority, &other.issue()).dial(&address).await.unwrap();
        socket.write_all(&[0; 1000]).await.unwrap();
        socket.read_u8().await.unwrap_err().kind()
    };
    let (accepted, kind) = soon(async { tokio::join!(accept(), stranger) }).await;
    accepted.unwrap_err();
    assert_eq!(kind, ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_read_sends_what_an_earlier_write_buffered() {
    const SIZE: usize = 8 << 20;
    let authority = Authority::default();
    let transport = process(&authority, &authority.issue());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(authority.client(&authority.issue()));
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let connecting = connector.connect("127.0.0.1".try_into().unwrap(), stream);
    let accepting = async {
        let stream =
            fairmesh_listen::GuardedStream::outgoing(Stream::Tcp(listener.accept().await.unwrap().0));
        transport.accept(stream).await.unwrap().into_parts().0
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
    };
    let reading = poll_fn(|context| {
        let mut byte = [0];
        Pin::new(&mut near).poll_read(context, &mut ReadBuf::new(&mut byte))
    });
    let (read, ()) = soon(async { tokio::join!(reading, receiving) }).await;
    read.unwrap();
}
