//! The configuration of a gateway.

use std::{net::SocketAddr, path::PathBuf};

use fairmesh_edge::{limits::Limits, observe::access_log::AccessLogConfig};
use fairmesh_model::Label;
use fairmesh_wire::transport::{Address, Transport};

/// Configuration of a replica of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Where nodes connect.
    pub listen: SocketAddr,
    /// The identity of the gateway, which nodes and the endpoints of pods require.
    pub transport: Transport,
    /// The agent, whose records say which service has which virtual address.
    pub agent: Address,
    /// The backend of the replica: services that are placed on others alone get a 421 response. `None` serves all.
    pub backend: Option<Label>,
    /// Address of `/metrics`, `/healthz` and `/readyz`.
    pub admin: Option<SocketAddr>,
    /// Unix socket for hot upgrades.
    pub handover: Option<PathBuf>,
    /// Threads that serve connections; the mesh must be built for the same number.
    pub cores: usize,
    /// Limits. Those of connections and services are of one tenant.
    pub limits: Limits,
    /// Maximum number of connections of all tenants; further ones are refused.
    pub connections: usize,
    /// Maximum number of connections whose caller has not proved its identity; further ones wait in the accept queue.
    pub handshakes: usize,
    /// Maximum number of requests of one tenant in flight; further ones are refused.
    pub tenant_requests: usize,
    /// Maximum number of tenants whose connections are served; those of one more are refused.
    pub tenants: usize,
    /// Access log.
    pub access_log: AccessLogConfig,
}
