use std::{io, net::SocketAddr};

use fairmesh_model::Invalid;
use fairmesh_rib::cache::CacheError;
use fairmesh_wire::transport::BindError;

/// Why an agent cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No upstream address is configured.
    #[error("no control plane is configured; give at least one address, such as 127.0.0.1:7400")]
    NoUpstream,
    /// The state directory cannot be used.
    #[error("state directory: {0}")]
    State(#[from] CacheError),
    /// The agent cannot join with this name.
    #[error("{0}; give a name with --name")]
    Name(#[from] Invalid),
    /// The socket cannot be listened on.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// The address of the admin pages cannot be listened on.
    #[error(transparent)]
    Admin(#[from] fairmesh_pages::BindError),
    /// Other agents cannot probe this address.
    #[error("{0}")]
    Probes(Invalid),
    /// The address of probes cannot be listened on.
    #[error(
        "probes of other agents: cannot listen on {address}: {source}; choose an address of this machine and a free port with \
         --zone-probes"
    )]
    ProbeListener {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The gRPC server failed.
    #[error("gRPC server stopped: {0}; start the agent again, and report this if it repeats")]
    Serve(tonic::transport::Error),
}
