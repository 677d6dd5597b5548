use std::{io, net::SocketAddr};

use fairmesh_store::StoreError;
use fairmesh_wire::transport::BindError;

/// Why a control plane cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A gRPC address cannot be listened on.
    #[error("gRPC: {0}")]
    Grpc(#[from] BindError),
    /// No gRPC address was given.
    #[error("no gRPC address is given; name at least one, such as 127.0.0.1:7400")]
    NoAddress,
    /// Another process has the HTTP port.
    #[error("HTTP: another process already listens on {address}; stop it, or choose another address")]
    HttpInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The system refused the HTTP address.
    #[error(
        "HTTP: cannot listen on {address}: {source}; choose an address of this machine and a port that this user may open"
    )]
    Http {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A part of the server ended by itself.
    #[error("{part} ended: {reason}; start the control plane again, nothing acknowledged is lost")]
    Ended {
        /// Which part.
        part: &'static str,
        /// What it said.
        reason: String,
    },
}
