use std::net::SocketAddr;

use fairmesh_rib::cache::CacheError;
use fairmesh_wire::transport::BindError;

/// Why an agent cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Nobody to follow was named.
    #[error("no control plane is named; name at least one address, such as 127.0.0.1:7400")]
    NoUpstream,
    /// The folder of saved copies cannot be used.
    #[error("the state folder: {0}")]
    State(#[from] CacheError),
    /// The socket cannot be listened on.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// The port of metrics cannot be listened on.
    #[error("cannot listen on {address} for metrics: {source}; choose another address, or none")]
    Metrics {
        /// Where it was tried.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Serving broke off.
    #[error("serving ended: {0}; start the agent again, and report this if it repeats")]
    Serve(tonic::transport::Error),
}
