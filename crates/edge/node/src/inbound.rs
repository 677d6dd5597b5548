//! Connections from gateways to pods.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use fairmesh_edge::{
    counter::increment,
    listen::{proxy_header, socket_options},
};
use fairmesh_listen::GuardedStream;
use fairmesh_model::{Identity, MeshRole, SpiffeId, SpiffePath};
use fairmesh_server::identity_of;
use fairmesh_wire::transport::Stream;
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::{
    forwarded_connection::{Direction, Forwarded},
    metrics::NodeMetrics,
    pods::NodeListener,
};

/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for connecting to a pod, which is on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Accepts the connections of one listener.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) listener: Arc<NodeListener>,
    pub(crate) metrics: Arc<NodeMetrics>,
    /// Permits of gateways' connections, on all listeners.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) idle_timeout: Duration,
    pub(crate) logs: bool,
}

/// Why a connection did not reach a pod, and the counter for it.
struct NotForwarded<'a> {
    counter: &'a AtomicU64,
    error: io::Error,
}

impl Arriving {
    /// Forwards a connection until it ends. `handshake` is held until the peer is authenticated.
    pub(crate) async fn serve(&self, stream: TcpStream, peer: SocketAddr, handshake: OwnedSemaphorePermit) {
        let Some(place) = self.metrics.unidentified.enter(peer.ip()) else {
            return socket_options::reset(stream);
        };
        // Fails only on a broken socket, which the first read reports.
        let _ = stream.set_nodelay(true);
        if let Err(NotForwarded { counter, error }) = self.forward(stream, (handshake, place)).await {
            increment(counter);
            tracing::debug!(%peer, %error, service = %self.listener.service, "a connection did not reach its pod");
        }
    }

    /// Authenticates the peer, reads the header, and forwards the connection. `unknown` is held until the
    /// peer has named the pod that it connects to.
    async fn forward<U: Send>(&self, stream: TcpStream, unknown: U) -> Result<(), NotForwarded<'_>> {
        let NodeMetrics { refused_peers, invalid_headers, refused_connections, .. } = &*self.metrics;
        let mut gateway =
            self.accept(stream).await.map_err(|error| NotForwarded { counter: refused_peers, error })?;
        let header = proxy_header::read(&mut gateway, self.idle_timeout).await;
        let header = header.map_err(|error| NotForwarded { counter: invalid_headers, error })?;
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let _permit = permit
            .map_err(|error| NotForwarded { counter: refused_connections, error: io::Error::other(error) })?;
        drop(unknown);
        let found =
            header.addresses.and_then(|sent| Some((sent, self.listener.pods.get(&sent.destination)?)));
        let (sent, pod) = found.ok_or_else(|| NotForwarded {
            counter: invalid_headers,
            error: io::Error::other("its header names no pod of this listener"),
        })?;
        increment(&pod.metrics.accepted);
        let server = connect(sent.destination).await;
        let server = server.map_err(|error| NotForwarded { counter: &pod.metrics.refused, error })?;
        let forwarded = Forwarded {
            direction: Direction::ToPod,
            source: sent.source,
            destination: sent.destination,
            connection: header.connection_id,
            sent: 0,
        };
        forwarded.carry(pod, (gateway, server), self.logs).await;
        Ok(())
    }

    /// Performs the handshake. Only gateways are accepted: certificates of pods, proxies and other nodes are
    /// refused.
    async fn accept(&self, stream: TcpStream) -> io::Result<GuardedStream<Stream>> {
        let stream = GuardedStream::outgoing(Stream::Tcp(stream));
        let stream = timeout(HANDSHAKE_TIMEOUT, self.listener.transport.accept(stream)).await??;
        match identity_of(&stream) {
            Identity::Spiffe(SpiffeId { path: SpiffePath::Mesh(MeshRole::Gateway, _), .. }) => Ok(stream),
            peer => Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{peer} is no gateway"))),
        }
    }
}

async fn connect(pod: SocketAddr) -> io::Result<TcpStream> {
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(pod)).await??;
    stream.set_nodelay(true)?;
    Ok(stream)
}
