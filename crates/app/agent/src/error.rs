use std::{io, net::SocketAddr};

use fairmesh_model::Invalid;
use fairmesh_rib::disk_cache::CacheError;
use fairmesh_wire::transport::BindError;

/// Error that prevents an agent from starting or continuing.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No upstream address is configured.
    #[error("no control plane is configured; give at least one address, such as 127.0.0.1:7400")]
    NoUpstream,
    /// The state directory cannot be used.
    #[error("state directory: {0}")]
    State(#[from] CacheError),
    /// The agent's name cannot be part of an identity.
    #[error("{0}; give a name with --name")]
    Name(#[from] Invalid),
    /// Listening on the socket failed.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// Listening on the address of the admin pages failed.
    #[error(transparent)]
    Admin(#[from] fairmesh_pages::BindError),
    /// Other agents cannot reach the address for probes.
    #[error("{0}")]
    Probes(Invalid),
    /// Listening on the address for probes failed.
    #[error(
        "probes of other agents: cannot listen on {address}: {source}; choose an address of this machine and a free port with \
         --zone-probes"
    )]
    ProbeListener {
        /// The address.
        address: SocketAddr,
        /// Error of the system call.
        source: io::Error,
    },
    /// The gRPC server failed.
    #[error("gRPC server stopped: {0}; start the agent again, and report this if it repeats")]
    Serve(tonic::transport::Error),
}
