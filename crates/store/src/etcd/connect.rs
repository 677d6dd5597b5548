//! Connections to members, secured where that is wanted.

use std::{fs, path::Path, time::Duration};

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::{EtcdConfig, EtcdTls};
use crate::StoreError;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(3);
/// After how long without a word the other side is asked whether it is there; etcd refuses more than one in 5 s.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long it may take to answer that.
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(5);
/// A channel to each member; it connects when it is used.
pub(super) fn members(config: &EtcdConfig) -> Result<Vec<Channel>, StoreError> {
    let refused = |problem: String| StoreError::Refused { place: config.address.place(), problem };
    let tls = config.tls.as_ref().map(secure).transpose().map_err(refused)?;
    let members = config.address.members().iter().map(|member| {
        channel(member, tls.clone()).map_err(|e| refused(format!("{member}: {}", innermost(&e))))
    });
    members.collect()
}

fn channel(member: &str, tls: Option<ClientTlsConfig>) -> Result<Channel, tonic::transport::Error> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{member}"))?
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_ANSWER)
        .tcp_nodelay(true);
    let endpoint = match tls {
        Some(tls) => endpoint.tls_config(tls)?,
        None => endpoint,
    };
    Ok(endpoint.connect_lazy())
}

fn secure(tls: &EtcdTls) -> Result<ClientTlsConfig, String> {
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
