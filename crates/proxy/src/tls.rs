//! TLS of programs, ended here: which certificate is shown, and how a connection begins.
//!
//! rustls, as for etcd. One certificate for all listeners, whatever name is asked for: a proxy is one party, and where it has
//! several names its certificate has them. Tickets hold what a session needs to be resumed, so that nothing is kept here for
//! programs that may never return.

mod files;

use std::{
    io,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::{metrics::counter::ConstCounter, registry::Registry};
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

use self::files::{Fingerprint, Identity};
pub use self::files::{TlsError, TlsFiles};
use crate::{
    Listen, Traffic,
    metrics::{Metrics, count},
    stopping::Stopping,
};

/// How long a handshake may take at most: two round trips and a signature, and someone who thinks of nothing else.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(2);
/// What a program may choose from once it speaks HTTP.
const HTTP: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// What was read at the start.
pub(crate) struct Opened(Tls, Fingerprint);

/// Whether there is a certificate where a listener shows one, and none where none does.
///
/// # Errors
/// Where it is not so.
pub fn check(listen: &[Listen], has_certificate: bool) -> Result<(), TlsError> {
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
    current: RwLock<Current>,
}

/// What handshakes are made with.
#[derive(Clone, Debug)]
struct Current {
    http: Arc<ServerConfig>,
    /// Of connections whose protocol is nobody's business here: what a program says of it is not answered.
    bytes: Arc<ServerConfig>,
}

/// What is counted of TLS.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    handshakes: AtomicU64,
    /// Connections that ended before they were secured.
    failed: AtomicU64,
    reloads: AtomicU64,
    /// Files that could not be used when they had changed.
    refused: AtomicU64,
}

impl Tls {
    /// Reads the files, where a listener needs them.
    ///
    /// # Errors
    /// Where they cannot be used, with what to do.
    pub(crate) fn of(files: Option<TlsFiles>, listen: &[Listen]) -> Result<Option<Opened>, TlsError> {
        check(listen, files.is_some())?;
        let Some(files) = files else { return Ok(None) };
        let tickets = Ticketer::new().map_err(TlsError::Unusable)?;
        let (read, fingerprint) = files.read();
        let current = RwLock::new(Current::new(read?, &tickets)?);
        Ok(Some(Opened(Self { files, tickets, current }, fingerprint)))
    }

    /// Secures a connection.
    ///
    /// # Errors
    /// Where the program does not, or takes longer than `patience`.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        traffic: &Traffic,
        patience: Duration,
        counts: &Counts,
    ) -> io::Result<TlsStream<TcpStream>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let config = match traffic {
            Traffic::Http { .. } => current.http,
            Traffic::Tcp { .. } | Traffic::Captured { .. } => current.bytes,
        };
        let shaken = timeout(patience.min(HANDSHAKE), TlsAcceptor::from(config).accept(stream)).await;
        let shaken = shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        count(if shaken.is_ok() { &counts.handshakes } else { &counts.failed });
        shaken
    }

    /// Takes the files again whenever they have changed, until the proxy stops. What cannot be used changes nothing.
    async fn follow(&self, mut seen: Fingerprint, counts: &Counts, stopping: &CancellationToken) {
        loop {
            tokio::select! {
                () = sleep(LOOK) => {}
                () = stopping.cancelled() => return,
            }
            let files = self.files.clone();
            // Ends early only with the runtime.
            let Ok((read, found)) = tokio::task::spawn_blocking(move || files.read()).await else { return };
            // Said once of each content, also of what is wrong.
            if found == seen {
                continue;
            }
            seen = found;
            match read.and_then(|identity| Current::new(identity, &self.tickets)) {
                Ok(current) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
                    count(&counts.reloads);
                    tracing::info!(certificate = %self.files.certificate.display(), "the certificate was read again");
                }
                Err(error) => {
                    count(&counts.refused);
                    tracing::warn!(%error, "the certificate that was read before stays in use");
                }
            }
        }
    }
}

impl Opened {
    /// With a task that reads the files again when they change.
    pub(crate) fn followed(self, metrics: &Arc<Metrics>, stopping: &Arc<Stopping>) -> Arc<Tls> {
        let Self(tls, seen) = self;
        let tls = Arc::new(tls);
        let (following, metrics, stopping) = (Arc::clone(&tls), Arc::clone(metrics), Arc::clone(stopping));
        tokio::spawn(async move { following.follow(seen, &metrics.tls, stopping.told()).await });
        tls
    }
}

impl Current {
    fn new(identity: Identity, tickets: &Arc<dyn ProducesTickets>) -> Result<Self, TlsError> {
        let Identity { chain, key } = identity;
        // Named here, so that it does not hang on what else a program is linked with.
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(TlsError::Unusable)?;
        let mut bytes = builder.with_no_client_auth().with_single_cert(chain, key).map_err(TlsError::of)?;
        bytes.ticketer = Arc::clone(tickets);
        let mut http = bytes.clone();
        http.alpn_protocols = HTTP.map(Vec::from).into();
        Ok(Self { http: Arc::new(http), bytes: Arc::new(bytes) })
    }
}

impl Counts {
    /// Shows them among the metrics.
    pub(crate) fn register(&self, registry: &mut Registry) {
        for (name, help, counter) in [
            ("tls_handshakes", "Completed TLS handshakes of programs", &self.handshakes),
            ("tls_handshake_failures", "Failed TLS handshakes of programs", &self.failed),
            ("tls_reloads", "Reloads of a changed certificate", &self.reloads),
            ("tls_reload_failures", "Failed reloads of a changed certificate", &self.refused),
        ] {
            registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
        }
    }
}
