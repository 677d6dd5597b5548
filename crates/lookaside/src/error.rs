use std::{io, net::SocketAddr};

use fairmesh_wire::transport::BindError;

/// Why a lookaside did not start.
#[derive(Debug, thiserror::Error)]
pub enum LookasideError {
    /// Callers cannot connect.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The pages cannot be served.
    #[error("cannot listen on {address}: {source}; choose another with --admin, or stop whoever has it")]
    Pages {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}
