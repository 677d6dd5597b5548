use std::{io, net::SocketAddr};

use fairmesh_wire::transport::BindError;

/// Why a lookaside did not start.
#[derive(Debug, thiserror::Error)]
pub enum LookasideError {
    /// The listener cannot be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The admin pages cannot be served.
    #[error(
        "cannot listen on {address}: {source}; choose another with --admin, or stop the process that uses it"
    )]
    Pages {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
}
