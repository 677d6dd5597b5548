use std::{io, net::SocketAddr};

/// Why a proxy did not start.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// An address cannot be listened on.
    #[error(
        "cannot listen on {address}: {source}; choose another with --listen or --admin, or stop whoever has it"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}
