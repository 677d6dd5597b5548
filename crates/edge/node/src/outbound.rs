//! Connections that pods open. They are forwarded to a gateway, regardless of their destination.

use std::{
    hash::{BuildHasher as _, RandomState},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fairmesh_edge::{
    counter::increment,
    listen::{socket_options, transparent_proxying::original_dst},
    tunnel::prefixed_io::PrefixedIo,
};
use fairmesh_wire::{
    LogLimiter,
    proxy_protocol::{Addresses, ConnectionId},
};
use tokio::net::TcpStream;

use crate::{
    forwarded_connection::{Direction, Forwarded},
    gateway_connect::{GatewayConnect, Opened},
    gateway_replicas::Gateways,
    metrics::NodeMetrics,
    placements::Placements,
    pods::Pods,
};

/// Limits log lines about connections that no gateway accepted.
static UNREACHABLE: LogLimiter = LogLimiter::new();

/// Forwards captured connections.
#[derive(Debug)]
pub(crate) struct Captured {
    /// Address of the listener.
    pub(crate) at: SocketAddr,
    pub(crate) pods: Arc<Pods>,
    pub(crate) gateways: Gateways,
    pub(crate) metrics: Arc<NodeMetrics>,
    pub(crate) logs: bool,
    pub(crate) ids: ConnectionIds,
    /// The placements of services; `None` without an agent.
    pub(crate) placements: Option<Placements>,
}

/// Generates connection ids that are unique in the mesh: random bits of this process, and a sequence number.
#[derive(Debug)]
pub(crate) struct ConnectionIds {
    process: u64,
    last: AtomicU64,
}

impl ConnectionIds {
    /// Creates a generator with random bits of its own.
    pub(crate) fn new() -> Self {
        Self { process: RandomState::new().hash_one(()), last: AtomicU64::new(0) }
    }

    fn next(&self) -> ConnectionId {
        ConnectionId(u128::from(self.process) << 64 | u128::from(self.last.fetch_add(1, Relaxed)))
    }
}

impl Captured {
    /// Forwards a connection until it ends.
    pub(crate) async fn serve(&self, mut stream: TcpStream, caller: SocketAddr) {
        // Fails only on a broken socket, which the first read reports.
        let _ = stream.set_nodelay(true);
        let found = original_dst(&stream, Some(self.at)).zip(self.pods.at(caller.ip()));
        let Some((destination, pod)) = found else {
            increment(&self.metrics.unknown_sources);
            tracing::debug!(%caller, "refused a connection that is of no pod of this node, or was not captured");
            return socket_options::reset(stream);
        };
        increment(&pod.metrics.captured);
        let connection = self.ids.next();
        let opening = GatewayConnect {
            gateways: &self.gateways,
            placements: self.placements.as_ref(),
            pod,
            addresses: Addresses { source: caller, destination },
            id: connection,
        };
        match opening.open(&mut stream).await {
            Ok(Opened { gateway, sent, unsent }) => {
                let forwarded = Forwarded {
                    direction: Direction::FromPod,
                    source: caller,
                    destination,
                    connection: Some(connection),
                    sent,
                };
                forwarded.carry(pod, (PrefixedIo::new(unsent, stream), gateway), self.logs).await;
            }
            Err(error) => {
                increment(&pod.metrics.unreachable);
                if let Some(suppressed) = UNREACHABLE.next() {
                    tracing::warn!(service = %pod.service, %destination, %connection, %error, suppressed, "no gateway accepts a connection");
                }
                socket_options::reset(stream);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_ids_of_two_node_processes_differ() {
        let (one, other) = (ConnectionIds::new(), ConnectionIds::new());
        assert_ne!(one.next(), one.next());
        assert_ne!(one.next().0 >> 64, other.next().0 >> 64);
    }
}
