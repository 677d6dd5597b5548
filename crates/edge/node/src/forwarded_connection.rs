//! A connection that a node forwards, from its first byte to its log line.

use std::{fmt, net::SocketAddr};

use fairmesh_edge::tunnel::copy::BytesCopied;
use fairmesh_wire::proxy_protocol::ConnectionId;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

use crate::pods::Pod;

/// Which side opened the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The pod. The node captured the connection.
    FromPod,
    /// A gateway.
    ToPod,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FromPod => "from_pod",
            Self::ToPod => "to_pod",
        })
    }
}

/// A forwarded connection, with the data that the log shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forwarded {
    pub(crate) direction: Direction,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    /// Id of the connection; `None` if a gateway uses the connection for requests of many clients.
    pub(crate) connection: Option<ConnectionId>,
    /// Bytes that were already sent to the server.
    pub(crate) sent: u64,
}

impl Forwarded {
    /// Copies bytes until the connection ends, and logs the connection if `logs` is set.
    pub(crate) async fn carry(
        self,
        pod: &Pod,
        (client, server): (impl AsyncRead + AsyncWrite, impl AsyncRead + AsyncWrite),
        logs: bool,
    ) {
        let began = Instant::now();
        pod.metrics.count_sent(self.sent);
        let BytesCopied { up, down } = pod.tunnels.carry(client, server).await;
        if !logs {
            return;
        }
        let Self { direction, source, destination, connection, sent } = self;
        let connection = connection.map(|id| id.to_string()).unwrap_or_default();
        let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(
            service = %pod.service, %direction, %source, %destination, connection, sent = sent + up, received = down, ms,
            "connection"
        );
    }
}
