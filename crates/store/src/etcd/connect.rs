//! Connections to the members, with TLS if configured.

use std::{fs, path::Path, time::Duration};

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::{EtcdConfig, EtcdTls};
use crate::StoreError;

/// Time limit for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of HTTP/2 keep-alive pings on an idle connection; etcd refuses more than one in 5 s.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Time limit for the response to a ping.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// A lazily connected channel to each member.
pub(super) fn members(config: &EtcdConfig) -> Result<Vec<Channel>, StoreError> {
    let refused = |problem: String| StoreError::Refused { location: config.address.location(), problem };
    let tls = config.tls.as_ref().map(tls_config).transpose().map_err(refused)?;
    let members = config.address.members().iter().map(|member| {
        channel(member, tls.clone()).map_err(|e| refused(format!("{member}: {}", innermost(&e))))
    });
    members.collect()
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

fn tls_config(tls: &EtcdTls) -> Result<ClientTlsConfig, String> {
    let read = |path: &Path| fs::read(path).map_err(|e| format!("{}: {e}; give a PEM file", path.display()));
    let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&tls.ca)?));
    if let Some((certificate, key)) = &tls.identity {
        config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(config)
}

fn innermost(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .last()
        .map_or_else(String::new, ToString::to_string)
}
