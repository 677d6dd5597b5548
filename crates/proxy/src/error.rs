use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use fairmesh_model::Invalid;

use crate::listen::tls::files::TlsError;

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
    /// A listener cannot take connections that were meant for others.
    #[error(
        "cannot take connections as they are on {address}: {source}; +transparent needs the right CAP_NET_RAW or CAP_NET_ADMIN, such as \
         AmbientCapabilities=CAP_NET_RAW of a unit gives it"
    )]
    Transparent {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// Threads cannot be started.
    #[error(
        "cannot start {count} threads to serve connections: {source}; give fewer --cores, or raise the limits on processes and open files"
    )]
    Cores {
        /// How many.
        count: usize,
        /// What the system says.
        source: io::Error,
    },
    /// Nobody can be succeeded, or waited for, at the path of the handover.
    #[error(
        "cannot take over at {}: {source}; a proxy that runs there goes on; mend it, or stop that one first",
        path.display()
    )]
    Handover {
        /// The path.
        path: PathBuf,
        /// What the system, or the other side, says.
        source: io::Error,
    },
    /// A program cannot be spoken for as was asked.
    #[error("{}: {}; {}", .0.field, .0.problem, .0.hint)]
    Inbound(Invalid),
    /// TLS cannot be spoken as was asked.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// What to serve was not learnt in time, and the proxy before goes on.
    #[error(
        "what is to be served is not known after {waited:?}: nobody answers, or somebody does who does not know it; the proxy \
         that runs goes on; see whether --agent or --control is right, and start again"
    )]
    Uninformed {
        /// How long it waited.
        waited: Duration,
    },
}
