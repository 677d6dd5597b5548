//! TLS termination for clients.
//!
//! Uses rustls, like the connections to etcd. All listeners have the same certificate, regardless of the name that
//! the client requests; it should contain all names of the proxy. The private key may be on a key server. Sessions
//! are resumed by tickets, so that no state is kept for clients that may not return.

pub mod certificate_files;
pub(crate) mod handshake_pool;

use std::{
    io,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use fairmesh_identity::{RemoteKeys, SignatureCounts, Signer, crypto_provider};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::aws_lc_rs::Ticketer,
        server::ProducesTickets,
        sign::SingleCertAndKey,
        version::{TLS12, TLS13},
    },
    server::TlsStream,
};
use tokio_util::sync::CancellationToken;

use crate::{
    counter::increment,
    metrics::{EdgeMetrics, tls::TlsMetrics},
    shutdown::Shutdown,
    tls::{
        certificate_files::{Fingerprint, Identity, TlsError, TlsFiles},
        handshake_pool::HandshakePool,
    },
};

/// Time limit of a handshake: two round trips and a signature on a busy client.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the files are checked for changes.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// ALPN protocols of HTTP listeners.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The initial certificate and its fingerprint.
#[allow(missing_debug_implementations, reason = "a signer of certificates has none")]
pub struct LoadedTls(Tls, Fingerprint);

/// The protocols that a handshake offers (ALPN).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Alpn {
    /// HTTP/2 and HTTP/1.1.
    Http,
    /// No protocol, for TCP listeners whose protocol is unknown.
    None,
}

/// Terminates TLS with the current certificate.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    keys: Keys,
    /// Pool for handshakes that key servers sign.
    pool: Option<HandshakePool>,
    current: RwLock<TlsConfigs>,
}

/// Settings that stay the same when the certificate changes.
#[derive(Debug)]
struct Keys {
    tickets: Arc<dyn ProducesTickets>,
    remote: Option<Arc<RemoteKeys>>,
    signatures: Arc<SignatureCounts>,
}

/// Configurations for handshakes.
#[derive(Clone, Debug)]
struct TlsConfigs {
    http: Arc<ServerConfig>,
    /// Configuration for TCP listeners: without ALPN, since their protocol is unknown.
    tcp: Arc<ServerConfig>,
}

impl Tls {
    /// Loads the certificate. With `key_servers`, these sign handshakes, and the key in the files signs only while
    /// none of them does.
    ///
    /// # Errors
    /// The files cannot be used.
    pub fn load(
        files: TlsFiles,
        key_servers: Option<Arc<RemoteKeys>>,
        counts: &TlsMetrics,
    ) -> Result<LoadedTls, TlsError> {
        let tickets = Ticketer::new().map_err(TlsError::Unusable)?;
        let keys = Keys { tickets, remote: key_servers, signatures: Arc::clone(&counts.signatures) };
        let (read, fingerprint) = files.read();
        let current = RwLock::new(TlsConfigs::new(read?, &keys)?);
        let pool = keys.remote.as_ref().map(|keys| HandshakePool::new(keys.deadline()));
        Ok(LoadedTls(Self { files, keys, pool, current }, fingerprint))
    }

    /// Performs a handshake.
    ///
    /// # Errors
    /// The handshake fails or exceeds `time_limit`.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        alpn: Alpn,
        time_limit: Duration,
        counts: &TlsMetrics,
    ) -> io::Result<TlsStream<TcpStream>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let config = match alpn {
            Alpn::Http => current.http,
            Alpn::None => current.tcp,
        };
        let handshake = async {
            match &self.pool {
                None => TlsAcceptor::from(config).accept(stream).await,
                Some(pool) => pool.complete(stream, config, &counts.refused_handshakes).await,
            }
        };
        let handshake = timeout(time_limit.min(HANDSHAKE_TIMEOUT), handshake).await;
        let handshake = handshake.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        increment(if handshake.is_ok() { &counts.handshakes } else { &counts.failed_handshakes });
        handshake
    }

    /// Reloads the files when they change, until the proxy stops. Invalid files change nothing.
    async fn watch_files(&self, mut seen: Fingerprint, counts: &TlsMetrics, shutdown: &CancellationToken) {
        loop {
            tokio::select! {
                () = sleep(RELOAD_INTERVAL) => {}
                () = shutdown.cancelled() => return,
            }
            let files = self.files.clone();
            // Fails only when the runtime stops.
            let Ok((read, found)) = tokio::task::spawn_blocking(move || files.read()).await else { return };
            // Each content is reported once, even if invalid.
            if found == seen {
                continue;
            }
            seen = found;
            match read.and_then(|identity| TlsConfigs::new(identity, &self.keys)) {
                Ok(current) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
                    increment(&counts.reloads);
                    tracing::info!(certificate = %self.files.certificate.display(), "reloaded the certificate");
                }
                Err(error) => {
                    increment(&counts.failed_reloads);
                    tracing::warn!(%error, "cannot reload the certificate; the previous one stays in use");
                }
            }
        }
    }
}

impl LoadedTls {
    /// Starts a task that reloads the files when they change.
    pub fn watch(self, metrics: &Arc<EdgeMetrics>, shutdown: &Arc<Shutdown>) -> Arc<Tls> {
        let Self(tls, seen) = self;
        let tls = Arc::new(tls);
        let (watched, metrics, shutdown) = (Arc::clone(&tls), Arc::clone(metrics), Arc::clone(shutdown));
        tokio::spawn(async move { watched.watch_files(seen, &metrics.tls, shutdown.started()).await });
        tls
    }
}

impl TlsConfigs {
    fn new(identity: Identity, keys: &Keys) -> Result<Self, TlsError> {
        let Identity { chain, key } = identity;
        let certified = Signer::certify(chain, key, keys.remote.clone(), &keys.signatures);
        let certified = SingleCertAndKey::from(certified.map_err(TlsError::of)?);
        // In TLS 1.2 the signed bytes could be anything, so key servers do not sign for TLS 1.2.
        let versions = if keys.remote.is_some() { &[&TLS13][..] } else { &[&TLS13, &TLS12] };
        let builder = ServerConfig::builder_with_provider(Arc::new(crypto_provider()));
        let builder = builder.with_protocol_versions(versions).map_err(TlsError::Unusable)?;
        let mut tcp = builder.with_no_client_auth().with_cert_resolver(Arc::new(certified));
        tcp.ticketer = Arc::clone(&keys.tickets);
        let mut http = tcp.clone();
        http.alpn_protocols = ALPN.map(Vec::from).into();
        Ok(Self { http: Arc::new(http), tcp: Arc::new(tcp) })
    }
}
