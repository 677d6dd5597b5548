use std::net::SocketAddr;

use fairmesh_store::StoreError;
use fairmesh_wire::transport::BindError;

/// Why a replica cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// Nobody to follow was named.
    #[error("no upstream is named; name at least one control plane or replica, such as 127.0.0.1:7400")]
    NoUpstream,
    /// Nowhere to serve was named.
    #[error("no address to serve at is named; name at least one, such as 127.0.0.1:7403")]
    NoAddress,
    /// The copy on disk cannot be used.
    #[error("the copy of the replica: {0}")]
    Copy(#[from] StoreError),
    /// An address cannot be listened on.
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
    #[error("serving ended: {0}; start the replica again, and report this if it repeats")]
    Serve(String),
}
