//! Connections to the members of a cluster, with TLS if configured.

use std::{
    fs,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{task::spawn_blocking, time::Instant};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::{EtcdConfig, EtcdTls};
use crate::StoreError;

/// Time limit for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of HTTP/2 keep-alive pings on an idle connection. Etcd allows one ping per 5 s.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Time limit for the response to a keep-alive ping.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the certificate files are compared with those in use.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// The members of a cluster, each with a lazily connected channel. With TLS, changed certificate files replace the
/// channels; calls and watches in flight continue on the old ones.
#[derive(Debug)]
pub(super) struct Members {
    addresses: Vec<String>,
    tls: Option<EtcdTls>,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    channels: Vec<Channel>,
    /// Contents of the certificate files at the last read, even if unusable. Each error is therefore reported only
    /// once.
    files: Option<TlsContents>,
    checked: Instant,
}

/// Contents of the certificate files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TlsContents {
    ca: Vec<u8>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Members {
    /// Reads the certificate files.
    pub(super) fn new(config: &EtcdConfig) -> Result<Self, StoreError> {
        let refused = |problem: String| StoreError::Refused { location: config.address.location(), problem };
        let addresses = config.address.members().to_vec();
        let files = config.tls.as_ref().map(TlsContents::read).transpose().map_err(refused)?;
        let channels = channels(&addresses, files.as_ref()).map_err(refused)?;
        let current = Mutex::new(Current { channels, files, checked: Instant::now() });
        Ok(Self { addresses, tls: config.tls.clone(), current })
    }

    /// Number of members.
    pub(super) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the channel to a member.
    pub(super) async fn channel(&self, index: usize) -> Channel {
        if let Some(tls) = self.tls.as_ref().filter(|_| self.is_due()) {
            let tls = tls.clone();
            // Fails only when the runtime stops.
            if let Ok(read) = spawn_blocking(move || TlsContents::read(&tls)).await {
                self.reload(read);
            }
        }
        self.current().channels[index].clone()
    }

    /// Whether the caller should read the files again. Of several concurrent callers, only one gets `true`.
    fn is_due(&self) -> bool {
        let mut current = self.current();
        let is_due = current.checked.elapsed() >= RELOAD_INTERVAL;
        if is_due {
            current.checked = Instant::now();
        }
        is_due
    }

    fn reload(&self, read: Result<TlsContents, String>) {
        let mut current = self.current();
        let replaced = read.and_then(|files| {
            if current.files.as_ref() == Some(&files) {
                return Ok(false);
            }
            current.files = Some(files);
            current.channels = channels(&self.addresses, current.files.as_ref())?;
            Ok(true)
        });
        match replaced {
            Ok(true) => tracing::info!("reloaded the certificates for etcd"),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(error, "cannot reload the certificates for etcd; the ones before stay in use");
            }
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        // Every change under this lock is a single assignment.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TlsContents {
    fn read(tls: &EtcdTls) -> Result<Self, String> {
        let read =
            |path: &Path| fs::read(path).map_err(|e| format!("{}: {e}; give a PEM file", path.display()));
        let identity = match &tls.identity {
            Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
            None => None,
        };
        Ok(Self { ca: read(&tls.ca)?, identity })
    }

    fn config(&self) -> ClientTlsConfig {
        let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.ca));
        match &self.identity {
            Some((certificate, key)) => config.identity(Identity::from_pem(certificate, key)),
            None => config,
        }
    }
}

fn channels(addresses: &[String], tls: Option<&TlsContents>) -> Result<Vec<Channel>, String> {
    let tls = tls.map(TlsContents::config);
    let open = |member: &String| {
        channel(member, tls.clone()).map_err(|error| format!("{member}: {}", innermost(&error)))
    };
    addresses.iter().map(open).collect()
}

fn channel(member: &str, tls: Option<ClientTlsConfig>) -> Result<Channel, tonic::transport::Error> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{member}"))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .tcp_nodelay(true);
    let endpoint = match tls {
        Some(tls) => endpoint.tls_config(tls)?,
        None => endpoint,
    };
    Ok(endpoint.connect_lazy())
}

fn innermost(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .last()
        .map_or_else(String::new, ToString::to_string)
}
