//! Clients that open a mutual TLS connection (P-256 and X25519) for each request, and clients with idle connections.
//!
//! Their own cost is not measured, so they verify nothing about the server.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, DigitallySignedStruct, Error, HandshakeKind, SignatureScheme,
        client::{
            Resumption,
            danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        },
        crypto::{CryptoProvider, aws_lc_rs},
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
        version::TLS13,
    },
};

use super::{BoxError, load_by, orders};
use crate::load_generator::Call;

const GET: &[u8] = b"GET /echo HTTP/1.1\r\nhost: http1.bench\r\nconnection: close\r\n\r\n";
const GET_AND_KEEP: &[u8] = b"GET /echo HTTP/1.1\r\nhost: http1.bench\r\n\r\n";
/// Maximum number of cached TLS sessions: enough for one server, however many callers wait.
const SESSIONS: usize = 256;

/// Responds to each command with a line. `closed SIDE MS TASKS` and `resumed SIDE MS TASKS` connect for each request,
/// with a full handshake or a resumed session. `share` returns the share of resumed handshakes since the last `share`,
/// in thousandths. `idle SIDE COUNT` opens connections and keeps them after one request.
pub(super) async fn run(identity: Option<&Path>, to: &[SocketAddr]) -> Result<(), BoxError> {
    println!("ready");
    let counts = Arc::new(Counts::default());
    let caller = |to: &SocketAddr, resumes| {
        let config = Arc::new(config(identity, resumes)?);
        Ok::<_, BoxError>(Connects { to: *to, tls: config.into(), counts: Arc::clone(&counts) })
    };
    let full = to.iter().map(|to| caller(to, false)).collect::<Result<Vec<_>, _>>()?;
    let resuming = to.iter().map(|to| caller(to, true)).collect::<Result<Vec<_>, _>>()?;
    let mut kept = Vec::new();
    let mut orders = orders();
    while let Some(order) = orders.next_line().await? {
        let words: Vec<&str> = order.split(' ').collect();
        let of = |all: &'_ [Connects], side: &str| -> Result<Connects, BoxError> {
            all.get(side.parse::<usize>()?).cloned().ok_or_else(|| "there is no such side".into())
        };
        let done = match words[..] {
            ["closed", side, ms, tasks] => load_by(&of(&full, side)?, false, ms, tasks).await?,
            ["resumed", side, ms, tasks] => load_by(&of(&resuming, side)?, false, ms, tasks).await?,
            ["share"] => counts.share().to_string(),
            ["idle", side, count] => {
                for _ in 0..count.parse::<usize>()? {
                    kept.push(of(&full, side)?.keep().await?);
                }
                kept.len().to_string()
            }
            _ => format!("unknown order '{order}'"),
        };
        println!("{done}");
    }
    Ok(())
}

#[derive(Default)]
struct Counts {
    full: AtomicU64,
    resumed: AtomicU64,
}

impl Counts {
    fn share(&self) -> u64 {
        let [full, resumed] = [&self.full, &self.resumed].map(|count| count.swap(0, Ordering::Relaxed));
        resumed * 1000 / (full + resumed).max(1)
    }
}

/// Connects for each call.
#[derive(Clone)]
struct Connects {
    to: SocketAddr,
    tls: TlsConnector,
    counts: Arc<Counts>,
}

impl Connects {
    async fn open(&self) -> io::Result<TlsStream<TcpStream>> {
        let socket = TcpStream::connect(self.to).await?;
        socket.set_nodelay(true)?;
        // All servers share one name, so that sessions are found again.
        let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
        let stream = self.tls.connect(name, socket).await?;
        let count = match stream.get_ref().1.handshake_kind() {
            Some(HandshakeKind::Resumed) => &self.counts.resumed,
            _ => &self.counts.full,
        };
        count.fetch_add(1, Ordering::Relaxed);
        Ok(stream)
    }

    async fn exchange(&self) -> io::Result<()> {
        let mut stream = self.open().await?;
        stream.write_all(GET).await?;
        let mut response = Vec::new();
        match stream.read_to_end(&mut response).await {
            // Servers that close without a close_notify have responded nevertheless.
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            _ => {}
        }
        expect_ok(&response)
    }

    /// Opens a connection that stays idle after one request.
    async fn keep(&self) -> io::Result<TlsStream<TcpStream>> {
        let mut stream = self.open().await?;
        stream.write_all(GET_AND_KEEP).await?;
        let mut response = Vec::new();
        // The response has no body: it ends with its headers.
        while !response.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut response).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        expect_ok(&response).map(|()| stream)
    }
}

fn expect_ok(response: &[u8]) -> io::Result<()> {
    match response.starts_with(b"HTTP/1.1 200") {
        true => Ok(()),
        false => Err(io::Error::other(format!("answered {:?}", String::from_utf8_lossy(response)))),
    }
}

impl Call for Connects {
    async fn call(&self) -> Result<(), String> {
        self.exchange().await.map_err(|error| format!("{}: {error}", self.to))
    }
}

fn config(identity: Option<&Path>, resumes: bool) -> Result<ClientConfig, BoxError> {
    let provider =
        CryptoProvider { kx_groups: vec![aws_lc_rs::kx_group::X25519], ..aws_lc_rs::default_provider() };
    let config = ClientConfig::builder_with_provider(Arc::new(provider)).with_protocol_versions(&[&TLS13])?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(Unverified));
    let mut config = match identity.map(|folder| folder.join("identity.key")) {
        Some(file) => {
            let chain = CertificateDer::pem_file_iter(&file)?.collect::<Result<Vec<_>, _>>()?;
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&file)?)?
        }
        None => config.with_no_client_auth(),
    };
    config.resumption = match resumes {
        true => Resumption::in_memory_sessions(SESSIONS),
        false => Resumption::disabled(),
    };
    Ok(config)
}

#[derive(Debug)]
struct Unverified;

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
