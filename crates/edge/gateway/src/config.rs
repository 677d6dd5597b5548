//! The configuration of a gateway.

use std::{net::SocketAddr, path::PathBuf};

use fairmesh_edge::{
    lifecycle::kept_options::KeptOptions, limits::Limits, observe::access_log::AccessLogConfig,
};
use fairmesh_model::Label;
use fairmesh_wire::transport::{Address, Transport};

use crate::entry::EntryConfig;

/// Configuration of a replica of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Address to which nodes connect.
    pub listen: SocketAddr,
    /// The identity of the gateway. Nodes and the endpoints of pods require it.
    pub transport: Transport,
    /// The agent, whose records hold the virtual addresses of services.
    pub agent: Address,
    /// The backend of this replica. Requests for services placed only on other backends get a 421 response.
    /// `None` serves all services.
    pub backend: Option<Label>,
    /// The address that all replicas of the backend share, if they do.
    pub entry: Option<EntryConfig>,
    /// Address of `/metrics`, `/healthz` and `/readyz`.
    pub admin: Option<SocketAddr>,
    /// Unix socket for hot upgrades.
    pub handover: Option<PathBuf>,
    /// Threads that serve connections; the mesh must be built for the same number.
    pub cores: usize,
    /// Limits. The limits of connections and services apply to each tenant.
    pub limits: Limits,
    /// Maximum number of connections of all tenants. Further ones are refused.
    pub connections: usize,
    /// Maximum number of connections whose caller is not authenticated yet. Further ones wait in the accept
    /// queue.
    pub handshakes: usize,
    /// Maximum number of requests in flight per tenant. Further ones are refused.
    pub tenant_requests: usize,
    /// Maximum number of tenants. Connections of further tenants are refused.
    pub tenants: usize,
    /// Configuration of the access log.
    pub access_log: AccessLogConfig,
}

impl GatewayConfig {
    /// The listeners that a successor must have too.
    pub(crate) fn kept_options(&self) -> KeptOptions {
        let listen = [("--listen", self.listen.to_string())];
        let entry = self.entry.iter().flat_map(|entry| {
            [("--entry", entry.address.to_string()), ("--entry-interface", entry.interface.clone())]
        });
        let admin = self.admin.map(|address| ("--admin", address.to_string()));
        KeptOptions::new("gateway", listen.into_iter().chain(entry).chain(admin))
    }
}
