//! Opens connections to one endpoint.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::BytesMut;
use fairmesh_http::socket_options;
use fairmesh_router::PeerIdentity;
use fairmesh_wire::{
    proxy_protocol::{self, Addresses, Version},
    transport::{EndpointAddress, ExpectedPeer, Stream, Transport},
};
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};

use super::{
    connection_hook::ConnectionHook, error::SendError, own_addresses::OwnAddresses,
    raw_connection::RawConnection,
};
use crate::counters::PoolCounters;

/// Connect timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Minimum wait after which an endpoint that does not accept a connection counts as unreachable. After a shorter
/// wait, the call's deadline was the cause rather than the endpoint.
const CONCLUSIVE_WAIT: Duration = Duration::from_millis(250);

/// Configuration that all endpoint pools of a mesh share.
#[derive(Clone, Debug, Default)]
pub struct TransportContext {
    /// Opens connections, over mutual TLS if the process has an identity.
    pub transport: Transport,
    /// Counters of all pools.
    pub counters: Arc<PoolCounters>,
    /// Local address of connections; `None` leaves the choice to the system.
    pub local: Option<IpAddr>,
    /// Listener addresses of this process. Connections to them are refused.
    pub own_addresses: OwnAddresses,
    /// Hook of the component on whose behalf calls are forwarded.
    pub connection_hook: ConnectionHook,
    /// Number of event loops that make calls.
    pub event_loops: usize,
    /// Whether plaintext connections are refused even if policies permit them.
    pub identities_only: bool,
}

/// Opens connections to one endpoint.
pub(crate) struct Connector {
    pub(super) transport: Transport,
    pub(super) address: SocketAddr,
    /// Address of the pod, if a node listens at the endpoint's address on the pod's behalf.
    pub(super) pod: Option<SocketAddr>,
    /// Identity that the endpoint must prove by mutual TLS; `None` for plaintext.
    pub(super) identity: Option<PeerIdentity>,
    /// Whether the policy permits plaintext.
    pub(super) accepts_plaintext: bool,
    pub(super) local: Option<IpAddr>,
    pub(super) multiplexed: bool,
    pub(super) counters: Arc<PoolCounters>,
    pub(super) own_addresses: OwnAddresses,
    pub(super) connection_hook: ConnectionHook,
}

impl Connector {
    /// Opens a connection for the endpoint's declared protocol.
    pub(super) async fn connect(&self) -> Result<Stream, SendError> {
        let stream = self.dial().await?;
        if let Some(socket) = stream.tcp().filter(|_| self.multiplexed) {
            socket_options::limit_unacknowledged(socket);
        }
        Ok(stream)
    }

    /// Opens a connection for any protocol. Fails at `connected_by`.
    pub(super) async fn connect_raw(&self, connected_by: Instant) -> Result<RawConnection, SendError> {
        let io = connect_by(connected_by, self.dial()).await?;
        Ok(RawConnection { io, input: BytesMut::new(), _open: Some(self.counters.open_connection()) })
    }

    /// Opens a plaintext connection to the program behind the endpoint, at the address that the endpoint has stated.
    pub(super) async fn connect_program(&self, program: SocketAddr) -> Result<TcpStream, SendError> {
        self.refuse_own(program)?;
        let stream = within_timeout(TcpStream::connect(program)).await?;
        socket_options::configure(&stream);
        Ok(stream)
    }

    fn refuse_own(&self, address: SocketAddr) -> Result<(), SendError> {
        if !self.own_addresses.contains(address) {
            return Ok(());
        }
        let own = format!("{address} is an address of this process itself");
        Err(SendError::Unreachable(io::Error::other(own)))
    }

    async fn dial(&self) -> Result<Stream, SendError> {
        self.refuse_own(self.address)?;
        let endpoint = EndpointAddress {
            address: self.address,
            peer: self.identity.as_ref().map(|peer| match peer {
                PeerIdentity::Service(service) => ExpectedPeer::Service(service),
                PeerIdentity::Id(id) => ExpectedPeer::Id(id),
            }),
            accepts_plaintext: self.accepts_plaintext,
            from: self.local,
        };
        let connected = async {
            let mut stream = self.transport.connect_endpoint(endpoint).await?;
            if let Some(pod) = self.pod {
                name_pod(&mut stream, pod).await?;
            }
            Ok(stream)
        };
        let stream = within_timeout(connected).await?;
        if let Some(socket) = stream.tcp() {
            socket_options::configure(socket);
        }
        Ok(stream)
    }
}

/// Waits for a connection until the connect timeout.
async fn within_timeout<T>(connecting: impl Future<Output = io::Result<T>>) -> Result<T, SendError> {
    let connected = timeout(CONNECT_TIMEOUT, connecting).await;
    let late = || io::Error::new(io::ErrorKind::TimedOut, "no connection within 2 s");
    connected.unwrap_or_else(|_| Err(late())).map_err(SendError::from_connect)
}

/// Tells a node which of its pods the connection is for. Sent after the handshake, so that nothing on the way can
/// read or change it.
async fn name_pod(stream: &mut Stream, pod: SocketAddr) -> io::Result<()> {
    let unknown = SocketAddr::new(pod.ip(), 0);
    let source = stream.tcp().and_then(|socket| socket.local_addr().ok()).unwrap_or(unknown);
    stream.write_all(&proxy_protocol::write(Version::V2, Addresses { source, destination: pod })).await?;
    stream.flush().await
}

/// Waits for a connection until `deadline`.
pub(super) async fn connect_by<T>(
    deadline: Instant,
    connecting: impl Future<Output = Result<T, SendError>>,
) -> Result<T, SendError> {
    let begun = Instant::now();
    match timeout_at(deadline, connecting).await {
        Ok(connected) => connected,
        Err(_) if begun.elapsed() >= CONCLUSIVE_WAIT => {
            let late = io::Error::new(io::ErrorKind::TimedOut, "no connection within half of the time left");
            Err(SendError::Unreachable(late))
        }
        Err(_) => Err(SendError::ConnectTimedOut),
    }
}
