use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use fairmesh_edge::tls::certificate_files::TlsError;
use fairmesh_model::Invalid;

/// Error that prevents a proxy from starting.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// An address cannot be bound.
    #[error(
        "cannot listen on {address}: {source}; choose another with --listen (of 'dev', --proxy), --admin or --inbound, or stop the \
         process that uses it"
    )]
    Listen {
        /// The address that cannot be bound.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A listener cannot accept connections to other addresses.
    #[error(
        "cannot accept connections to other addresses on {address}: {source}; +transparent requires CAP_NET_RAW or \
         CAP_NET_ADMIN, for example AmbientCapabilities=CAP_NET_RAW in a systemd unit"
    )]
    Transparent {
        /// The address of the listener.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Threads cannot be started.
    #[error(
        "cannot start {count} threads to serve connections: {source}; lower --cores, or raise the limits of processes \
         and open files"
    )]
    Cores {
        /// Number of threads that were to be started.
        count: usize,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The handover socket cannot be used, or the running proxy did not hand over.
    #[error(
        "cannot take over at {}: {source}; a proxy that runs there continues; fix the cause, or stop that \
         proxy first",
        path.display()
    )]
    Handover {
        /// Path of the handover socket.
        path: PathBuf,
        /// Error of the operating system or of the handover protocol.
        source: io::Error,
    },
    /// The inbound endpoint is invalid.
    #[error("{}: {}; {}", .0.field, .0.problem, .0.hint)]
    Inbound(Invalid),
    /// TLS cannot be configured.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No routing information arrived within the time limit of a hot upgrade. The running proxy continues.
    #[error(
        "no routing information within {waited:?}: the agent or control plane did not respond, or has none; the \
         running proxy continues; check --agent or --control, and start again"
    )]
    Uninformed {
        /// The time that the proxy waited.
        waited: Duration,
    },
    /// The endpoint was not registered within the time limit of a hot upgrade. The running proxy continues.
    #[error(
        "the endpoint of --inbound was not registered within {waited:?}; the running proxy continues; check --agent or --control, and \
         start again"
    )]
    Unregistered {
        /// The time that the proxy waited.
        waited: Duration,
    },
}
