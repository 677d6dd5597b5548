//! TLS of programs, ended here: which certificate is shown, and how a connection begins.
//!
//! rustls, as for etcd. One certificate for all listeners, whatever name is asked for: a proxy is one party, and where it has
//! several names its certificate has them. Tickets hold what a session needs to be resumed, so that nothing is kept here for
//! programs that may never return.

pub(crate) mod files;
pub(crate) mod metrics;

use std::{
    io,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::aws_lc_rs::{Ticketer, default_provider},
        server::ProducesTickets,
    },
    server::TlsStream,
};
use tokio_util::sync::CancellationToken;

use crate::{
    lifecycle::shutdown::Shutdown,
    listen::{
        listener_config::{ListenerConfig, ListenerKind},
        tls::{
            files::{Fingerprint, Identity, TlsError, TlsFiles},
            metrics::TlsMetrics,
        },
    },
    metrics::ProxyMetrics,
    observe::counter::increment,
};

/// How long a handshake may take at most: two round trips and a signature, and someone who thinks of nothing else.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the files are looked at.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// What a program may choose from once it speaks HTTP.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// What was read at the start.
pub(crate) struct LoadedTls(Tls, Fingerprint);

/// Whether there is a certificate where a listener shows one, and none where none does.
///
/// # Errors
/// Where it is not so.
pub fn check(listen: &[ListenerConfig], has_certificate: bool) -> Result<(), TlsError> {
    match (listen.iter().any(|listen| listen.tls), has_certificate) {
        (true, false) => Err(TlsError::Missing),
        (false, true) => Err(TlsError::Unused),
        (true, true) | (false, false) => Ok(()),
    }
}

/// The side of TLS that has the certificate.
#[derive(Debug)]
pub(crate) struct Tls {
    files: TlsFiles,
    tickets: Arc<dyn ProducesTickets>,
    current: RwLock<TlsConfigs>,
}

/// What handshakes are made with.
#[derive(Clone, Debug)]
struct TlsConfigs {
    http: Arc<ServerConfig>,
    /// Of connections whose protocol is nobody's business here: what a program says of it is not answered.
    tcp: Arc<ServerConfig>,
}

impl Tls {
    /// Reads the files, where a listener needs them.
    ///
    /// # Errors
    /// Where they cannot be used, with what to do.
    pub(crate) fn load(
        files: Option<TlsFiles>,
        listen: &[ListenerConfig],
    ) -> Result<Option<LoadedTls>, TlsError> {
        check(listen, files.is_some())?;
        let Some(files) = files else { return Ok(None) };
        let tickets = Ticketer::new().map_err(TlsError::Unusable)?;
        let (read, fingerprint) = files.read();
        let current = RwLock::new(TlsConfigs::new(read?, &tickets)?);
        Ok(Some(LoadedTls(Self { files, tickets, current }, fingerprint)))
    }

    /// Secures a connection.
    ///
    /// # Errors
    /// Where the program does not, or takes longer than `patience`.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        kind: &ListenerKind,
        time_limit: Duration,
        counts: &TlsMetrics,
    ) -> io::Result<TlsStream<TcpStream>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let config = match kind {
            ListenerKind::Http { .. } => current.http,
            ListenerKind::Tcp { .. } | ListenerKind::Captured { .. } => current.tcp,
        };
        let handshake =
            timeout(time_limit.min(HANDSHAKE_TIMEOUT), TlsAcceptor::from(config).accept(stream)).await;
        let handshake = handshake.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        increment(if handshake.is_ok() { &counts.handshakes } else { &counts.failed_handshakes });
        handshake
    }

    /// Takes the files again whenever they have changed, until the proxy stops. What cannot be used changes nothing.
    async fn watch_files(&self, mut seen: Fingerprint, counts: &TlsMetrics, shutdown: &CancellationToken) {
        loop {
            tokio::select! {
                () = sleep(RELOAD_INTERVAL) => {}
                () = shutdown.cancelled() => return,
            }
            let files = self.files.clone();
            // Ends early only with the runtime.
            let Ok((read, found)) = tokio::task::spawn_blocking(move || files.read()).await else { return };
            // Said once of each content, also of what is wrong.
            if found == seen {
                continue;
            }
            seen = found;
            match read.and_then(|identity| TlsConfigs::new(identity, &self.tickets)) {
                Ok(current) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
                    increment(&counts.reloads);
                    tracing::info!(certificate = %self.files.certificate.display(), "the certificate was read again");
                }
                Err(error) => {
                    increment(&counts.failed_reloads);
                    tracing::warn!(%error, "the certificate that was read before stays in use");
                }
            }
        }
    }
}

impl LoadedTls {
    /// With a task that reads the files again when they change.
    pub(crate) fn watch(self, metrics: &Arc<ProxyMetrics>, shutdown: &Arc<Shutdown>) -> Arc<Tls> {
        let Self(tls, seen) = self;
        let tls = Arc::new(tls);
        let (watched, metrics, shutdown) = (Arc::clone(&tls), Arc::clone(metrics), Arc::clone(shutdown));
        tokio::spawn(async move { watched.watch_files(seen, &metrics.tls, shutdown.started()).await });
        tls
    }
}

impl TlsConfigs {
    fn new(identity: Identity, tickets: &Arc<dyn ProducesTickets>) -> Result<Self, TlsError> {
        let Identity { chain, key } = identity;
        // Named here, so that it does not hang on what else a program is linked with.
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Unusable)?;
        let mut tcp = builder.with_no_client_auth().with_single_cert(chain, key).map_err(TlsError::of)?;
        tcp.ticketer = Arc::clone(tickets);
        let mut http = tcp.clone();
        http.alpn_protocols = ALPN.map(Vec::from).into();
        Ok(Self { http: Arc::new(http), tcp: Arc::new(tcp) })
    }
}
